"""Speed of the whole command on the sample: with default options, and with the network alone."""

import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from bench import SAMPLE
from bench.command import run_program
from bench.table import header, row


def add_options(parser: ArgumentParser) -> None:
    """No options."""


def run(_: Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        done = run_program(SAMPLE, "--no-viewer", out=Path(folder) / "full")
        frames, fps = done.record["frames"]["reconstructed"], done.record["timings"]["fps"]
        header("what", "figure")
        row(f"stream of the sample, {frames} frames, default options", f"{fps:.1f} frames/s")
        row("its refinement", f"{sum(done.record['refinement']['seconds'].values()):.1f} s")
        row("whole command, to the textured mesh", f"{done.seconds:.1f} s")
        done = run_program(SAMPLE, "--no-viewer", "--mapping", "off", "--no-mesh", out=Path(folder) / "off")
        row("stream with `--mapping off`", f"{done.record['timings']['fps']:.1f} frames/s")
        row("whole command with `--mapping off --no-mesh`", f"{done.seconds:.1f} s")
