"""Number of CPU threads, adapted to the cores that other programs leave free.

OpenMP threads synchronise some hundred times in a step and spin while they wait. That is fastest while each thread has
a core. When one thread loses its core to another program, all others spin until it is done. On a busy machine, as many
threads as free cores are several times as fast as one thread for each core.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from stream_recon.app.core.cores import all_cores

logger = logging.getLogger(__name__)

STATISTICS = Path("/proc/stat")
"""CPU times of all programs, by core (Linux)."""
MEASURE_SECONDS = 0.5
"""Least time between two measurements: the system counts in hundredths of a second."""
FIRST_SECONDS = 0.1
"""Time before the first measurement: a rough figure for the first frames beats an exact one after them."""
AGREEING_MEASUREMENTS = 2
"""Equal measurements in a row before the number of threads changes; the first one acts alone."""
IDLE_CORE = 0.9
"""Idle share of a core that counts as one."""
OWN_CHOICES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Environment variables with which users set the number of threads or how they wait."""


def threads_are_chosen() -> bool:
    """Whether the environment sets the number of threads or how they wait; then it is not changed here."""
    return any(name in os.environ for name in OWN_CHOICES)


@contextmanager
def initial_threads(threads: int) -> Iterator[None]:
    """Within the block, libraries start with this number of threads, unless the user has set one."""
    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]


class Threaded(Protocol):
    """Engine whose number of CPU threads can be set between two steps."""

    threads: int
    """CPU threads; 0 where it does not run on the CPU."""


@contextmanager
def adaptive_threads(engine: Threaded, statistics: Path = STATISTICS) -> Iterator[Callable[[], None]]:
    """Context with a function to call before each step, which sets the engine's threads to the free cores.

    The number is restored at the end. It is not changed where the user has set it (`threads_are_chosen`).
    """
    max_threads = engine.threads
    if max_threads <= 1 or threads_are_chosen():
        yield lambda: None
        return
    budget = ThreadBudget(max_threads, statistics)

    def adapt() -> None:
        threads = budget.measure()
        if threads != engine.threads:
            logger.info("%d of %d threads: other programs use the other cores", threads, max_threads)
            engine.threads = threads

    try:
        yield adapt
    finally:
        engine.threads = max_threads


class ThreadBudget:
    """Number of threads from the CPU time of other programs on this process's cores. Constant except on Linux."""

    def __init__(self, max_threads: int, statistics: Path = STATISTICS) -> None:
        """``max_threads``: threads where no other program runs."""
        self.threads = self._max_threads = max_threads
        self._statistics, self._cores = statistics, all_cores()
        self._measured: list[int] = []
        self._measured_at = time.monotonic()
        self._busy, self._own = _busy_seconds(statistics), _own_seconds()

    def measure(self) -> int:
        """Threads to use: one for each free core, at least 1."""
        now = time.monotonic()
        passed = now - self._measured_at
        if passed < (MEASURE_SECONDS if self._measured else FIRST_SECONDS) or self._busy is None:
            return self.threads
        busy, own = _busy_seconds(self._statistics), _own_seconds()
        if busy is not None:
            others = max((busy - self._busy) - (own - self._own), 0.0) / passed
            self._consider(others)
        self._measured_at, self._busy, self._own = now, busy, own
        return self.threads

    def _consider(self, others: float) -> None:
        """``others``: cores used by other programs since the last measurement."""
        free = min(max(round(self._cores - others), 1), self._max_threads)
        is_first = not self._measured
        self._measured = [*self._measured, free][-AGREEING_MEASUREMENTS:]
        if is_first or self._measured == [free] * AGREEING_MEASUREMENTS:
            self.threads = free


class FreeCores:
    """Whether a core is idle, from the CPU time of all programs between two questions. Never except on Linux."""

    def __init__(self) -> None:
        self._cores = all_cores()
        self._at, self._busy = time.monotonic(), _busy_seconds()
        self._is_free = False

    def is_one_free(self) -> bool:
        """Whether at least one core was idle since the last question."""
        now = time.monotonic()
        if self._busy is None or now - self._at < MEASURE_SECONDS:
            return self._is_free
        busy = _busy_seconds()
        if busy is not None:
            self._is_free = self._cores - (busy - self._busy) / (now - self._at) >= IDLE_CORE
        self._at, self._busy = now, busy
        return self._is_free


def _own_seconds() -> float:
    """CPU seconds of this process and of its ended children."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _busy_seconds(statistics: Path = STATISTICS) -> float | None:
    """CPU seconds of all programs on this process's cores; None where the system does not count them."""
    try:
        lines = statistics.read_text().splitlines()
        cores = os.sched_getaffinity(0)
    except (OSError, AttributeError):
        return None
    ticks = 0
    for line in lines:
        name, *numbers = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _idle, _waiting, interrupt, soft = (int(number) for number in numbers[:7])
            ticks += user + nice + system + interrupt + soft
    return ticks / os.sysconf("SC_CLK_TCK")
