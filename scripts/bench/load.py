"""Speed of the program on a busy machine: with busy processes, or with a browser that draws the page."""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import SAMPLE

BUSY = "while True: pass"
BROWSER = "browser"
CHROMIUM = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"


@dataclass(frozen=True)
class LoadedRun:
    """One run of the program under load."""

    fps: float
    p50_ms: float
    others: float
    """Cores used by other processes of the machine, which distort the figure."""


def bench_load(frames: int, variants: Sequence[str], rounds: int) -> None:
    """Print frames/s and median latency with 0 to n busy processes on n cores, and with Chromium if it is installed.

    ``variants``: settings of the environment such as ``GOMP_SPINCOUNT=1000``, with spaces between several; an empty
    one is the program as it is. They are run in turn.
    """
    loads: list[int | str] = [*range((os.cpu_count() or 1) + 1)]
    if shutil.which("chromium"):
        loads.append(BROWSER)
    runs: dict[tuple[str, int | str], list[LoadedRun]] = {}
    for _ in range(rounds):
        for load in loads:
            for variant in variants:
                runs.setdefault((variant, load), []).append(run_under_load(frames, variant, load))
    print("| environment | busy processes | frames/s | p50 ms | of the idle rate | others, cores |")
    print("|---" * 6 + "|")
    for (variant, load), done in runs.items():
        fps, idle = (max(run.fps for run in runs[variant, count]) for count in (load, 0))
        others = median(run.others for run in done)
        print(
            f"| {variant or 'as it is'} | {load} | {' '.join(f'{run.fps:.2f}' for run in done)} "
            f"| {min(run.p50_ms for run in done):.0f} | {100 * fps / idle:.0f} % | {others:.2f} |"
        )


def run_under_load(frames: int, variant: str, load: int | str) -> LoadedRun:
    """Run the first ``frames`` of the sample with ``load`` busy processes, or with `BROWSER`."""
    environment = os.environ | dict(pair.split("=", 1) for pair in variant.split())
    with ExitStack() as stack:
        output = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "out"
        command = [sys.executable, "-m", "stream_recon", str(SAMPLE), "--max-frames", str(frames)]
        command += ["--output", str(output)]
        if load == BROWSER:
            port = _free_port()
            command += ["--port", str(port)]
            # It asks again until the page is there.
            processes = [
                ["chromium", *CHROMIUM.split(), f"--user-data-dir={output.parent}", _waiting_page(output, port)]
            ]
        else:
            command += ["--no-viewer"]
            processes = [[sys.executable, "-c", BUSY]] * int(load)
        used = [stack.enter_context(_running(words)) for words in processes]
        began, all_before, own_before = time.monotonic(), _busy_seconds(), _children_seconds()
        busy_before = sum(_seconds_of(process.pid) for process in used)
        subprocess.run(command, env=environment, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        known = _children_seconds() - own_before + sum(_seconds_of(process.pid) for process in used) - busy_before
        others = (_busy_seconds() - all_before - known) / seconds
        timings = json.loads((output / "run.json").read_text())["timings"]
    return LoadedRun(timings["fps"], timings["latency_ms"]["p50"], others)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _waiting_page(output: Path, port: int) -> str:
    """The address of a page that shows the program's own as soon as it answers."""
    page = output.with_name("wait.html")
    page.write_text(
        f"<body style='margin:0'><script>"
        f"const go = () => fetch('http://127.0.0.1:{port}', {{mode: 'no-cors'}})"
        f".then(() => location = 'http://127.0.0.1:{port}').catch(() => setTimeout(go, 200)); go()</script>"
    )
    return page.as_uri()


@contextmanager
def _running(words: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def _children_seconds() -> float:
    """CPU seconds of children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _seconds_of(pid: int) -> float:
    """CPU seconds of a living process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _busy_seconds() -> float:
    """CPU seconds of all processes of this machine."""
    user, nice, system, *_ = (int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--environment", action="append", default=[], help="NAME=VALUE, several separated by spaces")


def run(options: Namespace) -> None:
    bench_load(options.frames, ["", *options.environment], options.rounds)
