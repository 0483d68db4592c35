"""Delivery of results to back end and listeners: bounded queues and the bodies of their threads."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.per_frame_arrays import SortedFrameNumbers
from stream_recon.app.core.process import memory_errors
from stream_recon.app.core.transforms import is_rigid
from stream_recon.app.core.types import Frame, FrameResult, PreparedFrame, Revision
from stream_recon.app.core.views import IMAGE_SIDE, ResultListener
from stream_recon.app.run.health import HealthMonitor
from stream_recon.app.run.listeners import BackEnd
from stream_recon.app.sources.preprocess import grey_image, reduced_image
from stream_recon.configs.errors import StreamReconError

T = TypeVar("T")


class Channel(Generic[T]):
    """Bounded queue between two threads that either side can close.

    A full channel blocks the sender. After `close` nothing more can be sent; items inside can still be received unless
    they were discarded.
    """

    def __init__(self, capacity: int) -> None:
        assert capacity >= 1
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def send(self, item: T) -> bool:
        """Append ``item``, waiting for room. False if the channel is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._capacity)
            if self._closed:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def receive(self, timeout_s: float) -> T | None:
        """The next item, or None after the timeout; see `exhausted`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._items, timeout_s)
            if not self._items:
                return None
            self._changed.notify_all()
            return self._items.popleft()

    @property
    def exhausted(self) -> bool:
        """Whether the channel is closed and empty."""
        with self._changed:
            return self._closed and not self._items

    def close(self, *, discard: bool = False) -> None:
        """Refuse further items; with ``discard`` also drop those inside."""
        with self._changed:
            self._closed = True
            if discard:
                self._items.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        """Items, until the channel is closed and empty."""
        while not self.exhausted:
            item = self.receive(timeout_s=1.0)
            if item is not None:
                yield item


@dataclass(frozen=True)
class PipelineConfig:
    """Lengths of the queues between the threads of a run, and times between what they do now and then."""

    file_frames_ahead: int = 8
    """Frames of a file that wait for the engine. They are small, and bridge a frame that is slow to decode."""
    live_frames_ahead: int = 1
    """Frames of a live source that wait for the engine. More would only add latency."""
    queued_results: int = 16
    """Results that wait for the back end, or for the listeners: they bridge a slow write without much memory."""
    idle_seconds: float = 1.0
    """Wait for a result before a checkpoint is considered again."""
    checkpoint_seconds: float = 5.0
    """Time between two checkpoints: a killed run loses at most these seconds of revisions."""
    checkpoint_share: float = 0.05
    """Largest share of the listeners' time for checkpoints, which take longer the more frames they revise."""
    poll_seconds: float = 0.1
    """Wait for a frame before Ctrl-C is checked again."""
    progress_seconds: float = 0.1
    """Time between two reports: reading GPU memory and drawing a bar at every frame would delay fast steps."""


DEFAULT_PIPELINE = PipelineConfig()


class Dispatcher:
    """Passes results through the back end, if there is one, to the listeners.

    Args:
        listeners: called in this order; see `ResultListener`.
        back_end: None: results go directly to the listeners.
        health: judges each result before the listeners get it.
        after_item: called by the listeners' thread after each item, and now and then without one.
    """

    def __init__(
        self,
        listeners: Sequence[ResultListener],
        back_end: BackEnd | None,
        health: HealthMonitor,
        after_item: Callable[[], None] = lambda: None,
        config: PipelineConfig = DEFAULT_PIPELINE,
    ) -> None:
        self._config = config
        self.failed = False
        """Whether a listener raised a `StreamReconError`."""
        self._listeners = listeners
        self._add_image = {id(each): each.add_image for each in listeners if hasattr(each, "add_image")}
        """The method of the listeners that get images, by the listener."""
        self._back_end = back_end
        self._health = health
        self._after_item = after_item
        self._pending: Channel[tuple[FrameResult, PreparedFrame]] = Channel(config.queued_results)
        self._items: Channel[FrameResult | Revision] = Channel(config.queued_results)
        self._frames: dict[int, PreparedFrame] = {}
        self._images: dict[int, NDArray[np.uint8]] = {}
        self._abandoned = threading.Event()
        self._added = SortedFrameNumbers()

    def take_image(self, frame: Frame, prepared: PreparedFrame) -> PreparedFrame:
        """The frame, with a grey image where the back end wants one. Keeps a reduced image where a listener gets it."""
        if self._add_image:
            self._images[frame.index] = reduced_image(frame.rgb, IMAGE_SIDE)
        wants_grey = self._back_end is not None and self._back_end.wants_grey
        return replace(prepared, grey=grey_image(frame.rgb)) if wants_grey else prepared

    def start(self, pool: Executor) -> list[Future[None]]:
        """Start the threads. Their futures end after `close` or raise the error; the listeners' future comes first."""
        bodies = [self._listen] if self._back_end is None else [self._listen, self._run_back_end]
        return [pool.submit(body) for body in bodies]

    def expect(self, frame: PreparedFrame) -> None:
        """Keep a frame until its result is sent: the back end gets both."""
        if self._back_end is not None:
            self._frames[frame.index] = frame

    def send(self, result: FrameResult) -> bool:
        """Queue a result, waiting for room. False once a listener or the back end has failed."""
        if self._back_end is None:
            return self._items.send(result)
        return self._pending.send((result, self._frames.pop(result.index)))

    def close(self) -> None:
        """End of the results. Those sent are still delivered, and the back end finishes."""
        self._pending.close()
        if self._back_end is None:
            self._items.close()

    def abandon(self) -> None:
        """As `close`, but results that wait for the back end are dropped, and it does not finish."""
        self._abandoned.set()
        self._pending.close(discard=True)
        self.close()

    def _run_back_end(self) -> None:
        assert self._back_end is not None
        try:
            for result, frame in self._pending:
                with memory_errors():
                    items = self._back_end.push(result, frame)
                if not all(self._items.send(item) for item in items):
                    return
            if not self._abandoned.is_set():
                with memory_errors():
                    items = self._back_end.finish()
                all(self._items.send(item) for item in items)
        finally:
            self._pending.close(discard=True)
            self._items.close()

    def _listen(self) -> None:
        try:
            while not self._items.exhausted:
                item = self._items.receive(self._config.idle_seconds)
                if item is not None:
                    self._deliver(item)
                self._after_item()
        except StreamReconError:
            self.failed = True
            raise
        finally:
            self._items.close(discard=True)

    def _deliver(self, item: FrameResult | Revision) -> None:
        if isinstance(item, FrameResult):
            self._added.append(item.index)
            # A copy: the engine keeps some results, and need not keep the values that listeners cache in them.
            item = replace(item, health=self._health.judge(item))
            image = self._images.pop(item.index, None)
            for index in [index for index in list(self._images) if index < item.index]:
                self._images.pop(index, None)  # of a frame that was skipped
            for listener in self._listeners:
                if image is not None and item.is_keyframe and id(listener) in self._add_image:
                    self._add_image[id(listener)](item.index, image)
                listener.add(item)
            return
        self._check(item)
        for listener in self._listeners:
            listener.revise(item)

    def _check(self, revision: Revision) -> None:
        """Check a revision, once for all listeners."""
        indices = {frame.index for frame in revision.frames}
        assert len(indices) == len(revision.frames), "a revision names a frame twice"
        unknown = [index for index in indices if index not in self._added]
        assert not unknown, f"frames {sorted(unknown)} have no result to revise"
        assert all(is_rigid(frame.T_world_camera) for frame in revision.frames), "a revised pose is not rigid"
        assert all(0 < frame.depth_scale < float("inf") for frame in revision.frames), "a depth scale is not positive"
