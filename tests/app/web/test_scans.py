"""Scans: sessions of ``/v1/stream`` whose frames are kept; cuts become segments, and runs tell what they see."""

import base64
import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from stream_recon.app.core import output_file
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.limits import DEFAULT_LIMITS, WebLimits
from stream_recon.app.web.scans import TURNED, jpeg_size
from stream_recon.configs.errors import InputError
from tests.app.web.serving import served
from tests.app.web.test_jobs import job
from tests.app.web.test_jobs import until as happens
from tests.app.web.test_sessions import ADDRESS, begin, heard, until


def jpeg(width: int = 128, height: int = 96) -> bytes:
    image = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return cv2.imencode(".jpg", image)[1].tobytes()


def send(socket: Any, number: int, seconds: float | None, picture: bytes | None = None, **more: Any) -> None:
    data = base64.b64encode(jpeg() if picture is None else picture).decode()
    socket.send_json({"type": "video.frame", "frame": number, "time": seconds, "data": data, **more})


def frames_of(folder: Path) -> list[dict[str, Any]]:
    (scan,) = DataFolder(folder).scans.iterdir()
    return [json.loads(line) for line in (scan / "frames.jsonl").read_text().splitlines()]


def test_frames_are_kept_and_have_results(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client, client.websocket_connect(ADDRESS) as socket:
        created = begin(socket, keep="Hall")
        assert created["name"] == "Hall-recon" and created["job"] == 1
        messages = []
        for number in (2, 3, 5, 9):
            send(socket, number, number / 10)
            messages += until(socket, "result", frame=number)
        messages += [] if any(each["type"] == "guidance" for each in messages) else until(socket, "guidance")
        socket.send_json({"type": "video.done"})
        messages += until(socket, "session.done")
        happens(lambda: not job(client))  # the run ends by itself, and a run that is done is listed as its result
    assert [each["seq"] for each in messages] == list(range(1, len(messages) + 1))
    for kind in ("video.ack", "result"):
        assert [each["frame"] for each in messages if each["type"] == kind] == [2, 3, 5, 9]
    assert [each["time"] for each in messages if each["type"] == "result"] == [0.2, 0.3, 0.5, 0.9]
    assert [each["text"] for each in messages if each["type"] == "guidance"] == ["Too dark"]
    assert (messages[-1]["frames"], messages[-1]["dropped"]) == (4, 0)
    frames = frames_of(tmp_path / "data")
    assert [frame.get("time") for frame in frames] == [0.2, 0.3, 0.5, 0.9, None] and frames[-1] == {"end": True}
    assert {frame["segment"] for frame in frames[:-1]} == {0}


def test_a_cut_connection_goes_on_as_a_new_segment(tmp_path: Path) -> None:
    with served(tmp_path / "data", limits=WebLimits(scan_pause_s=0.2, resume_s=0.01, housekeeping_s=0.05)) as client:
        with client.websocket_connect(ADDRESS) as socket:
            created = begin(socket, keep="")
            for number in (0, 1):
                send(socket, number, number / 20)
                last = until(socket, "result", frame=number)[-1]["seq"]
            socket.close(1001)
        time.sleep(0.4)  # a scan may be resumed for longer than other sessions
        with client.websocket_connect(ADDRESS) as socket:
            assert begin(socket, session_id=created["session_id"], received=last)["last_frame"] == 1
            messages = []
            for number in (2, 3):
                send(socket, number, 5 + number / 20)
                messages += until(socket, "result", frame=number)
        assert [each["frame"] for each in messages if each["type"] == "video.ack"] == [2, 3]
        assert [(frame["segment"], frame["time"]) for frame in frames_of(tmp_path / "data")[:4]] == [
            (0, 0.0), (0, 0.05), (1, 5.1), (1, 5.15),
        ]  # fmt: skip


def test_a_slow_run_is_no_cut(tmp_path: Path) -> None:
    """While a frame waits for the run, the phone is silent because nobody asks."""
    with (
        served(tmp_path / "data", limits=WebLimits(scan_pause_s=0.3)) as client,
        client.websocket_connect(ADDRESS) as socket,
    ):
        begin(socket, keep="")
        began = time.monotonic()
        for number in range(3):  # the second one waits for the program's start
            send(socket, number, 100 + time.monotonic() - began)
            until(socket, "video.ack", frame=number)
        assert {frame["segment"] for frame in frames_of(tmp_path / "data")} == {0}


def test_frames_that_are_not_kept_are_refused_in_a_line(tmp_path: Path) -> None:
    cases: list[tuple[bytes, dict[str, Any], str]] = [
        (b"", {}, "JPEG"),
        (b"GIF89a", {}, "JPEG"),
        (jpeg()[:40], {}, "JPEG"),
        (jpeg(), {"data": "?"}, "base64"),
        (jpeg(), {"format": "rgb", "width": 4, "height": 4}, "jpeg"),
        (jpeg(), {"time": 0.0}, "times must rise"),
        (jpeg(), {"time": "soon"}, "seconds"),
        (jpeg(96, 128), {}, TURNED),
    ]
    with served(tmp_path / "data") as client, client.websocket_connect(ADDRESS) as socket:
        begin(socket, keep="")
        send(socket, 0, None)
        until(socket, "result", frame=0)
        for number, (data, more, line) in enumerate(cases, 1):
            send(socket, number, float(number), data, **more)
            refused = until(socket, "error")[-1]
            assert (refused["code"], refused["frame"]) == ("invalid_frame", number) and line in refused["message"]
        send(socket, 99, None)
        until(socket, "result", frame=99)
    assert [frame["index"] for frame in frames_of(tmp_path / "data") if "index" in frame] == [0, 1]


def test_scans_that_cannot_begin_are_told_why(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        for config, line in (({"keep": 7}, "the name is no text"), ({"keep": "", "include": []}, "has include")):
            with client.websocket_connect(ADDRESS) as socket:
                refused = begin(socket, **config)
                assert refused["code"] == "invalid_config" and line in refused["message"]
        for _ in range(DEFAULT_LIMITS.scans):
            with client.websocket_connect(ADDRESS) as socket:
                begin(socket, keep="")
                send(socket, 0, None)
                until(socket, "result")
                socket.close(1001)
        with client.websocket_connect(ADDRESS) as socket:
            refused = begin(socket, keep="")
            assert refused["code"] == "busy" and refused["retry_after"] > 0
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_bytes(b"12")
    with served(tmp_path / "full", quota=1) as client, client.websocket_connect(ADDRESS) as socket:
        assert begin(socket, keep="")["code"] == "no_room"


def test_a_full_disk_keeps_a_scan_from_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, permissions: int = 0o644) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with served(tmp_path / "data") as client, client.websocket_connect(ADDRESS) as socket:
        monkeypatch.setattr(output_file, "open_new", full)
        assert begin(socket, keep="")["code"] == "no_room"
        monkeypatch.undo()
        assert client.get("/api/state").json()["jobs"] == []
        assert "stream_recon_sessions 0" in client.get("/metrics").text


def test_a_job_that_is_stopped_ends_its_scan(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        with client.websocket_connect(ADDRESS) as socket:
            number = begin(socket, keep="")["job"]
            send(socket, 0, None)
            until(socket, "result")
            client.post(f"/api/jobs/{number}/stop")
            assert until(socket, "session.done")[-1]["frames"] == 1
        assert frames_of(tmp_path / "data")[-1] == {"end": True}
        happens(lambda: not job(client))  # done, not stopped
        with client.websocket_connect(ADDRESS) as socket:
            number = begin(socket, keep="")["job"]
            client.post(f"/api/jobs/{number}/stop")
            failed = until(socket, "error")[-1]
            assert (failed["code"], failed["message"]) == ("engine_failed", "its run has ended")


def test_a_client_that_ends_its_session_ends_the_scan(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        with client.websocket_connect(ADDRESS) as socket:
            begin(socket, keep="")
            send(socket, 0, None)
            until(socket, "result")
            socket.close(1000)
        happens(lambda: frames_of(tmp_path / "data")[-1] == {"end": True})
        with client.websocket_connect(ADDRESS) as socket:
            number = begin(socket, keep="")["job"]
            socket.send_json({"type": "video.done"})
            assert heard(socket)["type"] == "session.done"
        happens(lambda: job(client, number)["state"] == "stopped")


def test_a_run_that_dies_is_told(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client, client.websocket_connect(ADDRESS) as socket:
        begin(socket, keep="")
        send(socket, 0, None)
        until(socket, "result")
        (scan,) = DataFolder(tmp_path / "data").scans.iterdir()
        with (scan / "frames.jsonl").open("a") as file:
            file.write("no line\n")  # at which the program fails
        failed = until(socket, "error")[-1]
        assert failed["code"] == "engine_failed" and "code 1" in failed["message"]


def test_a_scan_that_a_kill_cut_off_can_be_read_again(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0) as client, client.websocket_connect(ADDRESS) as socket:
        begin(socket, keep="")
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
