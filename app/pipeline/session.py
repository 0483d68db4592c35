"""Composition of one run, shared by commands, batch and benchmarks.

A `Session` connects source, engine, result writer, resume and back end. Then a `Finisher` (`finish.py`) refines the
result and recovers its metric scale. Callers show progress through a `RunObserver`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stream_recon.app.core.protocols import FrameEngine
from stream_recon.app.pipeline.cpu_threads import usable_cores
from stream_recon.app.pipeline.listeners import BackEnd, ResultListener
from stream_recon.app.pipeline.observer import RunObserver
from stream_recon.app.pipeline.pipeline import ResumeState, RunSetup, reconstruct
from stream_recon.app.pipeline.resume import map_state, resume_run
from stream_recon.app.result.disk_limit import DiskLimit
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.resume import PartialResult, check_choice, finished_record, read_partial_result
from stream_recon.app.result.run_record import RunInfo, RunSummary
from stream_recon.app.result.writer import ResultWriter, check_output
from stream_recon.app.slam.mode import MappingChoice, make_back_end
from stream_recon.app.sources.source import Source

if TYPE_CHECKING:
    from stream_recon.app.slam.online.back_end import OnlineBackEnd
    from stream_recon.app.slam.online.process import ProcessBackEnd

PROCESS_CORES = 4
"""CPU cores from which the back end runs in a separate process next to a GPU. On a CPU the network needs all cores."""


@dataclass(frozen=True)
class RunOptions:
    """What a run does with the frames of its source."""

    mapping: MappingChoice = "off"
    mask_sky: bool = False
    known_intrinsics: bool = False
    """The results' focal length is that of a known camera."""
    process_allowed: bool = False
    """The back end may run in a separate process, which imports the main module again."""


@dataclass(frozen=True)
class Output:
    """Result folder of a run.

    Args:
        lock: the folder's lock where the caller holds it; None: the run takes it.
        partial: result of an interrupted run in the folder, which this run continues.
        limit: None: everything is kept.
    """

    folder: Path
    info: RunInfo
    overwrite: bool = False
    lock: FolderLock | None = None
    partial: PartialResult | None = None
    limit: DiskLimit | None = None


@dataclass(frozen=True)
class EarlierRun:
    """Result in the output folder that ``--resume`` continues; at most one of the two is set."""

    record: Mapping[str, Any] | None = None
    """The ``run.json`` of a result with all its frames."""
    partial: PartialResult | None = None

    @staticmethod
    def find(folder: Path, *, resume: bool, overwrite: bool) -> "EarlierRun":
        """The result to continue; none without ``resume``.

        Raises:
            OutputError: the folder has other content, and ``overwrite`` is not set.
        """
        record = finished_record(folder) if resume else None
        partial = read_partial_result(folder) if resume and record is None else None
        if record is None and partial is None:
            # A run that was interrupted before its first result has left nothing to lose.
            check_output(folder, overwrite or resume)
        return EarlierRun(record, partial)

    def check(self, folder: Path, source: str, options: Mapping[str, Any]) -> None:
        """Raises ConfigError unless the complete result is of this source, with these options."""
        if self.record is not None:
            check_choice(folder, self.record, source, options)

    def __bool__(self) -> bool:
        return self.record is not None or self.partial is not None


class Session:
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
        self._engine, self._options = engine, options
        self._writer = None if output is None else _writer(output)
        self._stack = ExitStack()
        self.source = source
        self.resumed: ResumeState | None = None
        """State of the interrupted run; None: the run begins at the first frame."""
        partial = output.partial if output is not None else None
        try:
            if partial is not None:
                self.source, self.resumed = resume_run(
                    partial, engine, source, open_again, self._stack, network_poses=options.mapping != "off"
                )
            self.back_end = self._make_back_end(partial)
        except BaseException:
            self._stack.close()
            if self._writer is not None:
                self._writer.close()
            raise

    def _make_back_end(self, partial: PartialResult | None) -> "OnlineBackEnd | ProcessBackEnd | None":
        options = self._options
        return make_back_end(
            options.mapping,
            # A resumed run gets single results from the start, in the coordinate frame of the earlier ones.
            1 if partial is not None else self._engine.preset.stream.scale_frames,
            live=self.source.live,
            known_intrinsics=options.known_intrinsics,
            map_state=map_state(partial) if partial is not None else None,
            separate_process=options.process_allowed
            and self._engine.device != "cpu"
            and usable_cores() >= PROCESS_CORES,
        )

    def reconstruct(
        self,
        listeners: Sequence[ResultListener] = (),
        observer: RunObserver | None = None,
        back_end: BackEnd | None = None,
    ) -> RunSummary:
        """Run all frames, or those that the interrupted run has left; see `reconstruct` of the pipeline.

        ``back_end`` replaces the session's own one, for example by one that observes it.
        """
        setup = RunSetup(back_end or self.back_end, self.resumed or ResumeState(), self._options.mask_sky)
        return reconstruct(self.source, self._engine, self._writer, listeners, setup, observer)

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def _writer(output: Output) -> ResultWriter:
    return ResultWriter(
        output.folder,
        output.info,
        overwrite=output.overwrite,
        lock=output.lock,
        resume=output.partial,
        limit=output.limit,
    )
