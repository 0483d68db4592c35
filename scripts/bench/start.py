"""Seconds from the command to its first line, first pose and first points, and refinement after a stream.

In parentheses: CPU seconds of the process up to then. First points are those of the first depth file: the page receives
points of the same results.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from statistics import median
from threading import Thread
from typing import IO

from bench import SAMPLE

POLL_SECONDS = 0.02
"""Time between two looks at the result folder."""
Event = tuple[float, float]
"""Seconds since the start, and CPU seconds of the process."""


def cpu_seconds(process: int) -> float:
    """User and system time of a process; NaN where the system does not tell it."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_times(video: Path, out: Path) -> dict[str, Event]:
    """Times until the first line, and until the first pose and depth map of the result are written."""
    command = [sys.executable, "-m", "stream_recon", str(video), "-o", str(out), "--no-viewer", "--no-mesh"]
    times: dict[str, Event] = {}
    begin = time.perf_counter()
    # Output into a pipe would else wait in a buffer.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, "--max-frames", "24", "--mapping", "stream"],
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment,
    ) as process:  # fmt: skip

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


def refinement(video: Path, out: Path, frames: int) -> tuple[float, int]:
    """Seconds of offline refinement after the online back end, and frames."""
    command = [sys.executable, "-m", "stream_recon", str(video), "-o", str(out), "--no-viewer", "--no-mesh"]
    options = ["--dense", "off", "--max-frames", str(frames)]
    subprocess.run([*command, *options], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    record = json.loads((out / "run.json").read_text())
    seconds = sum(record["refinement"]["seconds"].values())
    return seconds, record["frames"]["reconstructed"]


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("video", type=Path, nargs="?", default=SAMPLE)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--frames", type=int, default=10_000, help="frames of the run that is refined; 0: none")


def run(options: Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = [start_times(options.video, Path(folder) / str(number)) for number in range(options.runs)]
        print("| what | seconds |\n|---|---|")
        for name in found[0]:
            wall, cpu = (sorted(times[name][which] for times in found if name in times) for which in (0, 1))
            print(f"| {name} | {median(wall):.2f} s ({wall[0]:.2f} to {wall[-1]:.2f}; CPU {median(cpu):.2f}) |")
        if options.frames:
            seconds, frames = refinement(options.video, Path(folder) / "refined", options.frames)
            print(f"| refinement after a stream of {frames} frames | {seconds:.1f} s |")
            print(f"| refinement, a frame | {1e3 * seconds / frames:.0f} ms |")
