"""Execution of a case in a separate process, with limits of time and memory."""

import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzzing.cases import CASES
from stream_recon.configs.errors import StreamReconError

READ, REFUSED, TRACEBACK = 0, 10, 11
LIMIT_BYTES = 4 * 2**30
POLL_SECONDS = 0.002


@dataclass(frozen=True)
class Verdict:
    """How a case ended."""

    kind: str
    number: int
    outcome: str
    """``read``, ``refused``, or what went wrong."""
    detail: str
    """A refusal's line, or a failure's last ones."""
    seconds: float
    peak_mb: float

    @property
    def failed(self) -> bool:
        return self.outcome not in ("read", "refused")


def run_case(
    kind: str, seed: int, number: int, source: Path, keep: Path | None = None, limit_s: float = 60.0
) -> Verdict:
    """Run case ``number`` of a seed.

    ``kind``: one of `CASES`. ``source``: folder of `examples`. ``keep``: folder that gets the case's input.
    """
    draw = random.Random(f"{kind} {seed} {number}")
    return run(lambda folder: CASES[kind](folder, source, draw), kind, number, keep, limit_s)


def run(case: Callable[[Path], Any], kind: str, number: int, keep: Path | None, limit_s: float) -> Verdict:
    """Run a case, which gets an empty folder, in a fork; one that lasts longer than ``limit_s`` is killed."""
    folder = keep or Path(tempfile.mkdtemp(prefix="fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    message = folder / "message.txt"
    begin = time.monotonic()
    process = os.fork()
    if not process:
        _child(case, folder, message)
    status, usage = _wait(process, begin + limit_s)
    seconds, peak = time.monotonic() - begin, usage.ru_maxrss / 1024
    detail = message.read_text(errors="replace").strip() if message.exists() else ""
    if keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return Verdict(kind, number, "hang" if seconds >= limit_s else _outcome(status, peak), detail, seconds, peak)


def _outcome(status: int, peak_mb: float) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    if peak_mb > LIMIT_BYTES / 2**20:
        return "memory"
    code = os.waitstatus_to_exitcode(status)
    return {READ: "read", REFUSED: "refused", TRACEBACK: "traceback"}.get(code, f"exit code {code}")


def _wait(process: int, deadline: float) -> tuple[int, "resource.struct_rusage"]:
    while True:
        ended, status, usage = os.wait4(process, os.WNOHANG)
        if ended:
            return status, usage
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
            _, status, usage = os.wait4(process, 0)
            return status, usage
        time.sleep(POLL_SECONDS)


def _child(case: Callable[[Path], Any], folder: Path, message: Path) -> None:
    """Run the case in the forked child. Never returns, so that no exit handler of the parent runs here."""
    code = TRACEBACK
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        try:
            (folder / "case").mkdir(exist_ok=True)
            case(folder / "case")
            code = READ
        except StreamReconError as error:
            code = REFUSED
            line = str(error)
            assert "\n" not in line.strip(), "a refusal is one line"
            message.write_text(line[:1000], errors="replace")
        except MemoryError:
            code = REFUSED
            message.write_text("out of memory")
    except BaseException:  # noqa: BLE001  # any exception is a finding
        code = TRACEBACK
        message.write_text(traceback.format_exc()[-4000:], errors="replace")
    finally:
        os._exit(code)
