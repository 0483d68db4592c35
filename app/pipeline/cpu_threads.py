"""How many cores other programs leave to this one, so that its threads need not wait for one another's cores.

Threads of OpenMP meet some hundred times in a step, and spin meanwhile. As long as each has a core that is the fastest
way; where one of them has lost its core to another program, all others wait for it, spinning on cores that could do
its work. So a program on a busy machine is several times as fast with as many threads as there are cores to spare.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

logger = logging.getLogger(__name__)

STATISTICS = Path("/proc/stat")
SETTLED_SECONDS = 0.5
"""Between two looks: the system counts in hundredths of a second."""
FIRST_SECONDS = 0.1
"""Before the first look: a rough number in time is better than an exact one after the first frames."""
AGREEING_LOOKS = 2
"""So many in a row have to say the same before anything changes; but the first one is believed."""
OWN_CHOICES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables by which users say how threads shall wait, or how many there shall be."""


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_are_chosen() -> bool:
    """Whether the environment says how threads wait or how many there are: then nothing is to be changed."""
    return any(name in os.environ for name in OWN_CHOICES)


@contextmanager
def initial_threads(threads: int) -> Iterator[None]:
    """Let what is imported and loaded here begin with so many threads, unless the user has chosen their number."""
    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]


class Threaded(Protocol):
    """What has threads to spare."""

    threads: int
    """Threads of a CPU that it works with; 0 where it does not work on the CPU. May be set between two steps."""


@contextmanager
def adaptive_threads(engine: Threaded) -> Iterator[Callable[[], None]]:
    """Gives what to call before each step: the engine then works with as many threads as others leave cores.

    In the end it has as many as before. Nothing is changed where the user chose (`threads_are_chosen`).
    """
    most = engine.threads
    if most <= 1 or threads_are_chosen():
        yield lambda: None
        return
    spare = ThreadBudget(most)

    def look() -> None:
        threads = spare.look()
        if threads != engine.threads:
            logger.info("%d of %d threads: others use the rest of the cores", threads, most)
            engine.threads = threads

    try:
        yield look
    finally:
        engine.threads = most


class ThreadBudget:
    """Looks now and then at what other programs use of this process's cores; Linux only, elsewhere nothing changes."""

    def __init__(self, most: int) -> None:
        """``most``: threads to use where no other program runs."""
        self.threads = self._most = most
        self._cores = usable_cores()
        self._wanted: list[int] = []
        self._seen_at = time.monotonic()
        self._busy, self._own = _busy_seconds(), _own_seconds()

    def look(self) -> int:
        """The number of threads to use from now on: one for each core that the others leave, 1 at least."""
        now = time.monotonic()
        passed = now - self._seen_at
        if passed < (SETTLED_SECONDS if self._wanted else FIRST_SECONDS) or self._busy is None:
            return self.threads
        busy, own = _busy_seconds(), _own_seconds()
        if busy is not None:
            others = max((busy - self._busy) - (own - self._own), 0.0) / passed
            self._consider(others)
        self._seen_at, self._busy, self._own = now, busy, own
        return self.threads

    def _consider(self, others: float) -> None:
        """``others``: cores in use by other programs since the last look."""
        free = min(max(round(self._cores - others), 1), self._most)
        is_first = not self._wanted
        self._wanted = [*self._wanted, free][-AGREEING_LOOKS:]
        if is_first or self._wanted == [free] * AGREEING_LOOKS:
            self.threads = free


def _own_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _busy_seconds() -> float | None:
    """CPU seconds of all programs on the cores that this process may use; None where the system does not tell."""
    try:
        lines = STATISTICS.read_text().splitlines()
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
