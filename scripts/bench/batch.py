"""Scenes an hour of `stream-recon batch` with one worker, and with several."""

import shlex
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from bench.command import run_program
from bench.table import row


def batch_options(options: Namespace) -> list[object]:
    """Options for `stream-recon batch` that this benchmark passes on."""
    limit = [] if options.frames is None else ["--max-frames", options.frames]
    return ["--stride", options.stride, *shlex.split(options.options), *limit]


def add_batch_options(parser: ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--frames", type=int, help="of each scene (default: all)")
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--options", default="", help="further options of 'stream-recon batch', in one string")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("root", type=Path, metavar="ROOT", help="folder with scenes")
    add_batch_options(parser)


def run(options: Namespace) -> None:
    """Wall time from the first worker's start to the last scene's end, model loading included."""
    workers = options.workers
    modes = {"1 worker": ["--workers", 1], f"{workers} workers": ["--workers", workers]}
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for name, mode in modes.items():
            words = ["batch", options.root, *batch_options(options), *mode]
            totals = run_program(*words, out=Path(folder) / name).record["totals"]
            seconds.append(totals["seconds"])
            shown = f"{totals['scenes_per_hour']:.0f} scenes/hour ({totals['scenes']} scenes, {totals['frames']} frames"
            row(f"batch, {name}", f"{shown} in {totals['seconds']:.1f} s)")
    row(f"speed-up of {workers} workers over 1", f"{seconds[0] / seconds[1]:.2f}")
