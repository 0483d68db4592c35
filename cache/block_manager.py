"""Block manager of the KV cache: which slots a step writes and reads. It handles ids, never tensors.

All managers have the same verbs: ``begin`` allocates slots for a step's frames, then exactly one of ``commit`` and
``rollback`` follows. A rollback restores every counter and list, so the next ``begin`` gives the same allocation, the
very same object: what was prepared for it still holds. In most streams most frames are rolled back.
"""

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StepAllocation:
    """Slots of one step."""

    slot_mapping: Sequence[int]
    """Slots that the step's frames are written to, in order."""
    block_table: Sequence[int]
    """Slots that the step may read, its own included."""


class SlidingWindow:
    """Frame slots of a sliding window with attention sinks: the first step's frames are pinned.

    One spare slot holds a candidate until it is known whether it becomes a keyframe, so a rejected frame evicts
    nothing. Always ``free + allocated == total``.
    """

    def __init__(self, pinned: int, window: int) -> None:
        assert pinned >= 1 and window >= 1
        self.max_pinned = pinned
        self.window_size = window
        self.total = pinned + window + 1
        self.reset()

    def reset(self) -> None:
        """Free all slots."""
        self._pinned: list[int] = []
        self._window: deque[int] = deque()
        self._pending: Sequence[int] | None = None
        self._allocations: dict[tuple[int, bool], StepAllocation] = {}
        # Lowest id first: while the window fills, and when it is full, visible slots form one contiguous run.
        self._free = list(range(self.total))

    @property
    def allocated(self) -> int:
        """Slots in use."""
        return len(self._pinned) + len(self._window) + len(self._pending or ())

    @property
    def free(self) -> int:
        """Slots that can be allocated."""
        return len(self._free)

    def begin(self, count: int, *, evict_first: bool = False) -> StepAllocation:
        """Allocate ``count`` slots: up to ``pinned`` in the first step, one in each later step.

        With ``evict_first`` a full window hides its oldest frame from this step, as it counts the new frame itself.
        """
        assert self._pending is None, "the previous step was neither committed nor rolled back"
        limit = self.max_pinned if not self._pinned else 1
        assert 1 <= count <= limit, f"{count} frames in a step that takes 1 to {limit}"
        hides_oldest = evict_first and len(self._window) == self.window_size
        allocation = self._allocations.get((count, hides_oldest))
        if allocation is None:
            own, window = tuple(self._free[:count]), list(self._window)[hides_oldest:]
            allocation = StepAllocation(own, (*self._pinned, *window, *own))
            self._allocations[count, hides_oldest] = allocation
        self._pending = allocation.slot_mapping
        del self._free[:count]
        return allocation

    def commit(self) -> None:
        """Keep the step's frames: pinned in the first step, else in the window, which evicts its oldest frame."""
        assert self._pending is not None
        if not self._pinned:
            self._pinned.extend(self._pending)
        else:
            self._window.extend(self._pending)
            if len(self._window) > self.window_size:
                insort(self._free, self._window.popleft())
        self._pending = None
        self._allocations.clear()

    def rollback(self) -> None:
        """Free the step's slots."""
        assert self._pending is not None
        self._free[:0] = self._pending  # they were the lowest ones
        self._pending = None


class TokenLog:
    """Entries for the special tokens of all cached frames, oldest first, thinned when the budget is used up.

    Thinning keeps the pinned entries of the first step and the newer half of the rest, and drops every second
    entry of the older half. The distant past gets sparser but never empty.
    """

    def __init__(self, pinned: int, budget: int) -> None:
        self.capacity = max(budget, pinned + 4) + 1  # one more for a candidate
        self.reset()

    def reset(self) -> None:
        """Free all entries."""
        self.entries = 0
        self._pinned = 0
        self._pending = 0
        self._allocations: dict[int, StepAllocation] = {}

    def begin(self, count: int) -> StepAllocation:
        """Allocate ``count`` entries after the last one."""
        assert self._pending == 0 and self.entries + count <= self.capacity
        self._pending = count
        if count not in self._allocations:
            end = self.entries + count
            self._allocations[count] = StepAllocation(range(self.entries, end), range(end))
        return self._allocations[count]

    def commit(self) -> tuple[int, ...] | None:
        """Keep the step's entries. If the log was thinned: the entries kept, in their new order."""
        assert self._pending
        self._pinned = self._pinned or self._pending
        self.entries += self._pending
        self._pending = 0
        self._allocations.clear()
        if self.entries < self.capacity:
            return None
        middle = self._pinned + (self.entries - self._pinned) // 2
        kept = (*range(self._pinned), *range(self._pinned + 1, middle, 2), *range(middle, self.entries))
        self.entries = len(kept)
        return kept

    def rollback(self) -> None:
        """Free the step's entries."""
        assert self._pending
        self._pending = 0


@dataclass(frozen=True)
class CacheUse:
    """Frames that a stream has given to its cache; those with patch tokens and with special tokens there."""

    frames: int = 0
    patches: int = 0
    special: int = 0


@dataclass(frozen=True)
class FrameAllocation:
    """Slots and entries of one step's frames; they serve all layers."""

    patches: StepAllocation
    special: StepAllocation


class FrameTable:
    """Slots of a stream's patches and entries of its special tokens."""

    def __init__(self, pinned: int, window: int, special_budget: int) -> None:
        self._slots = SlidingWindow(pinned, window)
        self._log = TokenLog(pinned, special_budget)
        self._last: FrameAllocation | None = None

    @property
    def held(self) -> tuple[int, int]:
        """Frames with patches, and with special tokens, between two steps."""
        return self._slots.allocated, self._log.entries

    def begin(self, count: int, *, evict_first: bool = False) -> FrameAllocation:
        """See `SlidingWindow.begin`."""
        allocation = FrameAllocation(self._slots.begin(count, evict_first=evict_first), self._log.begin(count))
        last = self._last
        if last is None or last.patches is not allocation.patches or last.special is not allocation.special:
            self._last = last = allocation
        return last

    def commit(self) -> tuple[int, ...] | None:
        """Keep the step's frames. If special tokens were thinned: see `TokenLog.commit`."""
        self._slots.commit()
        return self._log.commit()

    def rollback(self) -> None:
        """Free what the step took."""
        self._slots.rollback()
        self._log.rollback()

    def reset(self) -> None:
        """Free all."""
        self._slots.reset()
        self._log.reset()
