"""Cameras and streams that stall, close, send garbage, change their size and come back; over HTTP as they really do."""

import contextlib
import http.server
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest

from stream_recon.app.sources.live import LIVE_LIMITS, LiveLimits, LiveReader
from stream_recon.app.sources.source import Source, open_source
from stream_recon.configs.errors import ConfigError, InputError
from tests.app.media import numbered_image

INTERVAL = 0.02


class Camera:
    """Stands for OpenCV's capture: sends what is in ``script``, an image, None for a failure, or seconds of silence."""

    def __init__(self, script: list[Any]) -> None:
        self.script, self.released = iter(script), False

    def get(self, _: int) -> float:
        return 20.0

    def read(self) -> tuple[bool, Any]:
        time.sleep(INTERVAL)
        item = next(self.script, None)
        if isinstance(item, float):
            time.sleep(item)
            item = next(self.script, None)
        return item is not None, item

    def release(self) -> None:
        self.released = True


def images(count: int, size: tuple[int, int] = (64, 48)) -> list[Any]:
    return [numbered_image(n % 31, size) for n in range(count)]


def lives(
    *scripts: list[Any] | None, reconnect: float = 5.0, limits: LiveLimits = LIVE_LIMITS
) -> tuple[LiveReader, list[float]]:
    """A reader whose source is opened once for each script (None: nothing there then), and when it was."""
    opened: list[float] = []
    rest = itertools.chain(scripts[1:], itertools.repeat(None))

    def reopen() -> Any:
        opened.append(time.monotonic())
        script = next(rest)
        if script is None:
            raise InputError("nothing answers")
        return Camera(script)

    assert scripts[0] is not None
    return LiveReader(Camera(scripts[0]), "cam", reopen, reconnect, limits), opened  # type: ignore[arg-type]


def test_a_bad_packet_costs_a_frame_and_not_the_stream() -> None:
    reader, _ = lives([*images(5), None, *images(5), None, None, *images(5)], reconnect=0.01)
    source = Source(reader)
    assert sum(1 for _ in source) + source.dropped == 15
    assert source.damaged >= 3 and source.segments == []


def test_a_source_that_comes_back_begins_a_new_segment() -> None:
    limits = LiveLimits(pause_s=0.3, retry_s=0.1)
    reader, opened = lives(images(10), None, None, None, images(10), reconnect=0.9, limits=limits)
    source = Source(reader)
    frames = list(source)
    assert len(opened) >= 4
    assert {frame.segment for frame in frames} == {0, 1}
    (segment,) = source.segments
    first = next(frame for frame in frames if frame.segment)
    assert segment.index == first.index == 10 and segment.timestamp == pytest.approx(first.timestamp)
    assert segment.reason.startswith("no frames from 0.")
    assert any("new segment" in warning for warning in source.warnings)
    assert source.lost and "did not come back within 0.9 s" in source.warnings[-1]


def test_a_short_hiccup_begins_no_new_segment() -> None:
    reader, _ = lives(images(10), images(10), reconnect=0.2)
    source = Source(reader)
    assert {frame.segment for frame in source} == {0} and source.segments == []


def test_a_stall_without_an_end_begins_a_new_segment_too() -> None:
    reader, _ = lives([*images(5), 0.6, *images(5)], reconnect=0.1, limits=LiveLimits(pause_s=0.3))
    source = Source(reader)
    assert {frame.segment for frame in source} == {0, 1}


def test_an_end_without_reconnecting_is_no_loss() -> None:
    for reader in (lives(images(5), images(5), reconnect=0)[0], LiveReader(Camera(images(5)), "cam")):  # type: ignore[arg-type]
        source = Source(reader)
        assert sum(1 for _ in source) + source.dropped == 5
        assert not source.lost and "cam ended after" in source.warnings[-1]


def test_a_source_that_opens_but_sends_nothing_is_lost() -> None:
    reader, opened = lives(images(5), *([[]] * 1000), reconnect=1.0)
    source = Source(reader)
    assert sum(1 for _ in source) + source.dropped == 5
    assert source.lost and 1 <= len(opened) < 20


def test_closing_ends_the_waiting_for_a_lost_source() -> None:
    reader, opened = lives(images(3), reconnect=60)
    source = Source(reader)
    next(source)
    while not opened:
        time.sleep(0.02)
    begun = time.monotonic()
    source.interrupt()
    assert list(source) == []
    while any(thread.name == "read cam" for thread in threading.enumerate()):
        assert time.monotonic() - begun < 3
        time.sleep(0.02)
    assert not source.lost


@pytest.mark.parametrize("size", [(128, 96), (48, 64), (100, 48)])
def test_another_size_is_made_the_first(size: tuple[int, int]) -> None:
    reader, _ = lives(images(10), images(10, size), reconnect=0.2)
    source = Source(reader)
    assert {frame.rgb.shape for frame in source} == {(48, 64, 3)}
    assert f"cam sends {size[0]}x{size[1]} instead of 64x48: cropped and resized" in source.warnings


def test_impossible_waits_are_refused() -> None:
    for reconnect in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="--reconnect"):
            open_source("http://127.0.0.1:9/", reconnect=reconnect)


Send = Callable[[bytes], None]


@pytest.fixture
def stream() -> Iterator[Any]:
    """An MJPEG server; its script is called with a function that sends one part, for each connection anew."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
            self.end_headers()

            def send(data: bytes) -> None:
                head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
                self.wfile.write(head.encode() + data + b"\r\n")
                time.sleep(0.03)

            number = self.server.connections  # type: ignore[attr-defined]
            self.server.connections += 1  # type: ignore[attr-defined]
            with contextlib.suppress(OSError):
                self.server.script(number, send)  # type: ignore[attr-defined]

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.connections = 0  # type: ignore[attr-defined]
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def jpeg(number: int, size: tuple[int, int] = (64, 48)) -> bytes:
    ok, data = cv2.imencode(".jpg", numbered_image(number % 31, size))
    assert ok
    return data.tobytes()


SHORT = LiveLimits(address_s=2.0, retry_s=0.2)


def received(server: Any, script: Callable[[int, Send], None], until: int, limits: LiveLimits = SHORT) -> Source:
    """A source over the server's stream, after so many frames."""
    server.script = script
    source = open_source(f"http://127.0.0.1:{server.server_port}/", reconnect=20.0, limits=limits)
    deadline = time.monotonic() + 30
    for frame in source:
        assert time.monotonic() < deadline and frame.rgb.shape == (48, 64, 3)
        if frame.index >= until:
            break
    source.close()
    return source


@pytest.mark.slow
def test_garbage_between_good_images(stream: Any) -> None:
    noise = np.random.default_rng(0).bytes(4000)

    def script(number: int, send: Send) -> None:
        for n in range(200):
            send(noise if n in (20, 21, 40) else jpeg(n)[:300] if n == 60 else jpeg(n))

    assert not received(stream, script, until=100).lost


def test_a_server_that_closes_and_is_there_again(stream: Any) -> None:
    def script(number: int, send: Send) -> None:
        for n in range(25 if number < 2 else 200):
            send(jpeg(n))

    source = received(stream, script, until=80)
    assert stream.connections >= 3 and not source.lost


def test_a_stall(stream: Any) -> None:
    def script(number: int, send: Send) -> None:
        for n in range(200):
            if number == 0 and n == 20:
                time.sleep(6)
            send(jpeg(n))

    source = received(stream, script, until=60, limits=replace(SHORT, pause_s=1.0))
    assert source.segments and not source.lost


def test_a_stream_that_is_gone_for_good_is_lost(stream: Any) -> None:
    def script(number: int, send: Send) -> None:
        for n in range(25 if number == 0 else 0):
            send(jpeg(n))

    stream.script = script
    source = open_source(f"http://127.0.0.1:{stream.server_port}/", reconnect=1.5, limits=SHORT)
    assert len(list(source)) > 2
    assert source.lost and "did not come back" in source.warnings[-1]


AT_THE_END = """
import sys, time
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source

class Slow:
    def __del__(self):
        time.sleep(0.5)

sys.modules["slow"] = Slow()  # Python's end takes its time, as it does with torch
source = open_source(sys.argv[1], FrameChoice(max_frames=3))
list(source)
source.close()
"""


def test_a_program_may_end_while_frames_come(stream: Any) -> None:
    """Python's end once tore down the thread that was in the midst of a read: exit code 134."""
    stream.script = lambda _, send: [send(jpeg(n)) for n in range(500)]
    address = f"http://127.0.0.1:{stream.server_port}/"
    ended = subprocess.run([sys.executable, "-c", AT_THE_END, address], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, b"")


STALLED = """
import sys, threading, time
from stream_recon.app.cli import main

def command():
    print("all is said")
    sys.exit(2)

threading.Thread(target=time.sleep, args=(60,), name="read camera 0", daemon=True).start()
main.app.command("datasets")(command)
sys.argv = ["stream-recon", "datasets"]
main.program()
"""


def test_a_read_that_hangs_is_not_taken_down_at_the_end() -> None:
    ended = subprocess.run([sys.executable, "-c", STALLED], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, b"all is said\n")


@pytest.mark.parametrize(("frames", "told"), [([numbered_image(3, (64, 48))] * 40, True), (images(40), False)])
def test_a_source_that_sends_one_picture_is_told(frames: list[Any], told: bool) -> None:
    reader, _ = lives(frames, reconnect=0.01)
    assert sum(1 for _ in Source(reader)) > 0
    assert any("same picture again and again" in line for line in reader.warnings) == told
