"""Units that wait for a worker."""

from collections import deque
from collections.abc import Callable, Sequence

from stream_recon.app.batch.jobs import Event, Job, Outcome

MAX_ATTEMPTS = 3
"""A scene whose worker is lost so often is given up: it may be the cause."""


class WorkQueue:
    """Gives out units in their order, and passes on what became of them. True while there is one to give out."""

    def __init__(self, units: Sequence[Job], on_event: Callable[[Event], None]) -> None:
        self._waiting = deque(units)
        self._attempts = dict.fromkeys((unit.name for unit in units), 0)
        self._on_event = on_event
        self._disk_full = False

    def __bool__(self) -> bool:
        return bool(self._waiting) and not self._disk_full

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self) -> Job:
        unit = self._waiting.popleft()
        self._attempts[unit.name] += 1
        return unit

    def lost(self, unit: Job, reason: str) -> None:
        """The worker of a unit is gone: it comes next, or has failed for ``reason`` after `MAX_ATTEMPTS`."""
        if self._attempts[unit.name] < MAX_ATTEMPTS:
            self._waiting.appendleft(unit)
        else:
            self._on_event(Outcome(unit.name, "failed", reason=reason))

    def tell(self, event: Event) -> None:
        """Pass on what a worker says; after a full disk no more is given out."""
        if isinstance(event, Outcome) and event.status == "disk full":
            self._disk_full = True
        self._on_event(event)
