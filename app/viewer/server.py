"""Start and stop of the viewer's web server, guarded, at exactly the requested address, without console output."""

import asyncio
import contextlib
import logging
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from http import HTTPStatus
from types import CoroutineType
from typing import Any

import rich
import viser
import websockets.asyncio.server
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from stream_recon.app.viewer import guard as guards
from stream_recon.app.viewer.document import PageBody

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 0.5
"""Time that clients get to close their connections."""
# A page can leave at any moment: what is sent to it then is lost, and nobody has to know.
warnings.filterwarnings("ignore", message="Queued a .* on a closed connection")
SERVE_LOCK = threading.Lock()
"""Held while `websockets.asyncio.server.serve` is replaced by the guarded one."""
SILENT = logging.getLogger(f"{__name__}.websockets")
SILENT.setLevel(logging.CRITICAL + 1)
"""Logger of the web server, which would write a traceback for each malformed connection."""


def start_server(
    host: str, port: int, token: str | None = None, page: PageBody | None = None, public: str | None = None
) -> Any:
    """A viser server that listens on ``host`` and ``port`` (0: any free port), behind the guards of `guard`.

    Viser alone admits any web page and trusts its messages: they can open a tunnel, upload files and set any attribute
    of a control.

    ``token``: required in the address as ``?token=``; None: no token. ``page``: changes the web page. ``public``:
    address at which a proxy shows the viewer. Raises ResourceError where the port is in use (viser alone would move to
    the next free one), or cannot be listened on.
    """
    guards.bound_socket(host, port).close()
    requests, messages = guards.RequestGuard(host, f"viser-v{viser.__version__}", token, public), guards.MessageGuard()
    with _quiet_console(), _guarded(requests, messages, page or PageBody()):
        server = viser.ViserServer(host=host, port=port, verbose=False)
    # Surfaces are drawn without light; the client hides the scene until it has prepared its light.
    server.scene.configure_environment_map(None)
    server.scene.configure_default_lights(cast_shadow=False)
    messages.find_control = partial(_find_control, server)
    loop = server.get_event_loop()
    loop.call_soon_threadsafe(
        loop.set_exception_handler,
        lambda _, context: requests.log_once("task", f"{context.get('exception') or context.get('message')}"),
    )
    if port not in (0, server.get_port()):
        stop_server(server)
        raise guards.port_in_use(port)
    return server


def stop_server(server: Any) -> None:
    """Stop serving, also while clients are connected.

    Browsers keep idle spare connections open, for which the web server would wait. So connections that are open after
    `CLOSE_TIMEOUT_S` are cut.
    """
    loop = server.get_event_loop()

    def hang_up() -> None:
        for task in asyncio.all_tasks(loop):
            coroutine = task.get_coro()
            if isinstance(coroutine, CoroutineType) and coroutine.__qualname__ == "Server.conn_handler":
                task.cancel()

    with _quiet_console():
        loop.call_soon_threadsafe(loop.call_later, CLOSE_TIMEOUT_S, hang_up)
        server.stop()


@contextlib.contextmanager
def _guarded(requests: guards.RequestGuard, messages: guards.MessageGuard, page: PageBody) -> Iterator[None]:
    """Within the block, a web server that viser starts uses the guards."""
    clients: set[Any] = set()

    class Connection(websockets.asyncio.server.ServerConnection):
        """Passes on messages that the guard allows, at a bounded rate."""

        async def recv(self, decode: bool | None = None) -> Any:
            limiter: guards.RateLimiter = self.__dict__.setdefault("limiter", guards.RateLimiter())
            while True:
                raw = await super().recv(decode)
                if (wait_s := limiter.next_wait_s()) > 0:
                    await asyncio.sleep(wait_s)
                if messages.allows(raw):
                    return raw
                requests.log_once("message", "a client sent a message that the web client never sends; ignored")
                bad = self.__dict__["bad"] = self.__dict__.get("bad", 0) + 1
                if bad >= guards.MAX_BAD_MESSAGES:
                    await self.close(1008, "not a client of this viewer")

    def guarded_serve(
        handler: Callable[[Any], Awaitable[None]], *address: Any, process_request: Any, **options: Any
    ) -> Any:
        def process(connection: Any, request: Request) -> Response | None:
            refusal = requests.refuse(request)
            if refusal is not None:
                return refusal
            response: Response | None = process_request(connection, request)
            if response is None:
                return None
            if response.status_code == HTTPStatus.OK and "html" in response.headers.get("Content-Type", ""):
                zipped = response.headers.get("Content-Encoding") == "gzip"
                response.body = page.body(bytes(response.body), zipped=zipped)
                del response.headers["Content-Length"]
                response.headers["Content-Length"] = str(len(response.body))
                response = requests.add_headers(request, response)
                own = {"Content-Security-Policy": page.policy(guards.own_sockets(request.headers["Host"]))}
                # A page that a browser keeps for its button "back" would stay a client of this viewer.
                for name, value in {**own, "Cache-Control": "no-store"}.items():
                    if name in response.headers:
                        del response.headers[name]
                    response.headers[name] = value
                return response
            return requests.add_headers(request, response)

        async def handle(connection: Any) -> None:
            if len(clients) >= guards.MAX_CLIENTS:
                requests.log_once("clients", f"{guards.MAX_CLIENTS} clients are connected: further ones are refused")
                await connection.close(1013, "too many clients")
                return
            clients.add(connection)
            try:
                await handler(connection)
            except ConnectionClosed:
                pass
            except Exception as error:  # noqa: BLE001  # other clients and the run continue
                requests.log_once("client", f"a client was disconnected: {error!r}")
            finally:
                clients.discard(connection)

        options |= {"max_size": guards.MAX_MESSAGE_BYTES, "create_connection": Connection, "logger": SILENT}
        return serve(handle, *address, process_request=process, **options)

    with SERVE_LOCK:
        # Read under the lock: before, it might be another thread's guarded one, which would then stay.
        serve = websockets.asyncio.server.serve
        websockets.asyncio.server.serve = guarded_serve  # type: ignore[assignment,misc]
        try:
            yield
        finally:
            websockets.asyncio.server.serve = serve  # type: ignore[misc]


@contextlib.contextmanager
def _quiet_console() -> Iterator[None]:
    """Suppress viser's output through rich: only the command line prints."""
    console = rich.get_console()
    quiet, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = quiet


def _find_control(server: Any, uuid: str) -> Any:
    """Viser's control with a uuid, of all clients or of one; None where there is none."""
    for gui in (server.gui, *(client.gui for client in server.get_clients().values())):
        control = gui._gui_input_handle_from_uuid.get(uuid)
        if control is not None:
            return control
    return None
