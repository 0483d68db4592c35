"""The program as a process: run to its end and timed, or watched."""

import json
import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Finished:
    """A run of the program that succeeded."""

    out: Path | None
    output: str
    seconds: float
    cpu_seconds: float
    """Of all its processes, on all cores."""

    @cached_property
    def record(self) -> dict[str, Any]:
        """Its run.json, or a batch's summary.json."""
        assert self.out is not None
        files = [self.out / name for name in ("run.json", "summary.json")]
        record: dict[str, Any] = json.loads(next(file for file in files if file.is_file()).read_text())
        return record


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "stream_recon", *map(str, words)]


def run_program(*words: object, out: Path | None = None, timeout: float | None = None) -> Finished:
    """Run ``stream-recon`` with these words and ``--output``, and time it.

    Raises SystemExit with the end of its output if it fails, TimeoutExpired after ``timeout`` seconds.
    """
    line = command(*words, *([] if out is None else ["--output", out]))
    begin, before = time.perf_counter(), children_seconds()
    done = subprocess.run(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=timeout,
    )
    seconds, used = time.perf_counter() - begin, children_seconds() - before
    if done.returncode:
        raise SystemExit(f"{shlex.join(line)} failed:\n{done.stdout[-2000:]}")
    return Finished(out, done.stdout, seconds, used)


def children_seconds() -> float:
    """CPU seconds of child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a living process; NaN where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int | str = "self") -> float:
    """Resident memory of a process; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def beside(words: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    """A process that runs meanwhile, and is killed afterwards."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
