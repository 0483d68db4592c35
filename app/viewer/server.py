"""Starting and stopping the web server of the viewer, at exactly the address asked for and without a word."""

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import CoroutineType
from typing import Any

import rich
import viser
import websockets.asyncio.server
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from stream_recon.app.viewer.guard import (
    BAD_MESSAGES,
    LARGEST_MESSAGE_BYTES,
    PAGES,
    MessageGuard,
    RateLimiter,
    RequestGuard,
)
from stream_recon.configs.errors import ResourceError

log = logging.getLogger(__name__)

GOODBYE_S = 0.5
"""Time that browsers get to close their connections."""


SERVE_LOCK = threading.Lock()
"""Held while viser's way to start a web server is ours."""
SILENT = logging.getLogger(f"{__name__}.websockets")
SILENT.setLevel(logging.CRITICAL + 1)
"""Where the web server writes a page of text for each connection that is not as it should be."""


def start_server(host: str, port: int, token: str | None = None) -> Any:
    """A viser server that listens on ``host`` and ``port`` (0: any free port), behind the guards of `guard`.

    Viser itself lets in any page and believes all that it says: it publishes the server through a tunnel, takes
    uploads and sets whatever attribute of a control is named.

    Args:
        token: what an address has to have as ``?token=``; None: none.

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
    requests, messages = RequestGuard(host, f"viser-v{viser.__version__}", token), MessageGuard()
    with _quiet_console(), _guarded(requests, messages):
        server = viser.ViserServer(host=host, port=port, verbose=False)
    messages.find_control = server.gui._gui_input_handle_from_uuid.get
    loop = server.get_event_loop()
    loop.call_soon_threadsafe(
        loop.set_exception_handler,
        lambda _, context: requests.say("task", f"{context.get('exception') or context.get('message')}"),
    )
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
def _guarded(requests: RequestGuard, messages: MessageGuard) -> Iterator[None]:
    """Within the block a web server that viser starts asks the guards first."""
    pages: set[Any] = set()

    class Connection(websockets.asyncio.server.ServerConnection):
        """Hands on only messages that the guard allows, no faster than a page needs."""

        async def recv(self, decode: bool | None = None) -> Any:
            pace: RateLimiter = self.__dict__.setdefault("pace", RateLimiter())
            while True:
                raw = await super().recv(decode)
                if (wait_s := pace.next_wait_s()) > 0:
                    await asyncio.sleep(wait_s)
                if messages.allows(raw):
                    return raw
                requests.say("message", "a page sent what the viewer's own page never does; it was not looked at")
                bad = self.__dict__["bad"] = self.__dict__.get("bad", 0) + 1
                if bad >= BAD_MESSAGES:
                    await self.close(1008, "not a page of this viewer")

    def guarded_serve(
        handler: Callable[[Any], Awaitable[None]], *address: Any, process_request: Any, **options: Any
    ) -> Any:
        def process(connection: Any, request: Request) -> Response | None:
            refusal = requests.refuse(request)
            if refusal is not None:
                return refusal
            response: Response | None = process_request(connection, request)
            return None if response is None else requests.dress(request, response)

        async def handle(connection: Any) -> None:
            if len(pages) >= PAGES:
                requests.say("pages", f"more than {PAGES} pages at a time: the next ones are turned away")
                await connection.close(1013, "too many pages")
                return
            pages.add(connection)
            try:
                await handler(connection)
            except ConnectionClosed:
                pass
            except Exception as error:  # noqa: BLE001  # of one page: the others, and the run, go on
                requests.say("page", f"a page was cut off: {error!r}")
            finally:
                pages.discard(connection)

        options |= {"max_size": LARGEST_MESSAGE_BYTES, "create_connection": Connection, "logger": SILENT}
        return serve(handle, *address, process_request=process, **options)

    with SERVE_LOCK:
        # Not before: it might be another thread's guarded one, which would then be put back for good.
        serve = websockets.asyncio.server.serve
        websockets.asyncio.server.serve = guarded_serve  # type: ignore[assignment,misc]
        try:
            yield
        finally:
            websockets.asyncio.server.serve = serve  # type: ignore[misc]


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
