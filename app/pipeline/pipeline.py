"""Source, engine and listeners at work side by side.

A thread decodes and resizes, the calling thread runs the engine, a third writes and tells the viewer; bounded queues
between them. A stage, where there is one, has a thread and a queue of its own behind the engine; see `Dispatcher`.
A slow disk therefore slows a file down and loses nothing. For a live source it makes the decoder wait, and the
source drops frames by its own rule (`LiveReader`) and counts them.
"""

import dataclasses
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stream_recon.app.core.protocols import FrameEngine
from stream_recon.app.core.types import Frame, FrameResult, PreparedFrame
from stream_recon.app.pipeline.cpu_threads import adaptive_threads
from stream_recon.app.pipeline.dispatch import Channel, Dispatcher
from stream_recon.app.pipeline.health import HealthWatch, WeakInterval, clock
from stream_recon.app.pipeline.listeners import BackEnd, ResultListener
from stream_recon.app.pipeline.masking import Masking
from stream_recon.app.pipeline.process import (
    StopRequest,
    memory_errors,
    peak_device_memory_mb,
    peak_host_memory_mb,
    stop_on_signals,
)
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.sources.preprocess import grey_image
from stream_recon.app.sources.readers import FrameRange
from stream_recon.app.sources.segmentation import DiscontinuityDetector
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import OutputError, StreamReconError

FILE_FRAMES_AHEAD = 8
"""Small images wait; enough of them to bridge a frame that is slow to decode."""
LIVE_FRAMES_AHEAD = 1
"""A frame that waits is an old one by the time it is looked at."""
CHECKPOINT_SECONDS = 5.0
CHECKPOINT_SHARE = 0.05
"""Share of the listeners' time, at most, that goes into checkpoints: they get rarer as revisions get larger."""
POLL_SECONDS = 0.1
POINTS_BEHIND = "points.ply is as before the last revisions: building it anew was interrupted"
PROGRESS_SECONDS = 0.1
"""Between two reports: asking a GPU for its memory and drawing a bar for every frame would hold up fast steps."""


@dataclass(frozen=True)
class Progress:
    """Where a run is: told after some frames, and after the last one."""

    frames: int
    frame_hint: int | None
    keyframes: int
    dropped: int
    fps: float
    """Over the last frames."""
    memory_mb: float
    """Peak memory of the device where it is a GPU, else of this process."""
    notice: str | None = None
    """What a user should know of the frames now: that tracking is weak, that nothing is to be seen, or why the stretch
    under way began, unless it is the first."""
    back_end: str = ""
    """What the stage tells of itself."""


@dataclass(frozen=True)
class ResumeState:
    """What an earlier run did that was cut off."""

    frames: int = 0
    keyframes: int = 0
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    resumed: tuple[dict[str, Any], ...] = ()
    """See `RunSummary`."""
    health: tuple[float, ...] = ()
    weak: tuple[WeakInterval, ...] = ()
    """See `HealthWatch`."""
    segments: tuple[FrameRange, ...] = ()
    blank_frames: int = 0
    last: PreparedFrame | None = None
    """The last frame; see `DiscontinuityDetector`."""


def reconstruct(
    source: Source,
    engine: FrameEngine,
    writer: ResultWriter | None,
    listeners: Sequence[ResultListener] = (),
    on_progress: Callable[[Progress], None] | None = None,
    *,
    back_end: BackEnd | None = None,
    paused: Callable[[], bool] | None = None,
    on_rebuild: Callable[[int, int], None] | None = None,
    before: ResumeState | None = None,
    mask_sky: bool = False,
) -> RunSummary:
    """Run a whole source through an engine into a result folder, and let others listen.

    Ctrl-C stops reading, finishes the frames under way, and marks the result as interrupted (a live source has no
    other end: there it is the normal one). A live source that broke off and did not come back is an interruption, too.
    A second Ctrl-C raises KeyboardInterrupt at once. While the cloud is built
    anew at the end, Ctrl-C leaves the old one and marks the result as interrupted.

    Args:
        writer: None where nothing shall be kept.
        listeners: hear each result and revision after the writer, in the same thread; none may hold it up for long.
        stage: stands between engine and listeners, in a thread of its own.
        paused: while it says so no frame goes into the engine. A live source drops and counts what comes meanwhile.
        before: what an earlier run had done that this one goes on with.
        mask_sky: leave out of each result where the network sees nothing; see `Masking`.
        on_rebuild: told how many frames are done, of how many, while the cloud is built anew after revisions.

    Raises:
        StreamReconError: from source, engine or writer. What was finished before is in the folder, and
            ``run.json`` says that the run was interrupted.
    """
    run = _PipelineRun(
        source, engine, writer, listeners, back_end, on_progress, paused, before or ResumeState(), mask_sky
    )
    try:
        with stop_on_signals() as stop, ThreadPoolExecutor(3, "pipeline") as pool:
            # First the listeners: where several failed, the disk is what the user has to look at.
            threads = [*run.delivery.start(pool), pool.submit(run.decode)]
            try:
                try:
                    run.step_through(stop)
                finally:
                    run.stop_threads()
                for thread in threads:
                    thread.result()
            except KeyboardInterrupt:
                run.delivery.abandon()
                raise
            interrupted = source.lost or (stop.requested and not source.live)
    except StreamReconError:
        run.keep(interrupted=True)
        raise
    else:
        return run.keep(interrupted=interrupted, on_rebuild=on_rebuild)
    finally:
        if writer is not None:
            writer.close()


def _told(segment: FrameRange) -> str:
    return f"{segment.reason}: what follows is a new stretch, whose place beside what came before is a guess"


class _PipelineRun:
    def __init__(
        self,
        source: Source,
        engine: FrameEngine,
        writer: ResultWriter | None,
        listeners: Sequence[ResultListener],
        back_end: BackEnd | None,
        on_progress: Callable[[Progress], None] | None,
        paused: Callable[[], bool] | None,
        before: ResumeState,
        mask_sky: bool = False,
    ) -> None:
        self._before = before
        self._masking = Masking(mask_sky)
        self._breaks = DiscontinuityDetector(before.segments, before.blank_frames, before.last)
        self._source = source
        self._engine = engine
        self._writer = writer
        self._health = HealthWatch(before.health, before.weak)
        told = [*([writer] if writer is not None else []), *listeners]
        self.delivery = Dispatcher(told, back_end, self._health, self._checkpoint)
        self._back_end = back_end
        self._on_progress = on_progress
        self._paused = paused
        self._frames: Channel[PreparedFrame] = Channel(LIVE_FRAMES_AHEAD if source.live else FILE_FRAMES_AHEAD)
        self._next_checkpoint = time.monotonic() + CHECKPOINT_SECONDS
        self._begun = time.monotonic()
        self._read = before.frames
        self._reconstructed = before.frames
        self._keyframes = before.keyframes
        self._pushed_at: dict[int, float] = {}
        self._latencies_ms = array("f")
        self._network_focals = array("f")
        """Where the camera is known: what the network took it for."""
        self._recent: deque[float] = deque(maxlen=20)
        self._next_report = 0.0

    def decode(self) -> None:
        """Body of the first thread."""
        try:
            for prepared in self._breaks.watch(map(self._prepare, self._source)):
                if not self._frames.send(prepared):
                    return
        finally:
            self._frames.close()

    def _prepare(self, frame: Frame) -> PreparedFrame:
        prepared = self._engine.prepare(frame)
        self._masking.note(frame, prepared.transform)
        return replace(prepared, grey=grey_image(frame.rgb)) if self.delivery.wants_grey else prepared

    def step_through(self, stop: StopRequest) -> None:
        """Body of the main thread."""
        with adaptive_threads(self._engine) as leave_cores:
            while not stop.requested and not self._frames.exhausted:
                frame = self._frames.receive(POLL_SECONDS)
                if frame is None:
                    if self._breaks.blank_since is not None and time.monotonic() >= self._next_report:
                        self._report()
                    continue
                self._wait_while_paused(stop)
                self._read += 1
                self._pushed_at[frame.index] = time.monotonic()
                self.delivery.expect(frame)
                leave_cores()
                with memory_errors():
                    results = self._engine.push(frame)
                if not self._hand_on(results):
                    return
        with memory_errors():
            results = self._engine.finish()
        self._hand_on(results)
        self._report()

    def stop_threads(self) -> None:
        """Let all threads come to their end: the decoder at once, the others when they have done what they got."""
        self._frames.close(discard=True)
        self._source.interrupt()
        self.delivery.close()

    def keep(self, *, interrupted: bool, on_rebuild: Callable[[int, int], None] | None = None) -> RunSummary:
        """The run's end: let the writer finish, where it still can. Raises OutputError."""
        summary = self.summary(interrupted=interrupted)
        if self._writer is None:
            return summary
        if self.delivery.failed:
            # The counts may still fit where a whole frame did not.
            with suppress(OutputError):
                self._writer.checkpoint(summary)
            return summary
        with stop_on_signals() as stop:
            whole = self._writer.finish(summary, on_rebuild, lambda: stop.requested)
        if whole:
            return summary
        return replace(summary, interrupted=True, warnings=(*summary.warnings, POINTS_BEHIND))

    def summary(self, *, interrupted: bool) -> RunSummary:
        """The run so far."""
        # A copy, made in one step: this is asked in the listeners' thread, too, while another one appends.
        latencies = self._latencies_ms[:]
        p50, p95 = (round(float(v), 2) for v in np.percentile(latencies, (50, 95))) if latencies else (None, None)
        return RunSummary(
            interrupted=interrupted,
            frames_read=self._read,
            frames_reconstructed=self._reconstructed,
            keyframes=self._keyframes,
            frames_dropped=self._source.dropped,
            frames_damaged=self._source.damaged,
            seconds=self._before.seconds + time.monotonic() - self._begun,
            latency_p50_ms=p50,
            latency_p95_ms=p95,
            peak_host_memory_mb=peak_host_memory_mb(),
            peak_device_memory_mb=peak_device_memory_mb(self._engine.device),
            attention=self._engine.attention,
            network_focal=float(np.median(self._network_focals)) if self._network_focals else None,
            submaps=self._engine.submaps,
            reference_frames=self._engine.reference_frames,
            blank_frames=self._breaks.blank_frames,
            warnings=(*self._before.warnings, *self._source.warnings, *map(_told, self._new_breaks())),
            health=self._health.summary(),
            resumed=self._before.resumed,
            segments=tuple(dataclasses.asdict(segment) for segment in self._segments()),
            source_lost=self._source.lost,
            stream=self._back_end.figures if self._back_end is not None else None,
        )

    def _new_breaks(self) -> list[FrameRange]:
        return self._breaks.segments[len(self._before.segments) :]

    def _segments(self) -> list[FrameRange]:
        return sorted([*self._source.segments, *self._breaks.segments], key=lambda segment: segment.index)

    def _hand_on(self, results: Sequence[FrameResult]) -> bool:
        """To the listeners; False if one has failed."""
        now = time.monotonic()
        for result in map(self._masking.apply, map(self._through_known_camera, results)):
            if isinstance(result, FrameResult):
                self._reconstructed += 1
                self._keyframes += result.is_keyframe
                self._latencies_ms.append(1000 * (now - self._pushed_at.pop(result.index, now)))
                self._recent.append(now)
            if not self.delivery.send(result):
                return False
        if now >= self._next_report:
            self._report()
        return True

    def _through_known_camera(self, result: FrameResult) -> FrameResult:
        """A result with the camera that the source is known to have, whatever the network takes it for."""
        known = self._source.intrinsics
        if known is None:
            return result
        self._network_focals.append(result.intrinsics.fx)
        return replace(result, intrinsics=known)

    def _report(self) -> None:
        if self._on_progress is not None and self._recent:
            self._on_progress(self._progress())
            self._next_report = time.monotonic() + PROGRESS_SECONDS

    def _checkpoint(self) -> None:
        """Every few seconds, in the listeners' thread."""
        now = time.monotonic()
        if self._writer is None or now < self._next_checkpoint:
            return
        self._writer.checkpoint(self.summary(interrupted=True))
        ended = time.monotonic()
        self._next_checkpoint = ended + max(CHECKPOINT_SECONDS, (ended - now) / CHECKPOINT_SHARE)

    def _wait_while_paused(self, stop: StopRequest) -> None:
        """Hold the engine while a user looks around. A live source drops and counts what comes meanwhile."""
        while self._paused is not None and self._paused() and not stop.requested:
            time.sleep(POLL_SECONDS / 2)

    def _progress(self) -> Progress:
        spent = self._recent[-1] - self._recent[0]
        device_memory = peak_device_memory_mb(self._engine.device)
        return Progress(
            frames=self._reconstructed,
            frame_hint=self._source.frame_hint,
            keyframes=self._keyframes,
            dropped=self._source.dropped,
            fps=(len(self._recent) - 1) / spent if spent > 0 else 0.0,
            memory_mb=peak_host_memory_mb() if device_memory is None else device_memory,
            notice=self._notice(),
            back_end=self._back_end.status_line if self._back_end is not None else "",
        )

    def _notice(self) -> str | None:
        blind = self._breaks.blank_since
        if blind is not None:
            return f"the picture is {blind[1]} since {clock(blind[0])}: its frames are left out"
        segments = self._segments()
        return self._health.weak or (f"new stretch: {segments[-1].reason}" if segments else None)
