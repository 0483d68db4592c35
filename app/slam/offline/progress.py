"""Stages of a refinement, their progress and their times."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[float, str], None]
"""Called with the share that is done and the name of the stage."""

STAGES = {
    "keyframes": 0.0,
    "features": 0.02,
    "matches": 0.3,
    "adjustment": 0.5,
    "judgement": 0.68,
    "adjustment again": 0.7,
    "frames between": 0.85,
}
"""Share of the total time at which each stage usually starts."""


class StageProgress:
    """Reports progress and records the seconds of each stage."""

    def __init__(self, progress: Progress, seconds: dict[str, float]) -> None:
        self._progress, self._seconds = progress, seconds
        self._stage = ""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run a stage."""
        started = time.monotonic()
        self._stage = name
        self._progress(STAGES[name], name)
        yield
        self._seconds[name] = round(time.monotonic() - started, 3)

    def advance(self, share: float) -> None:
        """Report the share of the present stage that is done."""
        starts = [*STAGES.values(), 1.0]
        index = list(STAGES).index(self._stage)
        self._progress(starts[index] + share * (starts[index + 1] - starts[index]), self._stage)

    def counter(self, total: int) -> Callable[[], None]:
        """Function that reports one of ``total`` steps of the present stage as done."""
        done = 0

        def step() -> None:
            nonlocal done
            done += 1
            self.advance(done / max(total, 1))

        return step
