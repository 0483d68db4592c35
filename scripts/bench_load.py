"""How the program fares on a machine that has other work: the sample beside processes that keep cores busy."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

SAMPLE = Path(__file__).resolve().parents[1] / "app" / "sample" / "walkthrough.mp4"
BUSY = "while True: pass"


@dataclass(frozen=True)
class LoadedRun:
    """One run of the program beside so many busy processes."""

    fps: float
    p50_ms: float
    others: float
    """Cores that neither the program nor the busy processes used, but somebody else did: this spoils a figure."""


def bench_load(frames: int, variants: Sequence[str], rounds: int) -> None:
    """Print frames/s and median latency, idle and beside one busy process up to one for each core.

    ``variants``: settings of the environment such as ``GOMP_SPINCOUNT=1000``, with spaces between several; an empty
    one is the program as it is. They are run in turn.
    """
    loads = range((os.cpu_count() or 1) + 1)
    print("| environment | busy processes | frames/s | p50 ms | of the idle rate | others, cores |")
    print("|---" * 6 + "|")
    runs: dict[tuple[str, int], list[LoadedRun]] = {}
    for _ in range(rounds):
        for load in loads:
            for variant in variants:
                runs.setdefault((variant, load), []).append(_run(frames, variant, load))
    for (variant, load), done in runs.items():
        fps, idle = (max(run.fps for run in runs[variant, count]) for count in (load, 0))
        others = median(run.others for run in done)
        print(
            f"| {variant or 'as it is'} | {load} | {' '.join(f'{run.fps:.2f}' for run in done)} "
            f"| {min(run.p50_ms for run in done):.0f} | {100 * fps / idle:.0f} % | {others:.2f} |"
        )


def _run(frames: int, variant: str, load: int) -> LoadedRun:
    environment = os.environ | dict(pair.split("=", 1) for pair in variant.split())
    with ExitStack() as stack:
        output = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "out"
        used = [stack.enter_context(_busy()) for _ in range(load)]
        command = [sys.executable, "-m", "stream_recon.app.cli", str(SAMPLE), "--no-viewer"]
        command += ["--max-frames", str(frames), "--output", str(output)]
        began, all_before, own_before = time.monotonic(), _busy_seconds(), _children_seconds()
        busy_before = sum(_seconds_of(process.pid) for process in used)
        subprocess.run(command, env=environment, check=True, capture_output=True)
        seconds = time.monotonic() - began
        known = _children_seconds() - own_before + sum(_seconds_of(process.pid) for process in used) - busy_before
        others = (_busy_seconds() - all_before - known) / seconds
        timings = json.loads((output / "run.json").read_text())["timings"]
    return LoadedRun(timings["fps"], timings["latency_ms"]["p50"], others)


@contextmanager
def _busy() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", BUSY]) as process:
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
