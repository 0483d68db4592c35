"""Sessions of ``/v1/stream``: order, acknowledgements, drops, resumes, refusals and bounds."""

import base64
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from starlette.testclient import TestClient

from stream_recon.app.web.limits import WebLimits
from tests.app.web.fake_session_engine import DEADLY, SIZE, STICKY, UNWANTED
from tests.app.web.serving import served

ADDRESS = "ws://127.0.0.1:8080/v1/stream"


def picture(size: tuple[int, int] = SIZE) -> str:
    return base64.b64encode(cv2.imencode(".jpg", np.zeros((*size, 3), np.uint8))[1].tobytes()).decode()


@contextmanager
def two_sessions(data: Path, **options: Any) -> Iterator[tuple[TestClient, Any, Any]]:
    """A server with two connected sockets."""
    with (
        served(data, **options) as client,
        client.websocket_connect(ADDRESS) as one,
        client.websocket_connect(ADDRESS) as other,
    ):
        yield client, one, other


def begin(socket: Any, **config: Any) -> dict[str, Any]:
    socket.send_json({"type": "session.config", **config})
    return heard(socket)


def heard(socket: Any) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(socket.receive_text())
    return message


def send(socket: Any, number: int, **more: Any) -> None:
    socket.send_json({"type": "video.frame", "frame": number, "time": number / 10, "data": picture(), **more})


def until(socket: Any, kind: str, **wanted: Any) -> list[dict[str, Any]]:
    """Messages up to the first of a kind with these values."""
    messages = [heard(socket)]
    while messages[-1]["type"] != kind or any(messages[-1].get(key) != value for key, value in wanted.items()):
        messages.append(heard(socket))
    return messages


def test_frames_are_acknowledged_and_results_come_in_order(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client, client.websocket_connect(ADDRESS) as socket:
        assert begin(socket, include=["depth"])["type"] == "session.created"
        messages = []
        for number in (3, 5, 8):
            send(socket, number)
            messages += until(socket, "result", frame=number)
        socket.send_json({"type": "video.done"})
        messages += until(socket, "session.done")
    assert [each["seq"] for each in messages] == list(range(1, len(messages) + 1))
    acknowledged = [(each["frame"], each["state"]) for each in messages if each["type"] == "video.ack"]
    assert acknowledged == [(3, "taken"), (5, "taken"), (8, "taken")]
    results = [each for each in messages if each["type"] == "result"]
    assert [(each["frame"], each["time"], each["pose"][0][3]) for each in results] == [
        (3, 0.3, 0),
        (5, 0.5, 1),
        (8, 0.8, 2),
    ]
    assert results[0]["state"] == "initialising" and results[2]["state"] == "tracking"
    assert results[0]["depth"]["shape"] == [4, 6] and "confidence" not in results[0]
    assert [each["frames"][0]["frame"] for each in messages if each["type"] == "revision"] == [3, 3]
    assert (messages[-1]["frames"], messages[-1]["dropped"]) == (3, 0)


def test_the_newest_frame_wins_where_the_engine_is_behind(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client, client.websocket_connect(ADDRESS) as socket:
        begin(socket, mapping="off")
        send(socket, 1)
        messages = until(socket, "video.ack")
        for number in range(2, 6):
            send(socket, number)
        socket.send_json({"type": "video.done"})
        messages += until(socket, "session.done")
    states = {each["frame"]: each["state"] for each in messages if each["type"] == "video.ack"}
    assert states == {1: "taken", 2: "dropped", 3: "dropped", 4: "dropped", 5: "taken"}
    assert [each["frame"] for each in messages if each["type"] == "result"] == [1, 5]
    assert messages[-1]["dropped"] == 3


def test_a_cut_session_is_resumed_without_loss_or_repetition(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        with client.websocket_connect(ADDRESS) as socket:
            created = begin(socket)
            send(socket, 0)
            last = until(socket, "result")[-1]["seq"]
            send(socket, 1)
            until(socket, "video.ack")  # which its client is said not to have
            socket.close(1001)
        with client.websocket_connect(ADDRESS) as socket:
            again = begin(socket, session_id=created["session_id"], received=last)
            assert again["session_id"] == created["session_id"] and again["last_frame"] == 1
            for number in (1, 2):  # what came before is left out
                send(socket, number, received=last)
            socket.send_json({"type": "video.done"})
            messages = until(socket, "session.done")
    assert [each["seq"] for each in messages] == list(range(last + 1, last + 1 + len(messages)))
    for kind in ("video.ack", "result"):
        assert [each["frame"] for each in messages if each["type"] == kind] == [1, 2]


def test_a_second_connection_takes_the_session_over(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client, client.websocket_connect(ADDRESS) as first:
        number = begin(first)["session_id"]
        with client.websocket_connect(ADDRESS) as second:
            begin(second, session_id=number, received=0)
            assert first.receive()["type"] == "websocket.close"
            send(second, 0)
            assert until(second, "result")[-1]["frame"] == 0


def test_what_is_not_understood_is_refused_by_name(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"type": "video.frame"}, "invalid_message", "session.config"),
        ({"type": 3}, "invalid_message", "type"),
        ({"session_id": "0" * 32, "received": 0}, "unknown_session", "no such session"),
        ({"camera": {"fx": 1}}, "invalid_config", "a camera has fx"),
        ({"camera": 5}, "invalid_config", "a camera has fx"),
        ({"preset": "/etc/passwd"}, "invalid_config", "preset"),
        ({"include": ["keys"]}, "invalid_config", "include"),
        ({"fps": 30, "mapping": "off"}, "invalid_config", "session.config has fps"),
    ]
    with served(tmp_path / "data") as client:
        for config, code, line in cases:
            with client.websocket_connect(ADDRESS) as socket:
                answer = begin(socket, **config)
                answer = answer if answer["type"] == "error" else heard(socket)
                assert answer["code"] == code and line in answer["message"], config


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"type": "video.frame", "frame": 0, "time": NaN}',
        "[" * 100_000,
        "[]",
        "7",
        '{"type": "video.frame", "frame": true}',
        '{"type": "x"}',
    ],
)
def test_messages_that_are_none_end_the_connection_in_a_line(tmp_path: Path, text: str) -> None:
    with served(tmp_path / "data") as client, client.websocket_connect(ADDRESS) as socket:
        begin(socket)
        socket.send_text(text)
        assert heard(socket)["code"] == "invalid_message"


def test_a_bad_frame_is_refused_and_the_session_goes_on(tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [
        {"data": "/etc/passwd"},
        {"data": base64.b64encode(b"GIF89a").decode()},
        {"data": 7},
        {"data": picture((32, 32))},
        {"data": picture(UNWANTED)},
        {"time": "soon"},
        {"time": True},
        {"format": "png"},
        {"format": "rgb", "width": 64, "height": 64, "data": base64.b64encode(bytes(100)).decode()},
        {"format": "rgb", "width": 64, "height": True},
    ]
    with served(tmp_path / "data") as client, client.websocket_connect(ADDRESS) as socket:
        begin(socket)
        for number, more in enumerate(cases):
            send(socket, number, **more)
            refused = until(socket, "error")[-1]
            assert (refused["code"], refused["frame"]) == ("invalid_frame", number), more
        send(socket, 99, format="rgb", width=64, height=96, data=base64.b64encode(bytes(64 * 96 * 3)).decode())
        assert until(socket, "result")[-1]["frame"] == 99


def test_a_session_too_many_is_told_when_to_ask_again(tmp_path: Path) -> None:
    with served(tmp_path / "data", limits=WebLimits(sessions=1)) as client:
        with client.websocket_connect(ADDRESS) as first:
            begin(first)
            assert client.get("/readyz").status_code == 503
            with client.websocket_connect(ADDRESS) as second:
                refused = begin(second)
                assert refused["code"] == "busy" and refused["retry_after"] > 0
            first.close(1000)
        with client.websocket_connect(ADDRESS) as third:  # an orderly end leaves room at once
            assert begin(third)["type"] == "session.created"


def test_a_client_that_confirms_nothing_is_cut_and_may_resume(tmp_path: Path) -> None:
    with served(tmp_path / "data", limits=WebLimits(unread=6)) as client:
        with client.websocket_connect(ADDRESS) as socket:
            number, last = begin(socket)["session_id"], {}
            for frame in range(20):
                send(socket, frame)
                last = heard(socket)
                while last["type"] not in ("result", "error"):
                    last = heard(socket)
                if last["type"] == "error":
                    break
            assert last["code"] == "unread"
        with client.websocket_connect(ADDRESS) as socket:
            begin(socket, session_id=number, received=7)
            send(socket, 20)
            assert until(socket, "video.ack", frame=20)


def test_sessions_go_on_when_their_engine_is_killed(tmp_path: Path) -> None:
    """One is killed at work, one between two frames: no frame is lost or told twice, and segments are new."""
    with two_sessions(tmp_path / "data") as (client, busy, idle):
        begin(busy, mapping="off")
        begin(idle)
        heard_of: dict[str, list[dict[str, Any]]] = {"busy": [], "idle": []}
        engines = set()
        for at in range(0, 9, 3):
            for number in (at, at + 1):
                send(idle, number, time=None)
                heard_of["idle"] += until(idle, "result", frame=number)
            send(busy, at)
            heard_of["busy"] += until(busy, "result", frame=at)
            send(busy, at + 1)
            heard_of["busy"] += until(busy, "video.ack", frame=at + 1)
            send(busy, at + 2)  # which waits
            engines.add(int(heard_of["idle"][-1]["pose"][1][3]))
            os.kill(int(heard_of["idle"][-1]["pose"][1][3]), signal.SIGKILL)
            heard_of["busy"] += until(busy, "result", frame=at + 2)
        for name, socket in (("busy", busy), ("idle", idle)):
            socket.send_json({"type": "video.done"})
            heard_of[name] += until(socket, "session.done")
        assert figure(client, "engine_losses_total") == len(engines) == 3
    for name, frames in (("busy", list(range(9))), ("idle", [0, 1, 3, 4, 6, 7])):
        messages = heard_of[name]
        assert [each["seq"] for each in messages] == list(range(1, len(messages) + 1))
        assert "error" not in {each["type"] for each in messages}
        results = [each for each in messages if each["type"] == "result"]
        assert [each["frame"] for each in results] == frames
        assert [each["frame"] for each in messages if each["type"] == "video.ack"] == frames
        engine_of = {each["segment"]: each["pose"][1][3] for each in results}
        assert list(engine_of) == list(range(len(engine_of)))
        assert all(each["pose"][1][3] == engine_of[each["segment"]] for each in results)
        times = [each["time"] for each in results]
        assert times == sorted(set(times))
        assert (messages[-1]["frames"], messages[-1]["dropped"]) == (len(frames), 0)


def test_sessions_go_on_when_their_engine_hangs(tmp_path: Path) -> None:
    limits = WebLimits(engine_s=1, housekeeping_s=0.1)
    with two_sessions(tmp_path / "data", limits=limits) as (client, busy, idle):
        begin(busy, mapping="off")
        begin(idle)
        send(idle, 0)
        engine = int(until(idle, "result")[-1]["pose"][1][3])
        send(busy, 0)
        until(busy, "video.ack", frame=0)
        os.kill(engine, signal.SIGSTOP)
        for number in (1, 2):
            send(busy, number)
        messages = until(busy, "result", frame=2)
        assert [each["frame"] for each in messages if each["type"] == "result"] == [0, 2]
        send(idle, 1)
        last = until(idle, "result")[-1]
        assert (last["frame"], last["segment"]) == (1, 1) and last["pose"][1][3] != engine
        assert figure(client, "engine_losses_total") == 1
    with pytest.raises(ProcessLookupError):
        os.kill(engine, 0)


def test_an_end_is_told_once_also_where_the_engine_dies_at_it_or_after_it(tmp_path: Path) -> None:
    with two_sessions(tmp_path / "data") as (_, ending, other):
        begin(ending, mapping="off")
        begin(other)
        send(ending, 0)
        until(ending, "result")
        ending.send_json({"type": "video.done"})
        for number in range(2):
            send(other, number)
            engine = int(until(other, "result", frame=number)[-1]["pose"][1][3])
            os.kill(engine, signal.SIGKILL)
            if number == 0:
                told = until(ending, "session.done")
        send(other, 2)
        until(other, "result", frame=2)
        ending.send_json({"type": "none"})
        assert heard(ending)["code"] == "invalid_message"
        assert (told[-1]["frames"], told[-1]["dropped"]) == (1, 0)


def test_a_frame_that_kills_engines_ends_its_session_alone(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client, client.websocket_connect(ADDRESS) as other:
        begin(other, mapping="off")
        send(other, 0)
        until(other, "video.ack")
        with client.websocket_connect(ADDRESS) as socket:
            begin(socket)
            send(socket, 0, data=picture(DEADLY))
            assert until(socket, "error")[-1]["code"] == "engine_failed"
        send(other, 1)
        assert [each["frame"] for each in until(other, "result", frame=1) if each["type"] == "result"] == [0, 1]
        assert figure(client, "engine_losses_total") == 2
        assert figure(client, "sessions") == 1


def test_a_frame_at_which_engines_hang_ends_its_session_alone(tmp_path: Path) -> None:
    limits = WebLimits(engine_s=1, housekeeping_s=0.1)
    with served(tmp_path / "data", limits=limits) as client, client.websocket_connect(ADDRESS) as other:
        begin(other)
        send(other, 0)
        until(other, "result")
        with client.websocket_connect(ADDRESS) as socket:
            begin(socket)
            send(socket, 0, data=picture(STICKY))
            failed = until(socket, "error")[-1]
            assert (failed["code"], failed["message"]) == ("engine_failed", "the engine has not answered for 1 s")
        send(other, 1)
        assert until(other, "result", frame=1)
        assert figure(client, "engine_losses_total") == 2


@pytest.mark.slow
def test_a_session_at_which_the_engine_hangs_alone_ends_while_others_go_on(tmp_path: Path) -> None:
    limits = WebLimits(engine_s=0.8, housekeeping_s=0.1)
    with two_sessions(tmp_path / "data", limits=limits) as (client, other, socket):
        begin(other)
        begin(socket)
        send(other, 0)
        until(other, "result")
        send(socket, 0, data=picture(STICKY))
        number = 0
        while figure(client, "engine_losses_total") < 2:
            number += 1
            send(other, number)
            assert until(other, "video.ack", frame=number)
            time.sleep(0.05)
        assert until(socket, "error")[-1]["code"] == "engine_failed"
        send(other, number + 1)
        assert until(other, "result", frame=number + 1)


def test_an_engine_that_cannot_work_is_told(tmp_path: Path) -> None:
    said = 'print(\'{"message": "no weights"}\')'
    with served(tmp_path / "data", engine=(sys.executable, "-c", said)) as client:
        for _ in range(2):
            with client.websocket_connect(ADDRESS) as socket:
                begin(socket)
                failed = until(socket, "error")[-1]
                assert (failed["code"], failed["message"]) == ("engine_failed", "no weights")
    with (
        served(tmp_path / "data", engine=(str(tmp_path / "none"),)) as client,
        client.websocket_connect(ADDRESS) as socket,
    ):
        assert begin(socket)["code"] == "busy"


def test_engines_that_die_without_a_result_are_not_started_for_ever(tmp_path: Path) -> None:
    said = "import json; s = json.loads(input())['session']; print(json.dumps({'type': 'ready', 'session': s}))"
    with served(tmp_path / "data", engine=(sys.executable, "-c", said)) as client:
        with client.websocket_connect(ADDRESS) as socket:
            begin(socket)
            assert until(socket, "error")[-1]["code"] == "engine_failed"
        assert figure(client, "engine_losses_total") < 20


def test_a_session_that_nobody_uses_is_closed(tmp_path: Path) -> None:
    limits = WebLimits(scan_idle_s=0.05, housekeeping_s=0.05)
    with served(tmp_path / "data", limits=limits) as client, client.websocket_connect(ADDRESS) as socket:
        begin(socket)
        assert socket.receive() == {"type": "websocket.close", "code": 1001, "reason": ""}
        assert figure(client, "sessions") == 0


def test_random_messages_are_answered_by_code_and_leave_the_server_as_it_was(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    kinds = ["session.config", "video.frame", "video.done", "session.received", "session.close", "ready"]
    names = ["frame", "time", "data", "format", "width", "height", "received", "session", "session_id", "camera"]
    values = [None, True, -1, 0, 7, 1e300, 2**64, "", "jpeg", "rgb", "=" * 5, picture(), [], {}, [[]], {"fx": 1}]
    with served(tmp_path / "data", limits=WebLimits(sessions=100)) as client:
        for _ in range(60):
            with client.websocket_connect(ADDRESS) as socket:
                begin(socket)
                message = {"type": kinds[random.integers(len(kinds))]}
                message |= {names[k]: values[random.integers(len(values))] for k in random.integers(len(names), size=4)}
                socket.send_json(message)
                socket.send_json({"type": "session.config"})  # which is refused here
                answer = until(socket, "error", code="invalid_message")
                assert {each["type"] for each in answer} <= {"video.ack", "error", "result", "session.done"}, message
                socket.close(1000)
        with client.websocket_connect(ADDRESS) as socket:
            begin(socket)
            send(socket, 0)
            assert until(socket, "result")
        assert figure(client, 'refusals_total{code="engine_failed"}') == 0


def test_a_session_that_nobody_resumes_ends(tmp_path: Path) -> None:
    with served(tmp_path / "data", limits=WebLimits(resume_s=0.05, housekeeping_s=0.05)) as client:
        with client.websocket_connect(ADDRESS) as socket:
            number = begin(socket)["session_id"]
            socket.close(1001)
        while figure(client, "sessions"):
            pass
        with client.websocket_connect(ADDRESS) as socket:
            assert begin(socket, session_id=number, received=0)["code"] == "unknown_session"


def figure(client: TestClient, name: str) -> float:
    """A figure of /metrics, by its name and labels."""
    lines = client.get("/metrics").text.splitlines()
    return float(next((line.split()[-1] for line in lines if line.startswith(f"stream_recon_{name} ")), 0))


def test_metrics_agree_with_what_the_client_saw(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        with client.websocket_connect(ADDRESS) as socket:
            begin(socket)
            for number in range(4):
                send(socket, number)
                until(socket, "result")
            assert (figure(client, "sessions"), figure(client, "sessions_total")) == (1, 1)
        assert figure(client, 'frames_total{state="taken"}') == figure(client, 'messages_total{type="result"}') == 4
        assert figure(client, "ack_seconds_count") == figure(client, "result_seconds_count") == 4
        assert 0 < figure(client, 'ack_seconds{quantile="0.5"}') <= figure(client, 'ack_seconds{quantile="0.95"}')
        assert figure(client, 'resident_bytes{process="server"}') > 1e7
        client.get("/api/jobs/7")
        assert figure(client, 'refusals_total{code="404"}') == 1
