"""A camera behind a real RTSP server (GStreamer's), where Debian's gir1.2-gst-rtsp-server-1.0 is installed."""

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_recon.app.core.types import Frame
from stream_recon.app.sources.live import LiveLimits
from stream_recon.app.sources.source import Source, open_source

SYSTEM_PYTHON = Path("/usr/bin/python3")
SERVER = Path(__file__).parent / "rtsp_server.py"
NEEDED = "import gi; gi.require_version('GstRtspServer', '1.0'); from gi.repository import GstRtspServer, Gst"


def is_there() -> bool:
    if not SYSTEM_PYTHON.exists():
        return False
    return subprocess.run([SYSTEM_PYTHON, "-c", NEEDED], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not is_there(), reason="needs Debian's gir1.2-gst-rtsp-server-1.0")


class Server:
    """Runs until closed; may be started again on the same port."""

    def __init__(self, port: int) -> None:
        self.address = f"rtsp://127.0.0.1:{port}/camera"
        self._process = subprocess.Popen(
            [SYSTEM_PYTHON, SERVER, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None and self._process.stdout.readline() == "listening\n"

    def say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Watched:
    """Takes frames in a thread, as a run does."""

    def __init__(self, source: Source) -> None:
        self.source, self.frames = source, list[Frame]()
        self.thread = threading.Thread(target=self._take, daemon=True)
        self.thread.start()

    def _take(self) -> None:
        for frame in self.source:
            self.frames.append(frame)

    def wait_for(self, count: int) -> None:
        """So many more frames."""
        goal, deadline = len(self.frames) + count, time.monotonic() + 60
        while len(self.frames) < goal:
            assert time.monotonic() < deadline and self.thread.is_alive(), self.source.warnings
            time.sleep(0.02)


@contextlib.contextmanager
def watched(server: Server, reconnect: float) -> Iterator[Watched]:
    with open_source(server.address, reconnect=reconnect, limits=LiveLimits(pause_s=1.0, retry_s=0.3)) as source:
        taken = Watched(source)
        try:
            yield taken
        finally:
            source.interrupt()
            taken.thread.join(60)


def test_it_stalls_closes_and_comes_back_after_some_seconds() -> None:
    port = free_port()
    server = Server(port)
    try:
        with watched(server, reconnect=60) as camera:
            camera.wait_for(5)
            assert camera.frames[0].rgb.shape == (240, 320, 3) and camera.source.live
            server.say("stall")
            time.sleep(2.5)
            server.say("go")
            camera.wait_for(5)
            assert [segment.reason[:14] for segment in camera.source.segments] == ["no frames from"]
            server.say("close")
            camera.wait_for(5)
            server.kill()
            time.sleep(2.5)
            server = Server(port)
            camera.wait_for(5)
            segments = camera.source.segments
            assert len(segments) >= 2 and camera.frames[-1].segment == len(segments)
            indices = [frame.index for frame in camera.frames]
            assert indices == sorted(set(indices)) and not camera.source.lost
    finally:
        server.kill()


def test_one_that_does_not_come_back_is_lost() -> None:
    server = Server(free_port())
    try:
        with watched(server, reconnect=1.5) as camera:
            camera.wait_for(5)
            server.kill()
            camera.thread.join(60)
            assert not camera.thread.is_alive() and camera.source.lost
            assert "did not come back within 1.5 s" in camera.source.warnings[-1]
    finally:
        server.kill()
