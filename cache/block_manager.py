"""Block manager of the KV cache: which slots a step writes and reads. It handles ids, never tensors.

Both managers have the same verbs: ``begin`` allocates slots for a step's frames, then exactly one of ``commit`` and
``rollback`` follows. A rollback restores every counter and list.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class StepAllocation:
    """Slots of one step."""

    slot_mapping: tuple[int, ...]
    """Slots that the step's frames are written to, in order."""
    block_table: tuple[int, ...]
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
        self._pending: tuple[int, ...] | None = None
        # Lowest id first: while the window fills, and when it is full, visible slots form one contiguous run.
        self._free = list(range(self.total))

    @property
    def holds_frames(self) -> bool:
        """Whether any frame is kept."""
        return bool(self._pinned)

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
        self._pending = tuple(self._free[:count])
        del self._free[:count]
        window = list(self._window)
        if evict_first and len(window) == self.window_size:
            window = window[1:]
        return StepAllocation(self._pending, (*self._pinned, *window, *self._pending))

    def commit(self) -> None:
        """Keep the step's frames: pinned in the first step, else in the window, which evicts its oldest frame."""
        assert self._pending is not None
        if not self._pinned:
            self._pinned.extend(self._pending)
        else:
            self._window.extend(self._pending)
            if len(self._window) > self.window_size:
                self._release(self._window.popleft())
        self._pending = None

    def rollback(self) -> None:
        """Free the step's slots."""
        assert self._pending is not None
        for slot in self._pending:
            self._release(slot)
        self._pending = None

    def _release(self, slot: int) -> None:
        self._free.append(slot)
        self._free.sort()


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

    def begin(self, count: int) -> StepAllocation:
        """Allocate ``count`` entries after the last one."""
        assert self._pending == 0 and self.entries + count <= self.capacity
        self._pending = count
        end = self.entries + count
        return StepAllocation(tuple(range(self.entries, end)), tuple(range(end)))

    def commit(self) -> tuple[int, ...] | None:
        """Keep the step's entries. If the log was thinned: the entries kept, in their new order."""
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
        """Free the step's entries."""
        assert self._pending
        self._pending = 0
