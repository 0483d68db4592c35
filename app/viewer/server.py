"""Starting and stopping the web server of the viewer, at exactly the address asked for and without a word."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from types import CoroutineType
from typing import Any

import rich
import viser

from stream_recon.configs.errors import ResourceError

GOODBYE_S = 0.5
"""Time that browsers get to close their connections."""


def start_server(host: str, port: int) -> Any:
    """A viser server that listens on ``host`` and ``port`` (0: any free port).

    Raises:
        ResourceError: the port is in use (viser alone would move to the next free one), or cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                raise _port_in_use(port) from error
            raise ResourceError(
                f"cannot listen on {host} port {port} ({error}); choose with --host and --port"
            ) from error
    with _quiet_console():
        server = viser.ViserServer(host=host, port=port, verbose=False)
    if port not in (0, server.get_port()):
        stop_server(server)
        raise _port_in_use(port)
    return server


def stop_server(server: Any) -> None:
    """Stop serving, also while browsers are connected.

    Browsers keep spare connections open on which they never say a word, and the web server would wait for each
    of them; hence what has not closed by itself after ``GOODBYE_S`` is cut.
    """
    loop = server.get_event_loop()

    def hang_up() -> None:
        for task in asyncio.all_tasks(loop):
            coroutine = task.get_coro()
            if isinstance(coroutine, CoroutineType) and coroutine.__qualname__ == "Server.conn_handler":
                task.cancel()

    with _quiet_console():
        loop.call_soon_threadsafe(loop.call_later, GOODBYE_S, hang_up)
        server.stop()


@contextlib.contextmanager
def _quiet_console() -> Iterator[None]:
    """Hold back what viser prints through rich: only the command line prints."""
    console = rich.get_console()
    quiet, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = quiet


def _port_in_use(port: int) -> ResourceError:
    return ResourceError(f"port {port} is in use; choose another with --port")
