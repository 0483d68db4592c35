"""Who is let in: own host and origin, the token as a cookie, the header of own pages, and bounds."""

import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from stream_recon.app.web.access import AccessPolicy, ProxyUsers
from stream_recon.app.web.limits import WebLimits
from stream_recon.configs.errors import ConfigError
from tests.app.result.test_writer import write_run
from tests.app.web.serving import VIDEO, served, upload
from tests.app.web.test_jobs import until

TOKEN = "a-token-of-a-test-1234"
SOCKETS = "ws://127.0.0.1:8080"
OPEN = AccessPolicy(host="0.0.0.0", token=TOKEN)
PUBLIC = "https://example.org/"
USERS = ProxyUsers.of(
    {"STREAM_RECON_USER_HEADER": "X-Forwarded-User", "STREAM_RECON_PROXIES": "127.0.0.1, 10.1.0.0/16"}
)
PROXIED: dict[str, Any] = {
    "reach": AccessPolicy(host="0.0.0.0", token=TOKEN, public=PUBLIC, users=USERS),
    "base_url": PUBLIC,
    "client": ("10.1.2.3", 5000),
}
"""A server behind a proxy that names users."""


def alice(name: str = "alice") -> dict[str, str]:
    return {"X-Forwarded-User": name}


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


def test_a_user_whom_the_proxy_names_needs_no_token(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0, **PROXIED) as client:
        assert client.get("/api/state").status_code == 403
        assert client.get("/api/state", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.get("/api/state", headers=alice()).status_code == 200
        given = client.get("/?token=x", headers=alice())
        assert given.status_code == 200 and "set-cookie" not in given.headers, "the token goes to nobody"
        with client.websocket_connect("wss://example.org/v1/stream", headers=alice()):
            pass
        for more in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            assert client.get("/api/state", headers=alice() | more).status_code == 403
    with served(tmp_path / "none", jobs=0, **PROXIED | {"reach": replace(PROXIED["reach"], token=None)}) as client:
        refused = client.get("/api/state")
        assert refused.status_code == 403 and "names no user" in refused.text
        assert client.get("/api/state", headers=alice()).status_code == 200
        assert client.get("/healthz").status_code == 200


def test_the_header_admits_nobody_unless_it_is_switched_on(tmp_path: Path) -> None:
    for reach in (OPEN, AccessPolicy(host="127.0.0.1", token=TOKEN, public=PUBLIC)):
        with served(tmp_path / "data", jobs=0, **PROXIED | {"reach": reach}) as client:
            assert client.get("/api/state", headers=alice()).status_code == 403


@pytest.mark.parametrize("peer", ["10.2.0.1", "192.168.1.5", "8.8.8.8", "::1", "::ffff:10.2.0.1", "", "alice", None])
def test_the_header_of_another_peer_is_refused_even_with_the_token(tmp_path: Path, peer: str | None) -> None:
    client_address = None if peer is None else (peer, 5000)
    with served(tmp_path / "data", jobs=0, **PROXIED | {"client": client_address}) as client:
        refused = client.get("/api/state", headers=alice() | {"Authorization": f"Bearer {TOKEN}"})
        assert refused.status_code == 403 and "from the proxy alone" in refused.text
        with (
            pytest.raises(WebSocketDisconnect),
            client.websocket_connect("wss://example.org/v1/stream", headers=alice()),
        ):
            pass
        assert client.get("/api/state", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_mapped_addresses_are_those_of_the_proxy(tmp_path: Path) -> None:
    for peer in ("127.0.0.1", "::ffff:10.1.0.9"):
        with served(tmp_path / "data", jobs=0, **PROXIED | {"client": (peer, 5000)}) as client:
            assert client.get("/api/state", headers=alice()).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        " alice",
        "alice ",
        "alice,root",
        "alice, root",
        "a\tb",
        "a\x00",
        "a\x1b[2J",
        "a\x7f",
        "a\x85",
        "a" * 201,
    ],
)
def test_what_is_not_one_name_is_refused(tmp_path: Path, name: str) -> None:
    with served(tmp_path / "data", jobs=0, **PROXIED) as client:
        refused = client.get("/api/state", headers=[("X-Forwarded-User", name.encode("latin-1"))])
        assert refused.status_code == 403 and re.search("not one name|control characters", refused.text)


def test_two_names_are_refused(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0, **PROXIED) as client:
        for names in (("alice", "root"), ("alice", "alice"), ("", "root")):
            headers = [("X-Forwarded-User", names[0]), ("x-forwarded-user", names[1])]
            assert client.get("/api/state", headers=headers).status_code == 403


@pytest.mark.parametrize(
    ("header", "proxies", "line"),
    [
        ("X-Forwarded-User", "", "STREAM_RECON_PROXIES"),
        ("", "127.0.0.1", "STREAM_RECON_USER_HEADER"),
        ("X User", "127.0.0.1", "STREAM_RECON_USER_HEADER"),
        ("X-User", "0.0.0.0/0", "not of this machine"),
        ("X-User", "127.0.0.1,8.8.8.8", "not of this machine"),
        ("X-User", "proxy.local", "STREAM_RECON_PROXIES"),
        ("X-User", "10.0.0.1/8", "STREAM_RECON_PROXIES"),
    ],
)
def test_a_switch_that_is_half_on_is_refused(header: str, proxies: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        ProxyUsers.of({"STREAM_RECON_USER_HEADER": header, "STREAM_RECON_PROXIES": proxies})
    assert ProxyUsers.of({}) is None


def test_one_user_leaves_room_for_others(tmp_path: Path) -> None:
    limits = WebLimits(sessions=8, waiting_jobs=8, housekeeping_s=0.05)
    with served(tmp_path / "data", jobs=0, quota=400_000, limits=limits, **PROXIED) as client:
        source = {"address": "rtsp://127.0.0.1:9/a"}
        answers = [client.post("/api/sources", json=source, headers=alice()).status_code for _ in range(3)]
        assert answers == [201, 201, 429]
        assert client.post("/api/sources", json=source, headers=alice("bob")).status_code == 201
        new = {"name": "a.mp4", "size": 60_000}
        answers = [client.post("/api/uploads", json=new, headers=alice()).status_code for _ in range(2)]
        assert answers == [201, 507]
        assert client.post("/api/uploads", json=new, headers=alice("bob")).status_code == 201
        with ExitStack() as stack:
            created = []
            for name in ("alice", "alice", "alice", "bob"):
                connection = client.websocket_connect("wss://example.org/v1/stream", headers=alice(name))
                socket = stack.enter_context(connection)
                socket.send_json({"type": "session.config"})
                created.append(socket.receive_json())
            assert [each.get("code", "") for each in created] == ["", "", "busy", ""]
            connection = client.websocket_connect("wss://example.org/v1/stream", headers=alice("bob"))
            socket = stack.enter_context(connection)
            socket.send_json({"type": "session.config", "session_id": created[0]["session_id"], "received": 0})
            assert socket.receive_json()["code"] == "unknown_session"


def test_a_users_results_and_uploads_count_for_the_quota_also_after_a_restart(tmp_path: Path) -> None:
    options: dict[str, Any] = {"jobs": 0, "quota": 4_000_000, "limits": WebLimits(housekeeping_s=0.05), **PROXIED}
    with served(tmp_path / "data", **options) as client:
        client.headers.update(alice())
        name = upload(client, VIDEO + bytes(50_000), piece=30_000)["name"]
        client.headers.update(alice("bob"))
        other = upload(client, VIDEO, name="other.mp4", piece=30_000)["name"]
    for folder in (name, other):
        write_run(tmp_path / "data" / folder)
    (tmp_path / "data" / name / "more").write_bytes(bytes(1_200_000))

    def status(user: str) -> int:
        made = client.post("/api/sources", json={"address": "rtsp://127.0.0.1:9/a"}, headers=alice(user))
        return made.status_code

    with served(tmp_path / "data", **options) as client:
        until(lambda: status("alice") == 507)
        assert status("bob") == 201
        refused = client.post("/api/uploads", json={"name": "a.mp4", "size": 1}, headers=alice())
        assert refused.status_code == 507
        for job in client.get("/api/jobs", headers=alice()).json()["jobs"]:
            client.post(f"/api/jobs/{job['id']}/stop", headers=alice())
        gone = client.request("DELETE", f"/api/results/{name}", json={"upload": True}, headers=alice())
        assert gone.status_code == 200, gone.text
        (tmp_path / "data" / name / "more").unlink(missing_ok=True)
        until(lambda: status("alice") == 201)
