#!/usr/bin/env python3
"""Build sdist and wheel, install the wheel without tools of development, and use it on the packaged sample.

test_wheel.py [DIST]

The wheel is built from the sdist, so that both are complete; DIST keeps them. Runs `demo`, `refine`, `export`, `view`
and `serve` in a fresh environment outside the repository. Needs the standard library alone.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CPU_BUILD = ("--extra-index-url", "https://download.pytorch.org/whl/cpu", "--constraint", ROOT / "constraints-cpu.txt")
START_SECONDS = 180.0
"""Time for a server to print its address."""


def start(folder: Path, *words: str | Path) -> "subprocess.Popen[str]":
    """Start a command in an environment where nothing but the wheel is found."""
    print("+", *words, flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen([*map(str, words)], cwd=folder, stdout=subprocess.PIPE, text=True, env=environment)


def run(folder: Path, *words: str | Path) -> str:
    """Standard output of a command. Exits where it fails."""
    process = start(folder, *words)
    output = process.communicate()[0]
    print(output, flush=True)
    return output if process.returncode == 0 else sys.exit(f"{words[0]} ended with {process.returncode}")


def page(folder: Path, *words: str | Path) -> str:
    """The page of a command that serves until it is ended. Exits where it prints no address."""
    process = start(folder, *words)
    timer = threading.Timer(START_SECONDS, process.kill)
    timer.start()
    try:
        addresses = (re.search(r"http://\S+", line) for line in process.stdout or ())
        address = next((found[0] for found in addresses if found), None) or sys.exit(f"{words[1]} printed no address")
        with urllib.request.urlopen(address, timeout=30) as answer:
            return str(answer.read().decode()).lower()
    finally:
        timer.cancel()
        process.terminate()
        process.wait(60)


def environment(folder: Path) -> Path:
    """A fresh virtual environment; returns the folder of its programs."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if sys.platform == "win32" else "bin")


def main(work: Path, dist: Path) -> None:
    python = environment(work / "build") / "python"
    run(work, python, "-m", "pip", "install", "--quiet", "build")
    run(work, python, "-m", "build", "--outdir", dist, ROOT)
    (wheel,) = dist.glob("*.whl")
    programs = environment(work / "user")
    build = CPU_BUILD if sys.platform == "linux" and shutil.which("nvidia-smi") is None else ()
    run(work, programs / "python", "-m", "pip", "install", "--quiet", *build, f"{wheel}[serve]")
    program = programs / "stream-recon"
    assert "trajectory" in run(work, program, "demo", "--no-viewer", "--max-frames", "32", "-o", "result")
    run(work, program, "refine", "result")
    run(work, program, "export", "result", "--format", "colmap", "-o", "colmap")
    assert (work / "colmap" / "sparse" / "0" / "points3D.bin").stat().st_size
    assert "<html" in page(work, program, "view", "result", "--port", "0")
    assert "stream-recon" in page(work, program, "serve", "--data", "served", "--port", "0")
    print("the wheel works")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        main(Path(name), Path(*sys.argv[1:] or [name, "dist"]).resolve())
