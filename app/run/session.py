"""Composition of one run, shared by commands, batch and benchmarks.

A `Session` connects source, engine, result writer, back end, and the state of an interrupted run. The stages follow
(`run_stages`). Callers show progress through a `RunObserver`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_recon.app.core.cancel import Cancel
from stream_recon.app.core.cores import usable_cores
from stream_recon.app.core.process import memory_errors
from stream_recon.app.core.types import FrameEngine, OverlapError
from stream_recon.app.core.views import ResultListener
from stream_recon.app.result.disk_limit import DiskLimit
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.metric_scale import metric_scale_of
from stream_recon.app.result.resume import PartialResult, finished_record, read_partial_result
from stream_recon.app.result.run_record import RunInfo, RunSummary, now_text
from stream_recon.app.result.writer import CloudTime, ResultWriter, check_output
from stream_recon.app.run.health import low_quality_intervals
from stream_recon.app.run.listeners import BackEnd, RunObserver
from stream_recon.app.run.options import RunOptions
from stream_recon.app.run.pipeline import ResumeState, RunSetup, reconstruct
from stream_recon.app.slam.mode import make_back_end
from stream_recon.app.sources.readers import FrameRange
from stream_recon.app.sources.source import Source

if TYPE_CHECKING:
    from stream_recon.app.run.live_onto import OntoBackEnd
    from stream_recon.app.slam.online.back_end import OnlineBackEnd
    from stream_recon.app.slam.online.map import MapState
    from stream_recon.app.slam.online.process import ProcessBackEnd

PROCESS_CORES = 4
"""CPU cores from which the back end runs in a separate process next to a GPU. On a CPU the network needs all cores."""


@dataclass(frozen=True)
class Output:
    """Result folder of a run.

    Args:
        lock: the folder's lock where the caller holds it; None: the run takes it.
        partial: result of an interrupted run in the folder, which this run continues.
        limit: None: everything is kept.
        cloud: when points are written; other than ``live`` only where all depth files are kept.
    """

    folder: Path
    info: RunInfo
    overwrite: bool = False
    lock: FolderLock | None = None
    partial: PartialResult | None = None
    limit: DiskLimit | None = None
    cloud: CloudTime = "live"

    def open(self) -> ResultWriter:
        """Writer of the folder. Raises OutputError."""
        writer = ResultWriter(
            self.folder, self.info, overwrite=self.overwrite, lock=self.lock, resume=self.partial, limit=self.limit
        )
        writer.cloud = self.cloud
        return writer


@dataclass(frozen=True)
class EarlierRun:
    """Result in the output folder that ``--resume`` continues; at most one of the two is set."""

    record: Mapping[str, Any] | None = None
    """The ``run.json`` of a result with all its frames."""
    partial: PartialResult | None = None

    @staticmethod
    def find(folder: Path, *, resume: bool, overwrite: bool) -> "EarlierRun":
        """The result to continue; none without ``resume``. Raises OutputError where the folder has other content."""
        record = finished_record(folder) if resume else None
        partial = read_partial_result(folder) if resume and record is None else None
        if record is None and partial is None:
            # A run that was interrupted before its first result has left nothing to lose.
            check_output(folder, overwrite or resume)
        return EarlierRun(record, partial)


class Session(ExitStack):
    """One run of an engine over a source. Use it as a context manager: it may open the source again to resume.

    Args:
        engine: after `reset`.
        source: at its first frame; the caller closes it.
        open_again: opens the source again, with the same choice of frames.
        output: None: nothing is written.
        process_allowed: the back end may run in a separate process, which imports the main module again.

    Raises:
        StreamReconError: the folder cannot be written, or the interrupted run cannot be continued.
    """

    def __init__(
        self,
        engine: FrameEngine,
        source: Source,
        open_again: Callable[[], Source],
        options: RunOptions,
        output: Output | None,
        *,
        process_allowed: bool = False,
    ) -> None:
        super().__init__()
        self._engine, self._options, self._process_allowed = engine, options, process_allowed
        self._writer = None if output is None else output.open()
        self.source = source
        self.resumed = ResumeState()
        """State of the interrupted run."""
        partial = None if output is None else output.partial
        try:
            if partial is not None:
                self._continue(partial, open_again)
            self.back_end = self._make_back_end(partial)
        except BaseException:
            self.close()
            if self._writer is not None:
                self._writer.close()
            raise

    def _continue(self, partial: PartialResult, open_again: Callable[[], Source]) -> None:
        """Bring source and engine to the last finished frame. Raises StreamReconError.

        A source that cannot seek is opened again and read up to that frame.
        """
        last, count, stream = partial.last, len(partial.cameras), self._engine.preset.stream
        if not self.source.resume(last.index, last.timestamp, count):
            self.source = self.enter_context(open_again())
            self.source.resume_by_reading(last.index, count)
        remembered = max(stream.window, stream.camera_window)
        # Where a back end follows, the engine continues from the network's own poses; else from those of the result.
        network_poses = self._options.mapping != "off"
        first, later = partial.last_submap(stream.scale_frames, remembered, network_poses=network_poses)
        with memory_errors():
            overlap_error = self._engine.resume(first, later)
        self.resumed = _resume_state(partial, overlap_error)

    def _make_back_end(self, partial: PartialResult | None) -> "OnlineBackEnd | ProcessBackEnd | OntoBackEnd | None":
        options = self._options
        back_end = make_back_end(
            options.mapping,
            # A resumed run gets single results from the start, in the coordinate frame of the earlier ones.
            1 if partial is not None else self._engine.preset.stream.scale_frames,
            live=self.source.live,
            known_intrinsics=options.known_intrinsics,
            map_state=_map_state(partial) if partial is not None else None,
            separate_process=self._process_allowed and self._engine.device != "cpu" and usable_cores() >= PROCESS_CORES,
        )
        if options.onto is None or back_end is None:
            return back_end
        from stream_recon.app.localization.localize import LocalizationMap
        from stream_recon.app.run.live_onto import OntoBackEnd

        return OntoBackEnd(
            back_end,
            LocalizationMap.open(options.onto),
            live=self.source.live,
            known_intrinsics=options.known_intrinsics,
            earlier=() if partial is None else partial.cameras,
        )

    def reconstruct(
        self,
        listeners: Sequence[ResultListener] = (),
        observer: RunObserver | None = None,
        back_end: BackEnd | None = None,
        cancel: Cancel | None = None,
    ) -> RunSummary:
        """Run all frames, or those that the interrupted run has left; see `reconstruct` of the pipeline.

        ``back_end`` replaces the session's own one, for example by one that observes it. ``cancel``: see `RunSetup`.
        """
        setup = RunSetup(back_end or self.back_end, self.resumed, self._options.mask_sky, cancel=cancel)
        return reconstruct(self.source, self._engine, self._writer, listeners, setup, observer)


def _map_state(partial: PartialResult) -> "MapState":
    """State of the map at the last finished frame."""
    from stream_recon.app.slam.online.map import MapState

    last, network = partial.last, partial.last.as_network
    return MapState(
        last.T_world_camera,
        network.T_world_camera,
        last.depth_scale / network.depth_scale,
        last.intrinsics.fx,
        last.segment,
    )


def _resume_state(partial: PartialResult, overlap_error: OverlapError) -> ResumeState:
    seconds = partial.recorded_value("timings", dict).get("seconds", 0.0)
    return ResumeState(
        frames=len(partial.cameras),
        keyframes=partial.keyframes,
        seconds=float(seconds) if isinstance(seconds, int | float) else 0.0,
        warnings=(*(str(line) for line in partial.recorded_value("warnings", list)), *_dropped_scale(partial)),
        resumed=(*partial.recorded_value("resumed", list), {"at": now_text(), **dataclasses.asdict(overlap_error)}),
        low_quality=tuple(low_quality_intervals(partial.recorded_value("health", dict))),
        segments=tuple(_segments(partial)),
        blank_frames=_count(partial.recorded_value("frames", dict).get("blank")),
        last=partial.last_frame(),
    )


def _dropped_scale(partial: PartialResult) -> list[str]:
    unit = metric_scale_of(partial.record)
    again = "the resumed run is in its own unit again; run 'stream-recon scale' at its end"
    return [] if unit is None else [f"the interrupted result was in metres, by {unit.given}: {again}"]


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _segments(partial: PartialResult) -> Iterator[FrameRange]:
    """Segments up to the last finished frame; damaged entries are skipped."""
    for entry in partial.recorded_value("segments", list):
        with suppress(TypeError):
            segment = FrameRange(**entry)
            if isinstance(segment.index, int) and segment.index <= partial.last.index:
                yield segment
