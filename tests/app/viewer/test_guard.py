"""What may talk to the viewer: raw requests and websockets, as an attacker would write them."""

import http.client
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import websockets.asyncio.server
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from stream_recon.app.core.process import peak_host_memory_mb
from stream_recon.app.viewer.guard import MAX_BAD_MESSAGES, MAX_MESSAGE_BYTES, MessageGuard, RateLimiter, is_loopback
from stream_recon.app.viewer.panel import PageOptions
from stream_recon.app.viewer.points import send_file
from stream_recon.app.viewer.server import start_server, stop_server
from stream_recon.app.viewer.viewer import Viewer
from stream_recon.configs.schema import PointsConfig
from tests.app.boxroom import room_result
from tests.app.viewer.clients import CAMERA, PROTOCOL, client_of


@pytest.fixture
def viewer() -> Iterator[Viewer]:
    with Viewer(PointsConfig(confidence=0.0, voxel=0.05), port=0, point_budget=30_000) as running:
        for index in range(4):
            running.add(room_result(index))
        running.flush()
        yield running


def page(port: int, origin: str | None = None, host: str | None = None, **headers: str) -> ClientConnection:
    """A websocket to this machine's port that says it is from ``origin``, and names the machine ``host``."""
    raw = socket.create_connection(("127.0.0.1", port), timeout=5)
    uri = f"ws://{host or f'127.0.0.1:{port}'}/{headers.pop('query', '')}"
    return connect(
        uri,
        sock=raw,
        origin=origin,
        subprotocols=[PROTOCOL],
        compression=None,
        additional_headers=headers,
        max_size=None,
    )


def get(port: int, path: str = "/", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def send(client: ClientConnection, message: dict[str, Any]) -> None:
    client.send(msgspec.msgpack.encode(message))


def answers(client: ClientConnection) -> bool:
    """Whether the server still reads what the client says."""
    send(client, CAMERA)
    client.ping().wait(5)
    return True


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1", "file://", ""]
)
def test_pages_of_other_origins_are_refused(viewer: Viewer, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        page(viewer.port, Origin=origin)
    assert refused.value.response.status_code == 403
    assert get(viewer.port, Origin=origin).status == 403


@pytest.mark.parametrize(
    "host", ["attacker.example", "attacker.example:8080", "127.0.0.1.attacker.example", "10.0.0.1"]
)
def test_other_names_for_this_machine_are_refused(viewer: Viewer, host: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        page(viewer.port, host=host, origin=f"http://{host}")
    assert refused.value.response.status_code == 403
    assert get(viewer.port, Host=host).status == 403


def test_its_own_page_and_programs_of_this_machine_get_in(viewer: Viewer) -> None:
    for host in (f"127.0.0.1:{viewer.port}", f"localhost:{viewer.port}", "localhost:9999"):
        for origin in (None, f"http://{host}"):
            with page(viewer.port, host=host, origin=origin) as client:
                assert isinstance(client.recv(timeout=5), bytes)
    answer = get(viewer.port)
    assert answer.status == 200 and b"<html" in answer.read()[:500].lower()
    assert "frame-ancestors 'self'" in str(answer.getheader("Content-Security-Policy"))


def test_nobody_can_publish_the_viewer(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    tunnels: list[Any] = []
    monkeypatch.setattr("viser._viser.ViserTunnel", lambda *arguments: tunnels.append(arguments))
    with page(viewer.port) as client:
        send(client, CAMERA)
        send(client, {"type": "ShareUrlRequest"})
        assert answers(client)
        time.sleep(0.3)
    assert tunnels == []


def test_uploads_are_not_taken(viewer: Viewer) -> None:
    with client_of(viewer) as web:
        slider = web.control("Pause")["uuid"]
    before = peak_host_memory_mb()
    begin = {
        "type": "FileTransferStartUpload", "source_component_uuid": slider, "transfer_uuid": "t", "filename": "f",
        "mime_type": "x", "part_count": 10_000, "size_bytes": 10**9,
    }  # fmt: skip
    part = {"type": "FileTransferPart", "transfer_uuid": "t", "source_component_uuid": slider, "part_index": 0}
    for size in (100, MAX_MESSAGE_BYTES - 500, 40 * 2**20):
        with page(viewer.port) as client, pytest.raises(ConnectionClosed):
            send(client, begin)
            for number in range(MAX_BAD_MESSAGES):
                send(client, part | {"content": bytes(size), "part": number})
            while True:
                client.recv(timeout=5)
    assert peak_host_memory_mb() - before < 200, "what the client itself holds"
    with page(viewer.port) as client:
        assert answers(client)


def test_garbage_costs_one_line_and_harms_nobody_else(
    viewer: Viewer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    garbage: list[Any] = [
        b"", b"\xc1", b"\x93\x01", b"nothing", "text", msgspec.msgpack.encode([1]), b"\x91" * 5000 + b"\x01",
        msgspec.msgpack.encode({"type": 5}), msgspec.msgpack.encode({"type": "Message"}),
        msgspec.msgpack.encode({"type": "GuiUpdateMessage"}), msgspec.msgpack.encode(CAMERA | {"fov": float("nan")}),
        msgspec.msgpack.encode(CAMERA | {"wxyz": [1, 0]}), msgspec.msgpack.encode(CAMERA | {"position": "here"}),
        msgspec.msgpack.encode(CAMERA | {"far": 1e300}), msgspec.msgpack.encode(CAMERA | {"image_width": -5}),
    ]  # fmt: skip
    with caplog.at_level(logging.INFO), page(viewer.port) as other:
        for message in garbage:
            with page(viewer.port) as client:
                client.send(message)
                assert answers(client)
        with page(viewer.port) as client, pytest.raises(ConnectionClosed):
            client.send(bytes(MAX_MESSAGE_BYTES + 1))
            client.recv(timeout=5)
            while True:
                client.recv(timeout=5)
        for raw in (b"\x16\x03\x01garbage", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 9000):
            with socket.create_connection(("127.0.0.1", viewer.port)) as half:
                half.sendall(raw)
        assert answers(other)
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "never sends" in line]) == 1 and len(lines) <= 3, lines
    shown = capfd.readouterr()
    assert "Traceback" not in shown.err + shown.out and len((shown.err + shown.out).splitlines()) <= 3


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_only_values_that_a_control_can_have_are_taken(viewer: Viewer) -> None:
    with client_of(viewer) as client:
        labels = ("Point size", "Cameras", "Show", "Across", "Path")
        slider, checkbox, choice, border, last = (client.control(label)["uuid"] for label in labels)
        (shown,) = viewer.state.pages.values()

        def values() -> tuple[PageOptions, tuple[float, ...]]:
            return shown.panel.options(), tuple(shown.tools.panel.borders[0].value)

        def set_value(uuid: str, updates: object) -> None:
            client.send({"type": "GuiUpdateMessage", "uuid": uuid, "updates": updates})

        wrong = [
            (slider, {"value": -1e6}), (slider, {"value": 96}), (slider, {"value": float("nan")}),
            (slider, {"value": "9"}), (slider, {"value": True}), (slider, {"props": 5}), (slider, {}),
            (slider, {"value": 3, "label": "x"}), (checkbox, {"value": 5}), (checkbox, {"value": None}),
            (border, {"value": [0.5, -0.5]}), (border, {"value": [-9, 0.5]}),
            (border, {"value": 0.5}), (border, {"value": [0, "1"]}),
            ("nobody", {"value": 5}), (slider, [1]), (choice, {"value": "<b>"}), (choice, {"value": 1}),
        ]  # fmt: skip
        before = values()
        for uuid, updates in wrong:
            set_value(uuid, updates)
        set_value(last, {"value": False})
        wait_until(lambda: not values()[0].path)
        assert values() == (replace(before[0], path=False), before[1])
        for uuid, value in ((slider, 3.0), (checkbox, False), (border, [-0.5, 0.5]), (choice, "Points")):
            set_value(uuid, {"value": value})
        wait_until(lambda: values()[0].show == "Points")
        options, borders = values()
        assert options.points.size == 3 and not options.cameras and borders == (-0.5, 0.5)
    viewer.add(room_result(4))
    assert viewer.flush(), "the viewer's thread lives"


CLICK = {
    "type": "ScenePointerMessage", "event_type": "click", "ray_origin": [0, 0, 0], "ray_direction": [0, 0, 1],
    "screen_pos": [[0.5, 0.5]], "modifier": None,
}  # fmt: skip


def test_clicks_are_taken_and_everything_like_them_is_refused() -> None:
    guard = MessageGuard()
    assert guard.allows(msgspec.msgpack.encode(CLICK))
    for wrong in (
        {"event_type": "rect-select"}, {"ray_origin": None}, {"ray_origin": [0, 0]}, {"ray_direction": [0, 0, "1"]},
        {"ray_direction": [0, 0, float("nan")]}, {"screen_pos": [[0.5, 0.5]] * 2}, {"screen_pos": [0.5, 0.5]},
        {"screen_pos": 5}, {"modifier": "shift"}, {"owner": "x"},
    ):  # fmt: skip
        assert not guard.allows(msgspec.msgpack.encode({**CLICK, **wrong})), wrong


def test_a_page_that_talks_without_end_is_read_slowly() -> None:
    pace = RateLimiter(per_s=100, burst=10)
    waits = [pace.next_wait_s() for _ in range(60)]
    assert waits[:10] == [0] * 10 and 0.4 < waits[-1] <= 0.5


def test_a_pace_is_that_of_a_bucket_that_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    now, water = 50.0, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace = RateLimiter(per_s=20, burst=5)
    for pause in random.exponential(0.05, 400) * random.choice([0, 1, 8], 400):
        now, water = now + pause, max(0.0, water - 20 * pause) + 1
        assert pace.next_wait_s() == pytest.approx(max(0.0, water - 5) / 20, abs=1e-9)


def test_a_token_is_asked_for_and_kept_by_the_browser() -> None:
    server = start_server("127.0.0.1", 0, token="secret")
    try:
        port = server.get_port()
        for path, cookie in (
            ("/", ""),
            ("/?token=wrong", ""),
            ("/?token=", "stream-recon-1=secret"),
            ("/?x=secret", ""),
        ):
            answer = get(port, path, Cookie=cookie)
            assert answer.status == 403 and b"with its token" in answer.read()
            with pytest.raises(InvalidStatus):
                page(port, query=path[1:], Cookie=cookie)
        answer = get(port, "/?token=secret")
        assert answer.status == 200
        cookie = str(answer.getheader("Set-Cookie"))
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        with page(port, Cookie=f"other=1; {cookie.partition(';')[0]}") as client:
            assert client.recv(timeout=5)
        # The token proves more than any name of the machine, but not that the page is the viewer's.
        with page(port, host=f"box.lan:{port}", query="?token=secret") as client:
            assert client.recv(timeout=5)
        with pytest.raises(InvalidStatus):
            page(port, origin="http://evil.example", query="?token=secret")
    finally:
        stop_server(server)


def test_all_addresses_of_a_machine_may_be_used_when_it_listens_on_all() -> None:
    server = start_server("0.0.0.0", 0)
    try:
        for host in ("192.168.1.5:8080", "[::1]:8080", "localhost", socket.gethostname()):
            assert get(server.get_port(), Host=host).status == 200, host
        assert get(server.get_port(), Host="attacker.example").status == 403
    finally:
        stop_server(server)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.5.5.5", True), ("0.0.0.0", False), ("", False),
     ("::", False), ("192.0.2.1", False), ("no-such-host.invalid", False)],
)  # fmt: skip
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_two_viewers_may_start_at_the_same_time() -> None:
    servers: list[Any] = []
    serve = websockets.asyncio.server.serve
    threads = [threading.Thread(target=lambda: servers.append(start_server("127.0.0.1", 0))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert websockets.asyncio.server.serve is serve, "viser's own way is put back"
    for server in servers:
        assert get(server.get_port(), Host="evil.example").status == 403
        stop_server(server)


def test_a_page_that_reads_nothing_gets_one_file(viewer: Viewer, tmp_path: Path) -> None:
    large = tmp_path / "cloud.ply"
    large.write_bytes(os.urandom(8 << 20))
    with page(viewer.port) as client:
        send(client, CAMERA)
        wait_until(lambda: len(viewer.clients) == 1)
        (handle,) = viewer.clients
        for _ in range(40):
            send_file(handle, large)
        waiting = handle._websock_connection.get_message_buffer().message_from_id.values()
        assert sum(len(getattr(message, "content", b"")) for message in list(waiting)) <= 8 << 20
        assert sum(type(message).__name__ == "NotificationShowMessage" for message in list(waiting)) <= 1
        # Once it has read the file, it gets another.
        received = 0
        while received < 8 << 20:
            received += len(client.recv(timeout=10))
        wait_until(lambda: not any("Part" in type(m).__name__ for m in list(waiting)))
        send_file(handle, large)
        while received < 16 << 20:
            received += len(client.recv(timeout=10))
