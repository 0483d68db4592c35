"""Who is let in: own host and origin, the token as a cookie, the header of own pages, and bounds."""

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from stream_recon.app.web.access import AccessPolicy
from stream_recon.app.web.limits import WebLimits
from tests.app.web.serving import VIDEO, served, upload

TOKEN = "a-token-of-a-test-1234"
SOCKETS = "ws://127.0.0.1:8080"
OPEN = AccessPolicy(host="0.0.0.0", token=TOKEN)


def test_the_token_becomes_a_cookie_and_leaves_the_address(tmp_path: Path) -> None:
    with served(
        tmp_path / "data", jobs=0, reach=OPEN, base_url="http://192.168.1.5:8080", follow_redirects=False
    ) as client:
        assert client.get("/").status_code == 403
        first = client.get(f"/scan?token={TOKEN}&view=off")
        assert first.status_code == 200 and 'content="0;url=./scan?view=off"' in first.text and TOKEN not in first.text
        cookie = first.headers["set-cookie"]
        assert cookie.startswith(f"stream-recon-8080={TOKEN};") and "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert "Secure" not in cookie
        page = client.get("/scan")
        assert page.status_code == 200 and "set-cookie" not in page.headers
        assert client.get("/api/state").status_code == 200


def test_the_cookie_is_secure_where_pages_are_encrypted_and_has_the_proxys_path(tmp_path: Path) -> None:
    reach = AccessPolicy(host="127.0.0.1", token=TOKEN, public="https://example.org/lab/recon/")
    with served(tmp_path / "data", jobs=0, reach=reach, base_url="https://example.org") as client:
        cookie = client.get(f"/lab/recon/?token={TOKEN}").headers["set-cookie"]
        assert "; Secure" in cookie and "Path=/lab/recon/" in cookie
        client.cookies.set("stream-recon-", TOKEN)
        # With and without the path: a proxy may take it away.
        for path in ("/lab/recon/api/state", "/api/state", "/lab/recon/static/home.js"):
            assert client.get(path).status_code == 200, path


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "x", "é"])
def test_other_tokens_are_refused(tmp_path: Path, wrong: str) -> None:
    with served(tmp_path / "data", jobs=0, reach=OPEN) as client:
        assert client.get("/", params={"token": wrong}).status_code == 403
        assert "set-cookie" not in client.get("/", params={"token": wrong}).headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:8080"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
    ],
)
def test_foreign_hosts_and_origins_are_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        assert client.get("/api/state", headers=headers).status_code == 403
        assert client.post("/api/uploads", json={"name": "a", "size": 5}, headers=headers).status_code == 403
        for path in ("/view/x/", "/v1/stream"):
            with pytest.raises(WebSocketDisconnect), client.websocket_connect(f"{SOCKETS}{path}", headers=headers):
                pass


def test_forms_of_other_pages_change_nothing(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0, headers={}) as client:
        for method, path in (("POST", "/api/uploads"), ("POST", "/api/sources"), ("DELETE", "/api/results/x")):
            assert client.request(method, path, content=b'{"name": "a", "size": 5}').status_code == 403


def test_pages_forbid_frames_of_others_and_scripts_in_the_page(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        for path in ("/", "/scan", "/api/state", "/nothing", "/static/home.js"):
            headers = client.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'self'" in policy and "frame-ancestors 'self'" in policy, path
            assert "connect-src 'self' ws://127.0.0.1:8080 wss://127.0.0.1:8080;" in policy, path
            assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert "<script>" not in client.get("/").text and "onclick" not in client.get("/").text


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2f..%2fweb/app.py",
        "/static//etc/passwd",
        "/../etc/passwd",
    ],
)
def test_no_path_leads_out(tmp_path: Path, path: str) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        answer = client.get(path)
        assert answer.status_code == 404 or "<title>stream-recon" in answer.text


def test_web_sockets_are_bounded(tmp_path: Path) -> None:
    with served(tmp_path / "data", limits=WebLimits(sockets=2)) as client:
        path = f"{SOCKETS}/v1/stream"
        with client.websocket_connect(path), client.websocket_connect(path):
            with pytest.raises(WebSocketDenialResponse) as refused, client.websocket_connect(path):
                pass
            assert refused.value.status_code == 429 and refused.value.headers["retry-after"]
        with client.websocket_connect(path):  # there is room again
            pass


def test_requests_that_are_no_requests_are_answered(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        answers: list[Any] = [
            client.post("/api/uploads", content=b"[" * 50_000),
            client.post("/api/uploads", content=b"\xff\xfe"),
            client.post("/api/uploads", json=[1]),
            client.post("/api/uploads", content=b"{" + b" " * 100_000 + b"}"),
            client.post("/api/sources", json={"address": "/etc/passwd"}),
            client.post("/api/sources", json={"address": "file:///etc/passwd"}),
            client.post("/api/sources", json={"address": "rtsp://a b"}),
            client.post("/api/sources", content=b'{"address": "rtsp://\\ud800"}'),
            client.post("/api/sources", json={"address": "0", "options": {"stride": "x"}}),
            client.post("/api/sources", json={"address": "0", "options": {"scale": "track:/etc/passwd"}}),
            client.post("/api/uploads", json={"name": " ", "size": 1}),
            client.post("/api/sources", json={"address": "0", "name": {}}),
            client.post("/api/sources", json={"address": "0", "options": {"scale": "exif\n"}}),
            client.post("/api/sources", json={"address": "0", "option": {"stride": 2}}),
        ]
        missing = [
            client.post("/api/results/none/refine", json={}),
            client.post("/api/jobs/99/stop"),
            client.get("/api/exports/99"),
            client.post(f"/api/jobs/{'9' * 5000}/stop"),
            client.post("/api/results/hall/none"),
        ]
        assert all(answer.status_code == 404 and answer.json()["error"] for answer in missing), missing
        assert all(answer.status_code == 400 and answer.json()["error"] for answer in answers), answers
        assert client.get("/api/state").json()["jobs"] == []


def test_the_client_of_these_tests_is_let_in(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        assert isinstance(client, TestClient) and client.get("/").status_code == 200


def test_a_viewer_of_nothing_is_not_found(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        assert client.get("/view/nothing/").status_code == 404
        assert client.get("/view/..%2f..%2fetc/").status_code == 404
        upload(client, VIDEO)  # its job waits: its viewer comes with the first frames
        waiting = client.get("/view/walk-recon/")
        assert waiting.status_code == 503 and waiting.headers["refresh"] == "2"
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(f"{SOCKETS}/view/nothing"):
            pass
