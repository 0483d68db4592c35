"""A bounded queue between two threads that either side can close."""

import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """Items pass in order. A full channel makes the sender wait; closing it wakes both sides.

    After `close` nothing is taken in; what is inside can still be received unless it was discarded.
    """

    def __init__(self, capacity: int) -> None:
        assert capacity >= 1
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def send(self, item: T) -> bool:
        """Put ``item`` in, waiting for room. False if the channel is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._capacity)
            if self._closed:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def receive(self, timeout_s: float) -> T | None:
        """The next item, or None if none came in time; see `exhausted`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._items, timeout_s)
            if not self._items:
                return None
            self._changed.notify_all()
            return self._items.popleft()

    @property
    def exhausted(self) -> bool:
        """Closed and empty: nothing will come any more."""
        with self._changed:
            return self._closed and not self._items

    def close(self, *, discard: bool = False) -> None:
        """Take nothing in any more; with ``discard`` forget what is inside."""
        with self._changed:
            self._closed = True
            if discard:
                self._items.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        """Items until the channel is closed and empty."""
        while not self.exhausted:
            item = self.receive(timeout_s=1.0)
            if item is not None:
                yield item
