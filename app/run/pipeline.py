"""One run: a source, an engine and listeners connected by threads and bounded queues.

One thread decodes and prepares frames, the calling thread runs the engine, a third one writes and updates the viewer. A
back end has a thread and a queue between engine and listeners; see `Dispatcher`. A slow disk loses no frame of a file;
a live source drops frames by its own rule (`LiveReader`) and counts them.
"""

import dataclasses
import time
from array import array
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from stream_recon.app.core.cancel import Cancel, cancel_on_signals
from stream_recon.app.core.cpu_threads import adaptive_threads
from stream_recon.app.core.process import memory_errors, peak_device_memory_mb, peak_host_memory_mb
from stream_recon.app.core.types import Frame, FrameEngine, FrameResult, PreparedFrame
from stream_recon.app.core.views import ResultListener
from stream_recon.app.result.run_record import RunSummary, evidence_record
from stream_recon.app.result.verdict import focal_change, judge
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.dispatch import DEFAULT_PIPELINE, Channel, Dispatcher, PipelineConfig
from stream_recon.app.run.health import HealthMonitor, LowQualityInterval, clock
from stream_recon.app.run.listeners import BackEnd, Progress, RunObserver
from stream_recon.app.run.masking import Masking
from stream_recon.app.sources.readers import FrameRange
from stream_recon.app.sources.segmentation import DiscontinuityDetector
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import OutputError, StreamReconError

POINTS_OUTDATED = "points.ply lacks the last revisions: its rebuild was interrupted"


@dataclass(frozen=True)
class ResumeState:
    """State of an interrupted run that this one continues."""

    frames: int = 0
    keyframes: int = 0
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    resumed: tuple[dict[str, Any], ...] = ()
    """See `RunSummary`."""
    low_quality: tuple[LowQualityInterval, ...] = ()
    pictures: object = None
    """See `HealthMonitor`."""
    segments: tuple[FrameRange, ...] = ()
    blank_frames: int = 0
    last: PreparedFrame | None = None
    """The last frame; see `DiscontinuityDetector`."""


@dataclass(frozen=True)
class RunSetup:
    """Parts of a run that are not needed for every run.

    Args:
        back_end: gets all results before the listeners, in a separate thread.
        resume: state of an interrupted run that this one continues.
        mask_sky: removes depth where the network recognises nothing; see `Masking`.
        config: queues and times.
        cancel: a request ends the run as Ctrl-C does; None: only Ctrl-C.
    """

    back_end: BackEnd | None = None
    resume: ResumeState = field(default_factory=ResumeState)
    mask_sky: bool = False
    config: PipelineConfig = DEFAULT_PIPELINE
    cancel: Cancel | None = None


def reconstruct(
    source: Source,
    engine: FrameEngine,
    writer: ResultWriter | None = None,
    listeners: Sequence[ResultListener] = (),
    setup: RunSetup | None = None,
    observer: RunObserver | None = None,
) -> RunSummary:
    """Run all frames of a source through an engine into a result folder.

    Ctrl-C stops reading, finishes the frames in progress and marks the result as interrupted. For a live source it is
    the normal end; a live source that was lost counts as interrupted. A second Ctrl-C raises KeyboardInterrupt at once.
    Ctrl-C during the final rebuild of the cloud keeps the old cloud and marks the result as interrupted.

    Args:
        writer: None: nothing is written.
        listeners: get each result and revision after the writer, in the same thread, and must not block for long.
        observer: gets the progress, and may pause the run.

    Raises:
        StreamReconError: from source, engine or writer. Finished frames are in the folder, and ``run.json`` marks the
            run as interrupted.
    """
    run = _PipelineRun(source, engine, writer, listeners, setup or RunSetup(), observer or RunObserver())
    try:
        with cancel_on_signals(setup.cancel if setup else None) as cancel, ThreadPoolExecutor(3, "pipeline") as pool:
            # The listeners come first: where several threads failed, the user has to look at the disk.
            threads = [*run.dispatcher.start(pool), pool.submit(run.decode)]
            try:
                try:
                    run.run_engine(cancel)
                finally:
                    run.stop_threads()
                for thread in threads:
                    thread.result()
            except KeyboardInterrupt:
                run.dispatcher.abandon()
                raise
            interrupted = source.lost or (cancel.requested and not source.live)
    except StreamReconError:
        run.finish(interrupted=True)
        raise
    else:
        return run.finish(interrupted=interrupted)
    finally:
        if writer is not None:
            writer.close()


class _PipelineRun:
    def __init__(
        self,
        source: Source,
        engine: FrameEngine,
        writer: ResultWriter | None,
        listeners: Sequence[ResultListener],
        setup: RunSetup,
        observer: RunObserver,
    ) -> None:
        self.observer = observer
        self._resume = resume = setup.resume
        self._config = config = setup.config
        self._masking = Masking(setup.mask_sky)
        self._discontinuities = DiscontinuityDetector(
            resume.segments, resume.blank_frames, resume.last, source.image_names, source.unordered
        )
        self._source = source
        self._engine = engine
        self._writer = writer
        self._health = HealthMonitor(resume.low_quality, [resume.pictures])
        self._back_end = setup.back_end
        all_listeners = [*([writer] if writer is not None else []), *listeners]
        self.dispatcher = Dispatcher(all_listeners, setup.back_end, self._health, self._checkpoint, config)
        self._frames: Channel[PreparedFrame] = Channel(
            config.live_frames_ahead if source.live else config.file_frames_ahead
        )
        self._next_checkpoint = time.monotonic() + config.checkpoint_seconds
        self._started = time.monotonic()
        self._read = resume.frames
        self._reconstructed = resume.frames
        self._keyframes = resume.keyframes
        self._pushed_at: dict[int, float] = {}
        self._latencies_ms = array("f")
        self._network_focals = array("f")
        """The network's focal lengths."""
        self._recent: deque[float] = deque(maxlen=20)
        self._next_report = 0.0

    def decode(self) -> None:
        """Body of the decoding thread."""
        try:
            for prepared in self._discontinuities.watch(map(self._prepare, self._source)):
                if not self._frames.send(prepared):
                    return
        finally:
            self._frames.close()

    def _prepare(self, frame: Frame) -> PreparedFrame:
        prepared = self._engine.prepare(frame)
        self._masking.note(frame, prepared.transform)
        return self.dispatcher.take_image(frame, prepared)

    def run_engine(self, cancel: Cancel) -> None:
        """Loop of the calling thread: one engine step a frame."""
        with adaptive_threads(self._engine) as adapt_threads:
            while not cancel.requested and not self._frames.exhausted:
                frame = self._frames.receive(self._config.poll_seconds)
                if frame is None:
                    if self._discontinuities.blank_since is not None and time.monotonic() >= self._next_report:
                        self._report()
                    continue
                while self.observer.paused and not cancel.requested:
                    time.sleep(self._config.poll_seconds / 2)
                self._read += 1
                self._pushed_at[frame.index] = time.monotonic()
                self.dispatcher.expect(frame)
                adapt_threads()
                with memory_errors():
                    results = self._engine.push(frame)
                if not self._dispatch(results):
                    return
        with memory_errors():
            results = self._engine.finish()
        self._dispatch(results)
        self._report()

    def stop_threads(self) -> None:
        """End the threads: decoding at once, the others after the results that they have."""
        self._frames.close(discard=True)
        self._source.interrupt()
        self.dispatcher.close()

    def finish(self, *, interrupted: bool) -> RunSummary:
        """Finish the result folder as far as possible. Raises OutputError."""
        summary = self.summary(interrupted=interrupted)
        summary = replace(summary, verdict=judge(evidence_record(summary)).to_json())
        if self._writer is None:
            return summary
        if self.dispatcher.failed:
            # run.json may still fit on a disk that was too full for a frame.
            with suppress(OutputError):
                self._writer.checkpoint(summary)
            return summary
        with cancel_on_signals() as cancel:
            rebuilt = self._writer.finish(summary, cancel.checked(partial(self.observer.on_step, "points")))
        if rebuilt:
            return summary
        return replace(summary, interrupted=True, warnings=(*summary.warnings, POINTS_OUTDATED))

    def summary(self, *, interrupted: bool) -> RunSummary:
        """Counts and timings up to this moment."""
        # A copy in one step: the listeners' thread calls this while the main thread appends.
        latencies, focals = self._latencies_ms[:], self._network_focals[:]
        p50, p95 = (round(float(v), 2) for v in np.percentile(latencies, (50, 95))) if latencies else (None, None)
        return RunSummary(
            interrupted=interrupted,
            frames_read=self._read,
            frames_reconstructed=self._reconstructed,
            keyframes=self._keyframes,
            frames_dropped=self._source.dropped,
            frames_damaged=self._source.damaged,
            seconds=self._resume.seconds + time.monotonic() - self._started,
            latency_p50_ms=p50,
            latency_p95_ms=p95,
            peak_host_memory_mb=peak_host_memory_mb(),
            peak_device_memory_mb=peak_device_memory_mb(self._engine.device),
            attention=self._engine.attention,
            network_focal=float(np.median(focals)) if self._source.intrinsics is not None and len(focals) else None,
            unordered=self._source.unordered,
            focal_change=focal_change(np.asarray(focals)),
            submaps=self._engine.submaps,
            reference_frames=self._engine.reference_frames,
            cache_use=self._engine.cache_use,
            blank_frames=self._discontinuities.blank_frames,
            warnings=(*self._resume.warnings, *self._source.warnings, *self._discontinuities.warnings),
            health=self._health.summary(),
            resumed=self._resume.resumed,
            segments=tuple(dataclasses.asdict(segment) for segment in self._segments()),
            source_lost=self._source.lost,
            stream=self._back_end.figures if self._back_end is not None else None,
        )

    def _segments(self) -> list[FrameRange]:
        return sorted([*self._source.segments, *self._discontinuities.segments], key=lambda segment: segment.index)

    def _dispatch(self, results: Sequence[FrameResult]) -> bool:
        """Send results to back end and listeners; False if one of them has failed."""
        now = time.monotonic()
        for result in map(self._masking.apply, map(self._with_known_camera, results)):
            self._reconstructed += 1
            self._keyframes += result.is_keyframe
            self._latencies_ms.append(1000 * (now - self._pushed_at.pop(result.index, now)))
            self._recent.append(now)
            if not self.dispatcher.send(result):
                return False
        if now >= self._next_report:
            self._report()
        return True

    def _with_known_camera(self, result: FrameResult) -> FrameResult:
        """The result with the known camera of the source instead of the network's."""
        self._network_focals.append(result.intrinsics.fx)
        known = self._source.intrinsics
        if known is None:
            return result
        return replace(result, intrinsics=known)

    def _report(self) -> None:
        if self._recent:
            self.observer.on_progress(self._progress())
            self._next_report = time.monotonic() + self._config.progress_seconds

    def _checkpoint(self) -> None:
        """Write a checkpoint every few seconds, in the listeners' thread."""
        now = time.monotonic()
        if self._writer is None or now < self._next_checkpoint:
            return
        self._writer.checkpoint(self.summary(interrupted=True))
        ended = time.monotonic()
        config = self._config
        self._next_checkpoint = ended + max(config.checkpoint_seconds, (ended - now) / config.checkpoint_share)

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
        blind = self._discontinuities.blank_since
        if blind is not None:
            return f"the image is {blind[1]} since {clock(blind[0])}: these frames are skipped"
        if self._source.unordered:
            return "photographs in no order: they are put together at the end"
        segments = self._segments()
        return self._health.notice or (f"new segment: {segments[-1].reason}" if segments else None)
