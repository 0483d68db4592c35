"""Scenes an hour of `stream-recon batch` with one worker, with several, and with Ray where it is installed."""

import importlib.util
import json
import shlex
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any


def run_batch(root: Path, out: Path, *options: str) -> dict[str, Any]:
    """Run ``stream-recon batch`` and return its summary; every scene has to succeed."""
    command = [sys.executable, "-m", "stream_recon", "batch", str(root), "-o", str(out), *options]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stdout[-2000:]}")
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def bench_batch(root: Path, workers: int, options: list[str]) -> None:
    """Wall time from the first worker's start to the last scene's end, model loading included."""
    several = ["--workers", str(workers)]
    modes = {"1 worker": ["--workers", "1"], f"{workers} workers": several}
    if importlib.util.find_spec("ray") is not None:
        modes[f"Ray, {workers} actors"] = [*several, "--ray", "local"]
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, mode in modes.items():
            totals = run_batch(root, Path(folder) / name, *options, *mode)["totals"]
            seconds[name] = totals["seconds"]
            shown = f"{totals['scenes_per_hour']:.0f} scenes/hour ({totals['scenes']} scenes, {totals['frames']} frames"
            print(f"| batch, {name} | {shown} in {totals['seconds']:.1f} s) |", flush=True)
    alone, together, *ray = seconds.values()
    print(f"| speed-up of {workers} workers over 1 | {alone / together:.2f} |")
    if ray:
        print(f"| Ray against plain workers | {ray[0] - together:+.1f} s ({100 * (ray[0] / together - 1):+.0f} %) |")


def batch_options(options: Namespace) -> list[str]:
    """Options for `stream-recon batch` that this benchmark passes on."""
    limit = [] if options.frames is None else ["--max-frames", str(options.frames)]
    return ["--stride", str(options.stride), *shlex.split(options.options), *limit]


def add_batch_options(parser: ArgumentParser, workers: int) -> None:
    parser.add_argument("--workers", type=int, default=workers)
    parser.add_argument("--frames", type=int, help="of each scene (default: all)")
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--options", default="", help="further options of 'stream-recon batch', in one string")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("root", type=Path, metavar="ROOT", help="folder with scenes")
    add_batch_options(parser, workers=2)


def run(options: Namespace) -> None:
    bench_batch(options.root, options.workers, batch_options(options))
