"""From the engine to the listeners: a thread that tells them, and one before it where a stage stands between.

A bounded queue between two threads that either side can close.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Generic, TypeVar

from stream_recon.app.core.disk_table import AscendingColumn
from stream_recon.app.core.transforms import is_rigid
from stream_recon.app.core.types import FrameResult, PreparedFrame, Revision
from stream_recon.app.pipeline.health import HealthWatch
from stream_recon.app.pipeline.listeners import BackEnd, ResultListener
from stream_recon.app.pipeline.process import memory_errors
from stream_recon.configs.errors import StreamReconError

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


RESULTS_BEHIND = 16
IDLE_SECONDS = 1.0


class Dispatcher:
    """Bounded queues and the bodies of their threads.

    Args:
        listeners: told in this order; see `ResultListener`.
        stage: see `BackEnd`; None: results go straight to the listeners.
        health: looks at each result before the listeners do.
        between: called by the listeners' thread after each item, and now and then while none comes.
    """

    def __init__(
        self,
        listeners: Sequence[ResultListener],
        back_end: BackEnd | None,
        health: HealthWatch,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self.failed = False
        """Whether a listener raised an error that a user can do something about."""
        self._listeners = listeners
        self._back_end = back_end
        self._health = health
        self._between = between
        self._staged: Channel[tuple[FrameResult, PreparedFrame]] = Channel(RESULTS_BEHIND)
        self._items: Channel[FrameResult | Revision] = Channel(RESULTS_BEHIND)
        self._frames: dict[int, PreparedFrame] = {}
        self._abandoned = threading.Event()
        self._added = AscendingColumn()

    @property
    def wants_grey(self) -> bool:
        """Whether frames are to carry `PreparedFrame.grey`."""
        return self._back_end is not None and self._back_end.wants_grey

    def start(self, pool: Executor) -> list[Future[None]]:
        """Begin the threads; the futures end after `close`, or raise what went wrong. The listeners' comes first."""
        bodies = [self._listen] if self._back_end is None else [self._listen, self._run_back_end]
        return [pool.submit(body) for body in bodies]

    def expect(self, frame: PreparedFrame) -> None:
        """Note a frame whose result will be sent: the stage gets both."""
        if self._back_end is not None:
            self._frames[frame.index] = frame

    def send(self, result: FrameResult) -> bool:
        """Hand a result on, waiting for room. False once a listener or the stage has failed."""
        if self._back_end is None:
            return self._items.send(result)
        return self._staged.send((result, self._frames.pop(result.index)))

    def close(self) -> None:
        """No result will come any more. What was sent is still delivered, and the stage has its last word."""
        self._staged.close()
        if self._back_end is None:
            self._items.close()

    def abandon(self) -> None:
        """`close`, but what the stage has not looked at yet is dropped, and it has no last word."""
        self._abandoned.set()
        self._staged.close(discard=True)
        self.close()

    def _run_back_end(self) -> None:
        assert self._back_end is not None
        try:
            for result, frame in self._staged:
                with memory_errors():
                    items = self._back_end.push(result, frame)
                if not all(self._items.send(item) for item in items):
                    return
            if not self._abandoned.is_set():
                with memory_errors():
                    items = self._back_end.finish()
                all(self._items.send(item) for item in items)
        finally:
            self._staged.close(discard=True)
            self._items.close()

    def _listen(self) -> None:
        try:
            while not self._items.exhausted:
                item = self._items.receive(IDLE_SECONDS)
                if item is not None:
                    self._tell(item)
                self._between()
        except StreamReconError:
            self.failed = True
            raise
        finally:
            self._items.close(discard=True)

    def _tell(self, item: FrameResult | Revision) -> None:
        if isinstance(item, FrameResult):
            self._added.append(item.index)
            # A copy: the engine holds on to some results, and not to what listeners work out of them.
            item = replace(item, health=self._health.judge(item))
            for listener in self._listeners:
                listener.add(item)
            return
        self._check(item)
        for listener in self._listeners:
            listener.revise(item)

    def _check(self, revision: Revision) -> None:
        """The one place where a revision is looked at: listeners rely on it."""
        indices = {frame.index for frame in revision.frames}
        assert len(indices) == len(revision.frames), "a revision names a frame twice"
        unknown = [index for index in indices if index not in self._added]
        assert not unknown, f"frames {sorted(unknown)} have no result to revise"
        assert all(is_rigid(frame.T_world_camera) for frame in revision.frames), "a revised pose is not rigid"
        assert all(0 < frame.depth_scale < float("inf") for frame in revision.frames), "a depth scale is not positive"
