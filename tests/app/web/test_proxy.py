"""Pages and web sockets of viewers through the server's port, with a stand-in for the viewers."""

import gzip
import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import websockets.sync.server
from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from stream_recon.app.web.proxy import ViewerProxy
from stream_recon.configs.errors import OutputError, ResourceError

PAGE = b"<title>viewer</title>" * 50


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        packed = self.headers["Accept-Encoding"] == "gzip"
        body = gzip.compress(PAGE) if packed else PAGE
        self.send_response(200 if self.path == "/a.html" else 404)
        given = {"Content-Type": "text/html", "X-Own": "1", "ETag": "e"}
        given |= {"Content-Security-Policy": "default-src 'none'; connect-src 'self'"}
        for name, value in (given | ({"Content-Encoding": "gzip"} if packed else {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Viewers:
    """Ports of viewers by name, or why there is none."""

    def __init__(self, **ports: int | Exception) -> None:
        self._ports, self.pages = ports, list[int]()

    async def port(self, name: str) -> int:
        port = self._ports.get(name, OutputError("no such result"))
        if isinstance(port, Exception):
            raise port
        return port

    def count(self, name: str, change: int) -> None:
        assert name == "hall"
        self.pages.append(change)


def client_of(viewers: Any) -> TestClient:
    proxy = ViewerProxy(viewers)
    pages = [Route("/view/{name}", proxy.page), Route("/view/{name}/{path:path}", proxy.page)]
    return TestClient(Starlette(routes=[*pages, WebSocketRoute("/view/{name}", proxy.socket)]), follow_redirects=False)


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_a_page_is_passed_on_with_the_headers_that_concern_it(port: int) -> None:
    client = client_of(Viewers(hall=port))
    for encoding in ("gzip, br", "identity"):
        answer = client.get("/view/hall/a.html", headers={"Accept-Encoding": encoding, "Host": "example.org:81"})
        assert answer.status_code == 200 and answer.content == PAGE and answer.headers["etag"] == "e"
        assert ("content-encoding" in answer.headers) == ("gzip" in encoding) and "x-own" not in answer.headers
        assert (
            "connect-src 'self' ws://example.org:81 wss://example.org:81" in answer.headers["content-security-policy"]
        )
    assert client.get("/view/hall/b.html").status_code == 404
    moved = client.get("/view/hall")
    assert moved.status_code == 307 and moved.headers["location"] == "hall/"


def test_a_viewer_that_is_not_there_is_told() -> None:
    client = client_of(Viewers(starts=ResourceError("it opens"), gone=1))
    assert client.get("/view/none/").status_code == 404
    for name, text in (("starts", "it opens"), ("gone", "reload")):
        answer = client.get(f"/view/{name}/")
        assert answer.status_code == 503 and text in answer.text and answer.headers["refresh"] == "2"
        with pytest.raises(WebSocketDisconnect) as refused, client.websocket_connect(f"/view/{name}"):
            pass
        assert refused.value.code == 1013


@pytest.mark.parametrize("ends", ["page", "viewer"])
def test_a_web_socket_is_passed_on_until_one_side_ends(ends: str) -> None:
    heard = []

    def answer(socket: Any) -> None:
        for data in socket:
            heard.append(data)
            socket.send(data[::-1] if data != b"text" else "text")
            if data == b"end":
                return

    viewers = Viewers()
    with websockets.sync.server.serve(answer, "127.0.0.1", 0, subprotocols=["v1"]) as server:  # type: ignore[list-item]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        viewers = Viewers(hall=server.socket.getsockname()[1])
        with client_of(viewers).websocket_connect("/view/hall", subprotocols=["v1"]) as socket:
            assert socket.accepted_subprotocol == "v1" and viewers.pages == [1]
            for data in (b"abc", b"text"):
                socket.send_bytes(data)
                assert socket.receive_bytes() == (data if data == b"text" else data[::-1])
            if ends == "viewer":
                socket.send_bytes(b"end")
                assert socket.receive_bytes() == b"dne"
                with pytest.raises(WebSocketDisconnect):
                    socket.receive_bytes()
    assert heard[:2] == [b"abc", b"text"] and viewers.pages == [1, -1]
