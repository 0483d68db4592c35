"""Host memory of the whole command from 200 to 2,000 frames."""

import re
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

import cv2
import numpy as np

from bench import SAMPLE


def bench_memory(frames: int) -> None:
    """The sample played forth and back to ``frames`` frames; resident memory of the program along the way."""
    with tempfile.TemporaryDirectory() as folder:
        video = Path(folder) / "long.mp4"
        write_long_video(video, frames)
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "stream_recon", str(video), "-o", str(out), "--port", "0"]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        readings: list[tuple[int, float]] = []
        while process.poll() is None:
            time.sleep(1)
            readings.append((count_results(out), resident_mebibytes(process.pid)))
        if process.returncode:
            raise SystemExit(f"the program failed with exit code {process.returncode}")
        for mark in (200, 500, 1000, 1500, 2000):
            reached = [memory for count, memory in readings if count >= mark * 0.99]
            if mark <= frames and reached:
                print(f"| host memory at frame {mark} | {reached[0]:.0f} MiB |")


def write_long_video(path: Path, frames: int) -> None:
    capture = cv2.VideoCapture(str(SAMPLE))
    images = []
    while True:
        ok, image = capture.read()
        if not ok:
            break
        images.append(image)
    cycle = [*range(len(images)), *range(len(images) - 2, 0, -1)]
    height, width = images[0].shape[:2]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 30, (width, height))
    for index in range(frames):
        writer.write(images[cycle[index % len(cycle)]])
    writer.release()


def count_results(out: Path) -> int:
    trajectory = out / "trajectory.txt"
    return sum(1 for _ in trajectory.open()) if trajectory.is_file() else 0


def resident_mebibytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status")
    match = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.is_file() else None
    return int(match[1]) / 1024 if match else float(np.nan)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, default=2000)


def run(options: Namespace) -> None:
    bench_memory(options.frames)
