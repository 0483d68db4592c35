"""Bookkeeping of cached frames as a state machine of ids. No tensor is touched here.

Two machines, the same verbs: ``begin`` lends places for a step's frames, then exactly one of ``commit`` and
``rollback`` follows. A rolled-back step leaves every counter and every list as it was.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class SlotLease:
    """Places of one step: where its frames are written, and all places it may read (its own among them)."""

    written: tuple[int, ...]
    visible: tuple[int, ...]


class SlotWindow:
    """Slots for whole frames: the first step's frames are pinned, later ones pass through a window.

    One spare slot lets a candidate be written and read before it is known whether it stays, so nothing is
    evicted for a frame that is rejected. Always ``free + held == total``.
    """

    def __init__(self, pinned: int, window: int) -> None:
        assert pinned >= 1 and window >= 1
        self.max_pinned = pinned
        self.window_size = window
        self.total = pinned + window + 1
        self.reset()

    def reset(self) -> None:
        """Forget all frames."""
        self._pinned: list[int] = []
        self._window: deque[int] = deque()
        self._pending: tuple[int, ...] | None = None
        # Lowest id first: while the window fills, and whenever it is full, visible slots are one contiguous run.
        self._free = list(range(self.total))

    @property
    def held(self) -> int:
        return len(self._pinned) + len(self._window) + len(self._pending or ())

    @property
    def free(self) -> int:
        return len(self._free)

    def begin(self, count: int, *, evict_first: bool = False) -> SlotLease:
        """Lend ``count`` slots: up to ``pinned`` in the first step, one in each later one.

        With ``evict_first`` a full window hides its oldest frame from this step, so that the window counts the
        new frame itself.
        """
        assert self._pending is None, "the step before was neither committed nor rolled back"
        limit = self.max_pinned if not self._pinned else 1
        assert 1 <= count <= limit, f"{count} frames in a step that takes 1 to {limit}"
        self._pending = tuple(self._free[:count])
        del self._free[:count]
        window = list(self._window)
        if evict_first and len(window) == self.window_size:
            window = window[1:]
        return SlotLease(self._pending, (*self._pinned, *window, *self._pending))

    def commit(self) -> None:
        """Keep the step's frames: pinned in the first step, else in the window, whose oldest one then leaves."""
        assert self._pending is not None
        if not self._pinned:
            self._pinned.extend(self._pending)
        else:
            self._window.extend(self._pending)
            if len(self._window) > self.window_size:
                self._release(self._window.popleft())
        self._pending = None

    def rollback(self) -> None:
        assert self._pending is not None
        for slot in self._pending:
            self._release(slot)
        self._pending = None

    def _release(self, slot: int) -> None:
        self._free.append(slot)
        self._free.sort()


class SpecialLog:
    """Entries for the special tokens of every cached frame, oldest first; thinned when the budget is used up.

    Thinning keeps the pinned entries of the first step and the newer half of the rest, and drops every second
    one of the older half: the far past gets sparser, never empty.
    """

    def __init__(self, pinned: int, budget: int) -> None:
        self.capacity = max(budget, pinned + 4) + 1  # one place is always left for a candidate
        self.reset()

    def reset(self) -> None:
        """Forget all frames."""
        self.entries = 0
        self._pinned = 0
        self._pending = 0

    def begin(self, count: int) -> SlotLease:
        assert self._pending == 0 and self.entries + count <= self.capacity
        self._pending = count
        end = self.entries + count
        return SlotLease(tuple(range(self.entries, end)), tuple(range(end)))

    def commit(self) -> tuple[int, ...] | None:
        """Keep the step's entries. If the log had to be thinned: the entries kept, in their new order."""
        assert self._pending
        self._pinned = self._pinned or self._pending
        self.entries += self._pending
        self._pending = 0
        if self.entries < self.capacity:
            return None
        middle = self._pinned + (self.entries - self._pinned) // 2
        kept = (*range(self._pinned), *range(self._pinned + 1, middle, 2), *range(middle, self.entries))
        self.entries = len(kept)
        return kept

    def rollback(self) -> None:
        assert self._pending
        self._pending = 0
