"""Memory, files, threads, disk and speed of a very long run.

The engine is a fake that costs almost nothing. All else is under load: source, discontinuity detector, writer with
checkpoints, cloud, viewer, and a page that reads everything it is sent.
"""

import os
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from bench.command import beside, resident_mib
from bench.table import header, row
from stream_recon.app.core.types import FrameEngine, FrameResult, PreparedFrame
from stream_recon.app.result.disk_limit import DiskLimit
from stream_recon.app.result.run_record import RunInfo
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.listeners import Progress, RunObserver
from stream_recon.app.run.pipeline import reconstruct
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.readers import Reader
from stream_recon.app.sources.source import Source
from stream_recon.app.viewer.viewer import Viewer
from tests.app.fake_engine import FakeEngine, fake_preset, pose_at

STEADY_FROM = 2000
"""Frames after which memory, files and threads must stay constant: caches are full."""
SPAN = 5000
"""Frames at the beginning and at the end whose rates are compared."""
LAP = 600
"""Frames after which the camera is where it was."""
PAGE = """
import sys, msgspec, viser
from websockets.sync.client import connect
camera = {"type": "ViewerCameraMessage", "wxyz": [1, 0, 0, 0], "position": [0, 0, 0], "fov": 1.0, "near": 0.01,
          "far": 1000, "image_height": 600, "image_width": 800, "look_at": [0, 0, 1], "up_direction": [0, -1, 0]}
with connect(f"ws://127.0.0.1:{sys.argv[1]}", subprotocols=[f"viser-v{viser.__version__}"], max_size=None,
             compression=None) as page:
    page.send(msgspec.msgpack.encode(camera))
    for message in page:
        pass
"""


class Carousel(Reader):
    """Crops of one picture, along a circle, for ever."""

    def __init__(self) -> None:
        super().__init__("carousel", 30.0)
        noise = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
        self._picture = np.ascontiguousarray(np.repeat(np.repeat(noise, 8, 0), 8, 1))
        self._index = -1

    def grab(self) -> tuple[int, float] | None:
        self._index += 1
        return self._index, self._index / self.rate

    def retrieve(self) -> NDArray[np.uint8] | None:
        angle = 2 * np.pi * self._index / LAP
        down, right = int(90 * (1 + np.sin(angle))), int(120 * (1 + np.cos(angle)))
        return self._picture[down : down + 240, right : right + 320]

    def close(self) -> None:
        pass


class LapEngine(FakeEngine):
    """Results of a camera that comes back to where it was."""

    def push(self, frame: PreparedFrame) -> list[FrameResult]:
        return [replace(r, T_world_camera=pose_at(abs(r.index % LAP - LAP // 2))) for r in super().push(frame)]


@dataclass(frozen=True)
class Reading:
    """Resources of the process after a number of frames."""

    frames: int
    seconds: float
    resident: float
    files: int
    threads: int
    disk_bytes: int


def _reading(frames: int, seconds: float, folder: Path) -> Reading:
    with os.scandir(folder) as entries:
        disk = sum(entry.stat().st_size for entry in entries if entry.is_file())
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # it changes while it is listed
    return Reading(frames, seconds, resident_mib(), files, threading.active_count(), disk)


def _report(readings: list[Reading], page_lives: bool) -> None:
    header("frame", "resident MiB", "open files", "threads", "bytes a frame without depth")
    for n, r in enumerate(readings):
        if n in (0, 1, 6) or (n + 1) % max(1, len(readings) // 10) == 0:
            row(r.frames, f"{r.resident:.0f}", r.files, r.threads, f"{r.disk_bytes / r.frames:.0f}")
    steady = [r for r in readings if r.frames >= STEADY_FROM]
    if len(steady) > 1:
        first, last = steady[0], steady[-1]
        early, late = (_rate(readings, at) for at in (STEADY_FROM, last.frames - SPAN))
        row(
            f"since frame {first.frames}",
            f"{last.resident - first.resident:+.0f} MiB",
            f"{last.files - first.files:+d}",
            f"{last.threads - first.threads:+d}",
            f"the last {SPAN} frames at {100 * late / early:.1f} % of the rate of the first after {STEADY_FROM}; the "
            f"page was {'connected to the end' if page_lives else 'lost'}",
        )


def _rate(readings: list[Reading], begin: int) -> float:
    """Frames a second in the ``SPAN`` frames from ``begin``, or in what there is of them."""
    span = [r for r in readings if begin <= r.frames <= begin + SPAN + 500]
    return (span[-1].frames - span[0].frames) / (span[-1].seconds - span[0].seconds) if len(span) > 1 else float("nan")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, default=100_000)


def run(options: Namespace) -> None:
    """Print readings along the way, and how the end compares with the beginning."""
    readings: list[Reading] = []
    with (
        tempfile.TemporaryDirectory() as temporary,
        Viewer(fake_preset().points, port=0, token=False) as viewer,
        beside([sys.executable, "-c", PAGE, str(viewer.port)]) as page,
    ):
        folder, begin = Path(temporary) / "out", time.monotonic()

        class Observer(RunObserver):
            @property
            def paused(self) -> bool:
                return viewer.paused

            def on_progress(self, progress: Progress) -> None:
                if progress.frames >= 1000 * (len(readings) + 1):
                    readings.append(_reading(progress.frames, time.monotonic() - begin, folder))

        engine, source = cast(FrameEngine, LapEngine()), Source(Carousel(), FrameChoice(max_frames=options.frames))
        info = RunInfo.from_engine(engine, "carousel", {})
        writer = ResultWriter(folder, info, limit=DiskLimit("keyframes", 2 * 10**9))
        summary = reconstruct(source, engine, writer, [viewer], observer=Observer())
        _report(readings, page.poll() is None)
        row("delay from the engine's start to its result, ms: p50, p95", summary.latency_p50_ms, summary.latency_p95_ms)
