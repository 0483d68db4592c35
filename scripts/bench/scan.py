"""A phone's scan without a browser: rate, delay from capture to pose, and processor time of server and run.

The phone plays a video by the clock and sends the newest frame whenever the last one is acknowledged.
"""

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from bench import SAMPLE

WARM_FRAMES = 12
"""First frames that are not counted: the network estimates several of them jointly."""


def jpegs(video: Path, width: int) -> list[bytes]:
    """The frames of a video, forth and back, as JPEG files of a width."""
    capture, frames = cv2.VideoCapture(str(video)), []
    while (step := capture.read())[0]:
        height = round(step[1].shape[0] * width / step[1].shape[1])
        image = cv2.resize(step[1], (width, height), interpolation=cv2.INTER_AREA)
        frames.append(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 80])[1].tobytes())
    return [*frames, *frames[::-1]]


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def child_of(process: int) -> int:
    """The run that a server has started."""
    return int(Path(f"/proc/{process}/task/{process}/children").read_text().split()[0])


class Phone:
    """Sends the newest frame whenever the last one is acknowledged, and notes when each has a pose."""

    def __init__(self, socket: Connection, frames: list[bytes], fps: float) -> None:
        self._socket, self._frames, self._fps = socket, frames, fps
        self._start = time.time()
        self._captured: dict[int, float] = {}
        self.posed = -1
        self.acknowledged = -1
        self.delays_ms: list[float] = []

    def send(self) -> None:
        """Send one frame, and wait for its acknowledgement."""
        now = time.time()
        number = int((now - self._start) * self._fps) % len(self._frames)
        self._captured[self.acknowledged + 1] = now
        self._socket.send(struct.pack("<d", 1000 * now) + self._frames[number])
        while True:
            answer: dict[str, Any] = json.loads(self._socket.recv())
            if "error" in answer:
                raise SystemExit(answer["error"])
            for index in range(self.posed + 1, answer.get("posed", -1) + 1):
                self.delays_ms.append(1000 * (time.time() - self._captured[index]))
            self.posed = max(self.posed, answer.get("posed", -1))
            if "ack" in answer:
                self.acknowledged = answer["ack"]
                return


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--video", type=Path, default=SAMPLE)
    parser.add_argument("--fps", type=float, default=20.0, help="rate at which the video is played")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--seconds", type=float, default=30.0)


def run(options: Namespace) -> None:
    frames = jpegs(options.video, options.width)
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "stream_recon", "serve", "--data", folder, "--port", "0"]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        found = re.search(r":(\d+)/", server.stdout.readline())
        assert found is not None
        address = f"127.0.0.1:{found[1]}/api/scans"
        request = urllib.request.Request(f"http://{address}", b"{}", {"X-Stream-Recon": "1"}, method="POST")
        with urllib.request.urlopen(request) as answer:
            number = json.load(answer)["id"]
        try:
            with connect(f"ws://{address}/{number}/stream", max_size=None) as socket:
                report(Phone(socket, frames, options.fps), server.pid, options.seconds)
        finally:
            server.terminate()
            server.wait()


def report(phone: Phone, server: int, seconds: float) -> None:
    """Scan for a time after the warm-up, and print the figures."""
    while phone.posed < WARM_FRAMES:
        phone.send()
    phone.delays_ms.clear()
    processes = {"server": server, "run": child_of(server)}
    before = {name: processor_seconds(process) for name, process in processes.items()}
    first, begun = phone.acknowledged, time.monotonic()
    while time.monotonic() - begun < seconds:
        phone.send()
    count, wall = phone.acknowledged - first, time.monotonic() - begun
    p50, p95 = np.percentile(phone.delays_ms, (50, 95))
    print(f"| frames acknowledged | {count / wall:.1f} frames/s |")
    print(f"| delay from capture to pose, p50, p95 | {p50:.0f}, {p95:.0f} ms |")
    for name, process in processes.items():
        each = 1000 * (processor_seconds(process) - before[name]) / max(count, 1)
        print(f"| processor time a frame, {name} | {each:.0f} ms |")
