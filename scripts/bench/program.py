"""Speed of the whole command on the sample: with default options, and with the network alone."""

import json
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from bench import SAMPLE


def run_program(video: Path, out: Path, *options: str) -> tuple[dict[str, Any], float]:
    """The command's run.json, and its seconds."""
    command = [sys.executable, "-m", "stream_recon", str(video), "-o", str(out), "--no-viewer", *options]
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begin
    record: dict[str, Any] = json.loads((out / "run.json").read_text())
    return record, seconds


def bench_program() -> None:
    with tempfile.TemporaryDirectory() as folder:
        record, seconds = run_program(SAMPLE, Path(folder) / "full")
        frames = record["frames"]["reconstructed"]
        print("| what | figure |\n|---|---|")
        print(f"| stream of the sample, {frames} frames, default options | {record['timings']['fps']:.1f} frames/s |")
        print(f"| its refinement | {sum(record['refinement']['seconds'].values()):.1f} s |")
        print(f"| whole command, to the textured mesh | {seconds:.1f} s |", flush=True)
        record, seconds = run_program(SAMPLE, Path(folder) / "off", "--mapping", "off", "--no-mesh")
        print(f"| stream with `--mapping off` | {record['timings']['fps']:.1f} frames/s |")
        print(f"| whole command with `--mapping off --no-mesh` | {seconds:.1f} s |")


def add_options(parser: ArgumentParser) -> None:
    """No options."""


def run(_: Namespace) -> None:
    bench_program()
