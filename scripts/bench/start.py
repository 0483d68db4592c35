"""Seconds from the command to its first line, first pose and first points, and refinement after a stream.

In parentheses: CPU seconds of the process up to then. First points are those of the first depth file: the page receives
points of the same results.
"""

import os
import subprocess
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from statistics import median
from threading import Thread
from typing import IO

from bench import SAMPLE
from bench.command import command, cpu_seconds, run_program
from bench.table import header, row

POLL_SECONDS = 0.02
"""Time between two looks at the result folder."""
Event = tuple[float, float]
"""Seconds since the start, and CPU seconds of the process."""


def start_times(video: Path, out: Path) -> dict[str, Event]:
    """Times until the first line, and until the first pose and depth map of the result are written."""
    words = command(video, "-o", out, "--no-viewer", "--no-mesh", "--max-frames", 24, "--mapping", "stream")
    times: dict[str, Event] = {}
    begin = time.perf_counter()
    # Output into a pipe would else wait in a buffer.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment
    ) as process:

        def note(name: str) -> None:
            times.setdefault(name, (time.perf_counter() - begin, cpu_seconds(process.pid)))

        def note_first_line(lines: IO[str]) -> None:
            note(f"first line, '{next(lines, '').strip()}'")
            for _ in lines:
                pass

        assert process.stdout is not None
        reader = Thread(target=note_first_line, args=(process.stdout,))
        reader.start()
        while process.poll() is None:
            trajectory = out / "trajectory.txt"
            if "first pose" not in times and trajectory.is_file() and trajectory.stat().st_size:
                note("first pose")
            if "first points" not in times and (out / "depth" / "000000.npz").is_file():
                note("first points")
            time.sleep(POLL_SECONDS)
        reader.join()
    if process.returncode:
        raise SystemExit(process.returncode)
    return times


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("video", type=Path, nargs="?", default=SAMPLE)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--frames", type=int, default=10_000, help="frames of the run that is refined; 0: none")


def run(options: Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        every_run = [start_times(options.video, Path(folder) / str(number)) for number in range(options.runs)]
        header("what", "seconds")
        for name in every_run[0]:
            wall, cpu = (sorted(times[name][which] for times in every_run if name in times) for which in (0, 1))
            row(name, f"{median(wall):.2f} s ({wall[0]:.2f} to {wall[-1]:.2f}; CPU {median(cpu):.2f})")
        if options.frames:
            words = [options.video, "--no-viewer", "--no-mesh", "--dense", "off", "--max-frames", options.frames]
            record = run_program(*words, out=Path(folder) / "refined").record
            seconds, frames = sum(record["refinement"]["seconds"].values()), record["frames"]["reconstructed"]
            row(f"refinement after a stream of {frames} frames", f"{seconds:.1f} s")
            row("refinement, a frame", f"{1e3 * seconds / frames:.0f} ms")
