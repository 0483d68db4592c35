"""Publisher of a run: takes the events that the viewer gets, and publishes them in a thread of its own."""

import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.core.types import FrameResult, Revision
from stream_recon.app.publishing.event_queue import EventQueue, FrameEvent, RevisionEvent
from stream_recon.app.publishing.frame_tree import Tracked, camera_on_base
from stream_recon.app.publishing.message_source import MessageSource
from stream_recon.app.publishing.messages import FROM_POSE, FROM_RESULT
from stream_recon.app.publishing.sink import Sink
from stream_recon.configs.schema import PointsConfig

log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""Longest wait for the events that are left at the end."""
ROOM_SECONDS = 0.05
"""Interval at which a run that waits for a file looks again."""


@dataclass(frozen=True)
class Clock:
    """Stamps of frames."""

    origin_ns: int
    """Stamp of the second 0 of the source."""
    live: bool = False
    """Frames arrive in real time, stamped by a clock like this machine's."""

    def stamp_ns(self, timestamp: float) -> int:
        """Stamp of a frame at ``timestamp`` seconds of its source."""
        return self.origin_ns + round(timestamp * 1e9)


@dataclass(frozen=True)
class PublisherOptions:
    """What a publisher needs to know of its run."""

    points: PointsConfig
    """Selection of points."""
    clock: Clock
    T_base_camera: FloatArray = field(default_factory=camera_on_base)
    """Pose [4, 4] of the optical frame in ``base_link``."""
    heartbeat_s: float = 1.0
    """Interval of diagnostics while no frame arrives."""
    silence_s: float = 2.0
    """Time without a frame of a live source after which tracking is lost."""


class ResultPublisher:
    """`ResultListener` that publishes to sinks. `add` and `revise` do not wait, except for a file that records all.

    If publishing is slower than the video, the oldest waiting depth maps and images are dropped; poses are kept. A sink
    that fails is reported once and left out; the run goes on.
    """

    def __init__(self, sinks: Sequence[Sink], options: PublisherOptions) -> None:
        self.sinks = tuple(sinks)
        self._options = options
        self.failures: list[str] = []
        """What went wrong, one line for each sink that failed."""
        live, silence_s = options.clock.live, options.silence_s if options.clock.live else math.inf
        self.source = MessageSource(sinks, options.points, options.T_base_camera, live=live, silence_s=silence_s)
        self.source.on_failure = self._note_failure
        self._lossless = any(sink.lossless for sink in sinks)
        self._changed = threading.Condition()
        self._queue = EventQueue()
        self._busy = self._closed = False
        self._peer_joined = False
        self._last_at = time.monotonic()
        for sink in self.sinks:
            sink.start(self._wake)
        self._thread = threading.Thread(target=self._work, name="publisher", daemon=True)
        self._thread.start()

    def __enter__(self) -> "ResultPublisher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def dropped(self) -> int:
        """Frames whose depth and image were dropped."""
        return self._queue.dropped_results

    def add(self, result: FrameResult) -> None:
        """Take a frame's result."""
        tracked = Tracked.of(result, self._options.clock.stamp_ns(result.timestamp))
        needs_result = any(map(self.source.wanted, FROM_RESULT))
        # Without peers the thread looks once a heartbeat: waking it costs more than its work.
        awaited = needs_result or self._lossless or any(map(self.source.wanted, FROM_POSE))
        with self._changed:
            while self._lossless and not self._queue.has_room and self._thread.is_alive():
                self._changed.wait(ROOM_SECONDS)
            if not self._closed:
                self._queue.add(tracked, result if needs_result else None)
                if awaited:
                    self._changed.notify_all()

    def revise(self, revision: Revision) -> None:
        """Take a revision of earlier frames."""
        with self._changed:
            if not self._closed:
                self._queue.revise(revision)
                self._changed.notify_all()

    def flush(self, timeout_s: float = CLOSE_SECONDS) -> bool:
        """Wait until everything so far is published; False after the timeout."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._changed.notify_all()
            while len(self._queue) or self._busy or self._peer_joined:
                if time.monotonic() > deadline or not self._thread.is_alive():
                    return False
                self._changed.wait(ROOM_SECONDS)
        return True

    def close(self) -> None:
        """Publish what is left, with a last path, and stop."""
        self.flush()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)
        for sink in self.sinks:
            sink.close()

    def _note_failure(self, sink: Sink, error: Exception) -> None:
        line = f"{sink.address}: {error}"
        self.failures.append(line)
        log.warning("publishing to %s has ended", line)

    def _wake(self) -> None:
        with self._changed:
            self._peer_joined = True
            self._changed.notify_all()

    def _work(self) -> None:
        """Body of the thread."""
        try:
            self.source.begin()
            while self._step():
                pass
            self.source.send_path(now=True)
        except Exception as error:
            log.exception("publishing failed and has ended; the run continues")
            self.failures.append(f"publishing failed: {error}")
        finally:
            with self._changed:
                self._closed, self._busy = True, False
                self._queue.clear()
                self._changed.notify_all()

    def _step(self) -> bool:
        """Process one event, or new peers, or the time that passed; False at the end."""
        with self._changed:
            if not len(self._queue) and not self._peer_joined and not self._closed:
                self._changed.wait(self._options.heartbeat_s)
            event, self._busy = self._queue.take(), True
            joined, self._peer_joined = self._peer_joined, False
            closed = self._closed
        if joined:
            self.source.welcome()
        if event is not None:
            self._publish(event)
        elif not joined and not closed:
            self.source.heartbeat(time.monotonic() - self._last_at)
        with self._changed:
            self._busy = False
            self._changed.notify_all()
        return event is not None or not closed

    def _publish(self, event: FrameEvent | RevisionEvent) -> None:
        if isinstance(event, RevisionEvent):
            self.source.revise(event.frames)
            return
        self._last_at = time.monotonic()
        if self.dropped:
            self.source.extra["frames_without_depth"] = str(self.dropped)
        self.source.add(event.tracked, event.result)
