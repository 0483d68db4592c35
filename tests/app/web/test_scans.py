"""Scans: one frame in flight, acknowledged when taken, by web socket and by POST; cuts become segments."""

import json
import struct
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.limits import DEFAULT_LIMITS, WebLimits
from stream_recon.app.web.scans import TURNED, jpeg_size
from stream_recon.configs.errors import InputError
from tests.app.web.serving import served
from tests.app.web.test_jobs import job, until

SOCKETS = "ws://127.0.0.1:8080"


def jpeg(width: int = 128, height: int = 96) -> bytes:
    image = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return cv2.imencode(".jpg", image)[1].tobytes()


def message(at: float, picture: bytes | None = None) -> bytes:
    return struct.pack("<d", at) + (jpeg() if picture is None else picture)


def acknowledgement(socket: Any) -> dict[str, Any]:
    """The next answer to a frame; other news are passed over."""
    while True:
        found: dict[str, Any] = json.loads(socket.receive_text())
        if "ack" in found or "error" in found:
            return found


def begin(client: TestClient, **given: Any) -> tuple[str, str]:
    made = client.post("/api/scans", json=given).json()
    return made["id"], made["name"]


def frames_of(folder: Path) -> list[dict[str, Any]]:
    (scan,) = DataFolder(folder).scans.iterdir()
    return [json.loads(line) for line in (scan / "frames.jsonl").read_text().splitlines()]


def test_frames_are_acknowledged_and_kept(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        number, name = begin(client, name="Hall")
        assert name == "Hall-recon"
        with client.websocket_connect(f"{SOCKETS}/api/scans/{number}/stream") as socket:
            answers = []
            for i in range(4):
                socket.send_bytes(message(1e12 + 100 * i))
                answers.append(acknowledgement(socket))
        assert [answer["ack"] for answer in answers] == [0, 1, 2, 3]
        until(lambda: client.get(f"/api/scans/{number}").json() == {"posed": 3, "say": "Too dark"})
        assert client.post(f"/api/scans/{number}/end").json() == {"name": "Hall-recon"}
        until(lambda: not job(client))  # the run ends by itself, and a run that is done is listed as its result
    frames = frames_of(tmp_path / "data")
    assert [frame.get("time") for frame in frames] == [0.0, 0.1, 0.2, 0.3, None] and frames[-1] == {"end": True}
    assert {frame["segment"] for frame in frames[:-1]} == {0}


def test_a_phone_hears_what_changes_between_its_frames_once(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        number, _ = begin(client)
        with client.websocket_connect(f"{SOCKETS}/api/scans/{number}/stream") as socket:
            news = []
            for i in range(3):
                socket.send_bytes(message(1e12 + 100 * i))
            while not news or news[-1] != {"posed": 2, "say": "Too dark"}:
                heard = json.loads(socket.receive_text())
                news += [heard] if "posed" in heard and "ack" not in heard else []
            time.sleep(0.5)
            socket.send_bytes(b"short")
            last = json.loads(socket.receive_text())
        assert "error" in last, "news that are none"
        assert all(a != b for a, b in pairwise(news)) and [each["posed"] for each in news] == sorted(
            each["posed"] for each in news
        )


def test_frames_come_by_post_where_no_web_socket_opens(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        number, _ = begin(client)
        for i in range(3):
            answer = client.post(f"/api/scans/{number}/frames?captured={5000 + 50 * i}", content=jpeg())
            assert answer.status_code == 200 and answer.json()["ack"] == i
        assert [frame["time"] for frame in frames_of(tmp_path / "data")] == [0.0, 0.05, 0.1]


def test_a_cut_connection_goes_on_as_a_new_segment(tmp_path: Path) -> None:
    with served(tmp_path / "data", limits=WebLimits(scan_pause_s=0.2)) as client:
        number, _ = begin(client)
        for at in (0, 50):
            client.post(f"/api/scans/{number}/frames?captured={10_000 + at}", content=jpeg())
        time.sleep(0.4)
        for at in (5000, 5050):
            client.post(f"/api/scans/{number}/frames?captured={10_000 + at}", content=jpeg())
        assert [(frame["segment"], frame["time"]) for frame in frames_of(tmp_path / "data")] == [
            (0, 0.0), (0, 0.05), (1, 5.0), (1, 5.05),
        ]  # fmt: skip


def test_a_slow_run_is_no_cut(tmp_path: Path) -> None:
    """While a frame waits for the run, the phone is silent because nobody asks."""
    with served(tmp_path / "data", limits=WebLimits(scan_pause_s=0.3)) as client:
        number, _ = begin(client)
        began = time.monotonic()
        client.post(f"/api/scans/{number}/frames?captured=10000", content=jpeg())  # waits for the program's start
        at = 10_000 + 1000 * (time.monotonic() - began)
        client.post(f"/api/scans/{number}/frames?captured={at}", content=jpeg())
        assert {frame["segment"] for frame in frames_of(tmp_path / "data")} == {0}


def test_a_turned_phone_is_told_so(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        number, _ = begin(client)
        with client.websocket_connect(f"{SOCKETS}/api/scans/{number}/stream") as socket:
            socket.send_bytes(message(1000.0))
            assert acknowledgement(socket)["ack"] == 0
            socket.send_bytes(message(1100.0, jpeg(96, 128)))
            assert acknowledgement(socket) == {"ack": 0, "say": TURNED}
            socket.send_bytes(message(1200.0))
            assert acknowledgement(socket)["ack"] == 1
        assert len(frames_of(tmp_path / "data")) == 2


@pytest.mark.parametrize(
    "data", [b"", b"1234567", b"12345678", b"12345678" + b"GIF89a", b"12345678" + jpeg()[:40], b"\xff" * 8 + jpeg()]
)
def test_other_messages_are_refused_in_a_line(tmp_path: Path, data: bytes) -> None:
    with served(tmp_path / "data") as client:
        number, _ = begin(client)
        with client.websocket_connect(f"{SOCKETS}/api/scans/{number}/stream") as socket:
            socket.send_bytes(data)
            answer = acknowledgement(socket)
            # The last one has a time that is no number: it counts as unknown, and the picture as good.
            assert (
                answer.get("ack") == 0
                if data.endswith(jpeg())
                else "JPEG" in answer["error"] or "time" in answer["error"]
            )
            socket.send_bytes(message(1000.0))
            assert "ack" in acknowledgement(socket)


def test_scans_that_are_not_open_are_refused(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(f"{SOCKETS}/api/scans/nothing/stream"):
            pass
        assert client.post("/api/scans/../frames", content=jpeg()).status_code in (400, 404, 405)
        for _ in range(DEFAULT_LIMITS.scans):
            begin(client)
        assert client.post("/api/scans", json={}).status_code == 429


def test_a_run_that_ends_is_told_to_the_phone(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        number, _ = begin(client)
        client.post(f"/api/scans/{number}/frames?captured=1", content=jpeg())
        client.post("/api/jobs/1/stop")  # a scan's stop is its end
        answer = client.post(f"/api/scans/{number}/frames?captured=2", content=jpeg())
        assert answer.status_code == 404 and "ended" in answer.json()["error"]


def test_a_scan_that_a_kill_cut_off_can_be_read_again(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        begin(client)
    (folder,) = DataFolder(tmp_path / "data").scans.iterdir()
    (folder / "frames.jsonl").write_text('{"index": 0, "time": 0.0, "segment": 0}\n{"index": 1, "ti')
    with served(tmp_path / "data", jobs=0):
        assert frames_of(tmp_path / "data") == [{"index": 0, "time": 0.0, "segment": 0}, {"end": True}]


def test_sizes_of_jpeg_pictures() -> None:
    assert jpeg_size(jpeg(128, 96)) == (128, 96)
    for data in (
        b"\xff\xd8",
        b"\xff\xd8" + b"\xff" * 1000,
        jpeg(40, 40),
        b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff",
    ):
        with pytest.raises(InputError):
            jpeg_size(data)
