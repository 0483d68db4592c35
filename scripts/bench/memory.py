"""Host memory of the whole command from 200 to 2,000 frames: the sample played forth and back."""

import subprocess
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from bench.command import command, resident_mib
from bench.films import frame_at, sample_frames, write_film
from bench.table import header, row

MARKS = (200, 500, 1000, 1500, 2000)


def count_results(out: Path) -> int:
    trajectory = out / "trajectory.txt"
    return sum(1 for _ in trajectory.open()) if trajectory.is_file() else 0


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, default=2000)


def run(options: Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        video, out = Path(folder) / "long.mp4", Path(folder) / "out"
        images = sample_frames(None)
        shown = (frame_at(images, index) for index in range(options.frames))
        write_film(video, shown, (images[0].shape[1], images[0].shape[0]))
        words = command(video, "-o", out, "--port", 0)
        readings: list[tuple[int, float]] = []
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            while process.poll() is None:
                time.sleep(1)
                readings.append((count_results(out), resident_mib(process.pid)))
        if process.returncode:
            raise SystemExit(f"the program failed with exit code {process.returncode}")
        header("frames", "MiB")
        for mark in MARKS:
            reached = [memory for count, memory in readings if count >= mark * 0.99]
            if mark <= options.frames and reached:
                row(mark, f"{reached[0]:.0f}")
