"""Speed of the program on a busy machine: with busy processes, or with a browser that draws the page."""

import os
import shutil
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path

from bench import SAMPLE
from bench.command import beside, free_port, run_program
from bench.table import header, row

BUSY = "while True: pass"
BROWSER = "browser"
CHROMIUM = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"


def run_under_load(frames: int, variant: str, load: int | str) -> tuple[float, float]:
    """Frames a second and median latency in ms on the sample with ``load`` busy processes, or with `BROWSER`."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        words: list[object] = [SAMPLE, "--max-frames", frames]
        if load == BROWSER:
            port = free_port()
            words += ["--port", port]
            page = _waiting_page(folder / "wait.html", port)
            processes = [["chromium", *CHROMIUM.split(), f"--user-data-dir={folder}", page]]
        else:
            words += ["--no-viewer"]
            processes = [[sys.executable, "-c", BUSY]] * int(load)
        for each in processes:
            stack.enter_context(beside(each))
        environment = dict(pair.split("=", 1) for pair in variant.split())
        timings = run_program(*words, out=folder / "out", environment=environment).record["timings"]
    return timings["fps"], timings["latency_ms"]["p50"]


def _waiting_page(page: Path, port: int) -> str:
    """The address of a page that shows the program's own as soon as it answers."""
    page.write_text(
        f"<body style='margin:0'><script>"
        f"const go = () => fetch('http://127.0.0.1:{port}', {{mode: 'no-cors'}})"
        f".then(() => location = 'http://127.0.0.1:{port}').catch(() => setTimeout(go, 200)); go()</script>"
    )
    return page.as_uri()


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--environment", action="append", default=[], help="NAME=VALUE, several separated by spaces")


def run(options: Namespace) -> None:
    variants = ["", *options.environment]
    loads: list[int | str] = [*range((os.cpu_count() or 1) + 1)]
    if shutil.which("chromium"):
        loads.append(BROWSER)
    header("load: busy processes, or a browser", *(variant or "as it is" for variant in variants))
    for load in loads:
        found = [run_under_load(options.frames, variant, load) for variant in variants]
        row(load, *(f"{fps:.1f} frames/s, p50 {p50:.0f} ms" for fps, p50 in found))
