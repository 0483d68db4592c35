"""Speed of the whole command on the sample, with and without the viewer."""

import json
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from bench import SAMPLE


def run_program(video: Path, out: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "stream_recon", str(video), "-o", str(out), "--port", "0", *options]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((out / "run.json").read_text())
    return summary


def bench_program() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, options in (("viewer on", ()), ("--no-viewer", ("--no-viewer",))):
            begin = time.perf_counter()
            summary = run_program(SAMPLE, Path(folder) / name.strip("-"), *options)
            wall = time.perf_counter() - begin
            print(f"| whole program on the sample, {name} | {json.dumps(summary['timings'])}, {wall:.1f} s wall |")


def add_options(parser: ArgumentParser) -> None:
    """No options."""


def run(_: Namespace) -> None:
    bench_program()
