"""Seconds from the command to its first line, first pose and first points, and refinement after a stream.

First points are those of the first depth file: the page receives points of the same results.
"""

import json
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


def start_times(video: Path, out: Path) -> dict[str, float]:
    """Seconds until the first line, and until the first pose and depth map of the result are written."""
    command = [sys.executable, "-m", "stream_recon", str(video), "-o", str(out), "--no-viewer", "--mapping", "off"]
    times: dict[str, float] = {}
    begin = time.perf_counter()

    def note_first_line(lines: IO[str]) -> None:
        for line in lines:
            times.setdefault(f"first line, '{line.strip()}'" if not times else "lines", time.perf_counter() - begin)

    with subprocess.Popen(
        [*command, "--max-frames", "24", "--no-mesh"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        reader = Thread(target=note_first_line, args=(process.stdout,))
        reader.start()
        while process.poll() is None:
            trajectory = out / "trajectory.txt"
            if "first pose" not in times and trajectory.is_file() and trajectory.stat().st_size:
                times["first pose"] = time.perf_counter() - begin
            if "first points" not in times and (out / "depth" / "000000.npz").is_file():
                times["first points"] = time.perf_counter() - begin
            time.sleep(POLL_SECONDS)
        reader.join()
    if process.returncode:
        raise SystemExit(process.returncode)
    times.pop("lines", None)
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
    parser.add_argument("--frames", type=int, default=10_000, help="frames of the run that is refined")


def run(options: Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = [start_times(options.video, Path(folder) / str(number)) for number in range(options.runs)]
        print("| what | seconds |\n|---|---|")
        for name in found[0]:
            each = sorted(times[name] for times in found if name in times)
            print(f"| {name} | {median(each):.2f} s ({each[0]:.2f} to {each[-1]:.2f}) |")
        seconds, frames = refinement(options.video, Path(folder) / "refined", options.frames)
        print(f"| refinement after a stream of {frames} frames | {seconds:.1f} s |")
        print(f"| refinement, a frame | {1e3 * seconds / frames:.0f} ms |")
