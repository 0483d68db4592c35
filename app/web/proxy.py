"""Viewers behind a path of the server: their page, and their web socket through the same port."""

import asyncio
import http.client
from collections.abc import Awaitable
from contextlib import suppress
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Origin, Subprotocol

from stream_recon.app.viewer.guard import own_sockets
from stream_recon.app.web.viewers import Viewers
from stream_recon.configs.errors import OutputError, ResourceError, StreamReconError

MAX_PAGE_BYTES = 50_000_000
PASSED_HEADERS = ("content-type", "content-encoding", "cache-control", "etag", "content-security-policy")
TIMEOUT_SECONDS = 30.0


class ViewerProxy:
    """Endpoints below ``/view/NAME/``."""

    def __init__(self, viewers: Viewers) -> None:
        self._viewers = viewers

    async def page(self, request: Request) -> Response:
        """A file of the viewer."""
        name, path = request.path_params["name"], request.path_params.get("path")
        if path is None:
            return RedirectResponse(f"{request.url.path.rpartition('/')[2]}/", 307)
        try:
            port = await self._viewers.port(name)
        except OutputError as error:
            return PlainTextResponse(f"{error}\n", 404)
        except ResourceError as error:
            return PlainTextResponse(f"{error}\n", 503, {"Retry-After": "2", "Refresh": "2"})
        encoding = "gzip" if "gzip" in request.headers.get("accept-encoding", "") else "identity"
        try:
            response = await asyncio.to_thread(_fetch, port, f"/{path}", encoding)
        except (OSError, http.client.HTTPException):
            return PlainTextResponse("the viewer is closing: reload\n", 503, {"Retry-After": "2", "Refresh": "2"})
        policy = response.headers.get("content-security-policy", "")
        # The page's web socket goes through this server's address.
        sockets = f"'self' {own_sockets(request.headers.get('host', ''))}"
        if policy:
            response.headers["content-security-policy"] = policy.replace("connect-src 'self'", f"connect-src {sockets}")
        return response

    async def socket(self, browser: WebSocket) -> None:
        """The viewer's web socket."""
        name = unquote(browser.path_params["name"])
        try:
            port = await self._viewers.port(name)
            subprotocols = [Subprotocol(word) for word in browser.scope.get("subprotocols", [])]
            viewer = await connect(
                f"ws://127.0.0.1:{port}/",
                origin=Origin(f"http://127.0.0.1:{port}"),
                subprotocols=subprotocols or None,
                compression=None,
                max_size=None,
                open_timeout=TIMEOUT_SECONDS,
                proxy=None,
            )
        except (StreamReconError, OSError, WebSocketException, TimeoutError):
            await browser.close(1013)
            return
        self._viewers.count(name, 1)
        try:
            await browser.accept(viewer.subprotocol)
            await _first_of(_to_viewer(browser, viewer), _to_browser(browser, viewer))
        finally:
            self._viewers.count(name, -1)
            await viewer.close()
            with suppress(RuntimeError, WebSocketDisconnect):
                await browser.close()


async def _to_viewer(browser: WebSocket, viewer: ClientConnection) -> None:
    while True:
        data = await browser.receive_bytes()
        await viewer.send(data)


async def _to_browser(browser: WebSocket, viewer: ClientConnection) -> None:
    # A browser that does not read stops this loop, and so the viewer's sending, until the send is given up.
    async for data in viewer:
        await browser.send_bytes(data if isinstance(data, bytes) else data.encode())


async def _first_of(*jobs: Awaitable[None]) -> None:
    """Run until one of them ends; cancel the others."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        # How a connection ended says nothing more: both sides are closed by the caller.
        await asyncio.gather(*tasks, return_exceptions=True)


def _fetch(port: int, path: str, encoding: str) -> Response:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path, headers={"Accept-Encoding": encoding})
        answer = connection.getresponse()
        body = answer.read(MAX_PAGE_BYTES)
        headers = {key: value for key, value in answer.getheaders() if key.lower() in PASSED_HEADERS}
        return Response(body, answer.status, headers)
    finally:
        connection.close()
