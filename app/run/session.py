"""Composition of one run, shared by commands, batch and benchmarks.

A `Session` connects source, engine, result writer, back end, and the state of an interrupted run. The stages follow
(`run_stages`). Callers show progress through a `RunObserver`.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from stream_recon.app.core.cancel import Cancel
from stream_recon.app.core.process import memory_errors
from stream_recon.app.core.types import FrameEngine
from stream_recon.app.core.views import ResultListener
from stream_recon.app.result.disk_limit import DiskLimit
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.resume import PartialResult
from stream_recon.app.result.run_record import RunInfo, RunSummary
from stream_recon.app.result.writer import CloudTime, ResultWriter
from stream_recon.app.run.back_end import run_back_end
from stream_recon.app.run.earlier import resume_state
from stream_recon.app.run.listeners import BackEnd, RunObserver
from stream_recon.app.run.options import RunOptions
from stream_recon.app.run.pipeline import ResumeState, RunSetup, reconstruct
from stream_recon.app.sources.source import Source


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


class Session(ExitStack):
    """One run of an engine over a source. Use it as a context manager: it may open the source again to resume.

    Args:
        engine: after `reset`.
        source: at its first frame; the caller closes it.
        open_again: opens the source again, with the same choice of frames.
        output: None: nothing is written.

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
    ) -> None:
        super().__init__()
        self.engine, self._options = engine, options
        self._writer = None if output is None else output.open()
        self.source = source
        self.resumed = ResumeState()
        """State of the interrupted run."""
        partial = None if output is None else output.partial
        # A rig's views follow one another, each in submaps of its own.
        hint, views = source.frame_hint, 1 if source.rig is None else len(source.rig)
        self.outlook = engine.expect(None if hint is None else hint // views)
        """What was chosen for the length of the source; None: nothing."""
        try:
            if partial is not None:
                self._continue(partial, open_again)
            self.back_end = run_back_end(
                options,
                engine,
                partial,
                live=source.live,
                known_intrinsics=options.known_intrinsics or source.rig is not None,
                frames=hint,
            )
        except BaseException:
            self.close()
            if self._writer is not None:
                self._writer.close()
            raise

    def _continue(self, partial: PartialResult, open_again: Callable[[], Source]) -> None:
        """Bring source and engine to the last finished frame. Raises StreamReconError.

        A source that cannot seek is opened again and read up to that frame.
        """
        last, count, stream = partial.last, len(partial.cameras), self.engine.preset.stream
        if not self.source.resume(last.index, last.timestamp, count):
            self.source = self.enter_context(open_again())
            self.source.resume_by_reading(last.index, count)
        remembered = max(stream.window, stream.camera_window)
        # Where a back end follows, the engine continues from the network's own poses; else from those of the result.
        network_poses = self._options.mapping != "off"
        first, later = partial.last_submap(stream.scale_frames, remembered, network_poses=network_poses)
        with memory_errors():
            overlap_error = self.engine.resume(first, later)
        self.resumed = resume_state(partial, overlap_error)

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
        return reconstruct(self.source, self.engine, self._writer, listeners, setup, observer)
