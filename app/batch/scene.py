"""One unit of a batch: source to result folder, measured on the way. Where one scene's failure ends.

A scene's result brought to metres before it is published.

What a batch that was cut off left of a scene in its working folder.
"""

import dataclasses
import errno
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stream_recon.app.batch.chunks import MisplacedError, has_frames, open_unit
from stream_recon.app.batch.jobs import Job, JobInterruptedError, Outcome, Seconds, StageTimer
from stream_recon.app.batch.manifest import DepthMarks, remove_result
from stream_recon.app.batch.store import Store
from stream_recon.app.core.protocols import FrameEngine
from stream_recon.app.evaluation.gather import Evaluator
from stream_recon.app.evaluation.result import last_known
from stream_recon.app.pipeline.finish import Finisher, FinishSteps
from stream_recon.app.pipeline.listeners import ResultListener
from stream_recon.app.pipeline.session import Output, RunOptions, Session
from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import ResultFolder, causal_result, read_result, read_run
from stream_recon.app.result.resume import PartialResult, read_unfinished
from stream_recon.app.result.run_record import REFINEMENT, RUN_NAME, RunInfo, RunSummary
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError, StreamReconError


@dataclass(frozen=True)
class PartialScene:
    """At most one of the two is there."""

    evaluator: Evaluator
    """Has heard what was reconstructed."""
    unfinished: PartialResult | None = None
    """Frames after which a run goes on."""
    whole: ResultFolder | None = None
    """All frames; it was about to be refined, or published."""

    @property
    def is_refined(self) -> bool:
        return self.whole is not None and REFINEMENT in self.whole.run

    def summary(self) -> RunSummary:
        """What a batch needs of a whole run, as its ``run.json`` has it."""
        assert self.whole is not None
        counts = self.whole.run["frames"]
        return RunSummary(
            interrupted=False,
            frames_read=counts["read"],
            frames_reconstructed=counts["reconstructed"],
            keyframes=counts["keyframes"],
            frames_damaged=counts["damaged"],
            warnings=tuple(self.whole.run["warnings"]),
        )


def left_behind(work: Path, info: RunInfo, new_evaluator: Callable[[], Evaluator]) -> PartialScene:
    """What is in a working folder; what cannot be gone on with is removed from it.

    Raises:
        OutputError: it cannot be removed.
    """
    try:
        left = _read(work, info, new_evaluator())
    except StreamReconError as error:
        logger.info("%s: from the beginning", error)
        left = None
    if left is None:
        remove_result(work, keep_folder=True)
        return PartialScene(new_evaluator())
    return left


def _read(work: Path, info: RunInfo, evaluator: Evaluator) -> PartialScene | None:
    if not (work / RUN_NAME).exists():
        return None
    result: PartialResult | ResultFolder | None
    result = read_unfinished(work) if read_run(work)["interrupted"] else read_result(work)
    if result is None:
        return None
    for camera in result.cameras:
        evaluator.add(causal_result(work, camera))
    if isinstance(result, PartialResult):
        result.check(info)
        return PartialScene(evaluator, unfinished=result)
    left = PartialScene(evaluator, whole=result)
    if left.is_refined:
        evaluator.revise(last_known(result.cameras))
    return left


def scene_in_metres(unit: Job, scale_from: str, folder: Path) -> dict[str, Any]:
    """What the manifest records of it: ``metres``: ``scale`` and ``error`` as in ``run.json``, or, where nothing
    of the kind is seen in this scene, ``reason``; it then stays in its own unit.

    Raises:
        UnitInterruptedError: Ctrl-C came meanwhile.
        StreamReconError: a file cannot be read or written.
    """
    try:
        source = FinishSteps.parse(refine=False, scale_from=scale_from).scale
        assert source is not None
        scaled = Finisher(folder, _open_again(unit), is_locked=True).scale(source)
    except InputError as error:
        return {"metres": {"reason": str(error)}}
    if scaled is None:
        raise JobInterruptedError
    return {"metres": {"scale": scaled.T_metric_own.scale, "error": scaled.error}}


def _open_again(unit: Job) -> Callable[[], Source]:
    return partial(unit.scene.open, unit.choice.stride, unit.choice.max_frames)


logger = logging.getLogger(__name__)

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def run_unit(
    engine: FrameEngine, unit: Job, store: Store, on_frames: Callable[[int], None], phases: StageTimer | None = None
) -> Outcome:
    """Reconstruct a unit into its place in the store; whatever goes wrong with it is the outcome's reason.

    Args:
        on_frames: called with the number of frames written, from another thread.
        phases: of what came before, if that was for this unit's sake.
    """
    return guarded(unit.name, lambda: _reconstruct(engine, unit, store, on_frames, phases or StageTimer("open")))


def guarded(name: str, work: Callable[[], dict[str, Any]]) -> Outcome:
    """The boundary of a scene: ``work`` gives what its manifest records, or raises anything at all."""
    try:
        return Outcome(name, "done", work())
    except JobInterruptedError:
        return Outcome(name, "interrupted", reason="interrupted")
    except MisplacedError as error:
        return Outcome(name, "failed", reason=str(error), misplaced=True)
    except (StreamReconError, OSError) as error:
        return Outcome(name, "disk full" if is_disk_full(error) else "failed", reason=str(error))
    except Exception as error:
        logger.exception("scene %s", name)
        return Outcome(name, "failed", reason=f"{type(error).__name__}: {error}")


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, was that no room is left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            return True
        error = error.__cause__
    return False


def _reconstruct(
    engine: FrameEngine, unit: Job, store: Store, on_frames: Callable[[int], None], phases: StageTimer
) -> dict[str, Any]:
    """Gives what the manifest records, and the seconds of the last phase.

    Raises:
        UnitInterruptedError: Ctrl-C came meanwhile.
        StreamReconError: no frame can be read, or nothing written.
    """

    def count(frames: int) -> None:
        if not counted:
            counted.append(frames)
            phases.enter("frames")
        on_frames(frames)

    counted: list[int] = []
    phases.enter("open")
    store.check_target(unit.name)
    # The windows of a split scene are measured once they are joined.
    truth = unit.scene.truth() if unit.window is None else None
    begun = time.monotonic()
    with store.own_workspace(unit.name, unit.key) as lock:
        engine.reset()
        with open_unit(unit) as source:
            info = RunInfo.of(engine, source.name, {"source": str(unit.scene.path), **unit.key["options"]})
            left = left_behind(lock.folder, info, lambda: Evaluator(truth, count))
            phases.enter("first frames")
            marks = DepthMarks(lock.folder)
            try:
                output = Output(lock.folder, info, lock=lock, partial=left.unfinished)
                listeners: list[ResultListener] = [left.evaluator, marks]
                summary = left.summary() if left.whole else _run(engine, unit, source, output, listeners)
            except InputError:
                if unit.window is None or has_frames(unit):
                    raise
                # The video ends, or breaks off, before this window: what comes before it is a result all the same.
                return {"frames": 0}
        if summary.interrupted:
            raise JobInterruptedError
        if unit.mapping == "full" and unit.window is None and not left.is_refined:
            phases.enter("refine")
            refine_scene(unit, lock.folder, left.evaluator)
        told: dict[str, Any] = {}
        if unit.scale_from is not None and unit.window is None:
            phases.enter("metres")
            told = scene_in_metres(unit, unit.scale_from, lock.folder)
        phases.enter("publish")
        note_phases(lock.folder, phases.seconds)
        lock.release()
        result = record_of(summary, left.evaluator, time.monotonic() - begun, engine.device)
        result |= {**told, "phases": phases.seconds}
        store.publish(lock.folder, unit.name, unit.key, result, marks.marks)
    return {**result, "phases": phases.seconds}


def note_phases(folder: Path, seconds: Seconds) -> None:
    """Say in a result's ``run.json`` how long each phase took. Raises OutputError."""
    replace_json(folder / RUN_NAME, {**read_run(folder), "phases": seconds})


def _run(
    engine: FrameEngine, unit: Job, source: Source, output: Output, listeners: Sequence[ResultListener]
) -> RunSummary:
    """All frames of the unit, or those that are left to do."""
    # The windows of a split scene are placed and refined once they are joined.
    mapping = unit.mapping if unit.window is None else "off"
    options = RunOptions(mapping, unit.mask_sky, known_intrinsics=unit.choice.camera is not None)
    with ExitStack() as stack:
        open_again = partial(open_unit, unit, resumed=True)
        if output.partial is not None:
            source = stack.enter_context(open_again())
        session = stack.enter_context(Session(engine, source, open_again, options, output))
        return session.reconstruct(listeners)


def refine_scene(unit: Job, folder: Path, evaluator: Evaluator) -> None:
    """Refine a scene's result before it is published.

    Raises:
        UnitInterruptedError: Ctrl-C came meanwhile.
        StreamReconError: a file cannot be read or written.
    """
    if Finisher(folder, _open_again(unit), listeners=[evaluator], is_locked=True).refine() is None:
        raise JobInterruptedError


def record_of(summary: RunSummary, evaluator: Evaluator, seconds: float, device: str) -> dict[str, Any]:
    """What a manifest records of a finished scene, and the summary repeats."""
    figures, plot = evaluator.figures(), evaluator.plot()
    warnings = [*summary.warnings]
    if evaluator.truth_error is not None:
        warnings.append(f"depth was compared only up to a damaged file of truth: {evaluator.truth_error}")
    return {
        "frames": summary.frames_reconstructed,
        "keyframes": summary.keyframes,
        "damaged": summary.frames_damaged,
        "seconds": round(seconds, 3),
        "device": device,
        "warnings": warnings,
        "metric": evaluator.metric,
        "figures": dataclasses.asdict(figures) if figures is not None else None,
        "plot": dataclasses.asdict(plot),
    }
