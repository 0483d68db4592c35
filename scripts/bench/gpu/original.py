"""The published code's own profiler, run in the same call as ours."""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from bench.gpu.measure import GIGABYTE, begin_table, release_memory, row

FRAMES = 300
POLL_SECONDS = 0.05


def bench_original(folder: Path) -> float | None:
    """Milliseconds a frame of ``gct_profile.py`` in ``folder``, compiled, late in its run; None if it fails."""
    begin_table(f"the original, gct_profile.py, 504x378, bf16, compiled, {FRAMES} frames")
    options = ["--num_frames", str(FRAMES), "--backend", "flashinfer", "--dtype", "bf16"]
    environment = os.environ | {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    release_memory()
    before, _ = torch.cuda.mem_get_info()
    least = before
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "gct_profile.py", *options], cwd=folder, env=environment, stdout=log, stderr=log
        )
        while process.poll() is None:
            least = min(least, torch.cuda.mem_get_info()[0])
            time.sleep(POLL_SECONDS)
        log.seek(0)
        text = log.read()
    found = re.findall(r"\(90%\):\s*([\d.]+) ms", text)
    if process.returncode or not found:
        row("it failed", " ".join(text.split())[-600:])
        return None
    took = float(found[-1])
    row("a frame late in its run", f"{took:.2f} ms = {1e3 / took:.1f} frames/s")
    row("most of the GPU's memory while it ran, CUDA's share included", f"{(before - least) / GIGABYTE:.2f} GB")
    return took


def compare(theirs: float, ours: float) -> None:
    begin_table("ours against the original, both of this call")
    row("their frame over our step", f"{theirs:.2f} ms / {ours:.2f} ms = {theirs / ours:.2f}")
