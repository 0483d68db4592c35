"""The stages of a result in their order, and their run: lock, Ctrl-C, errors and the verdict at the end.

A new stage is a file with a `Stage`, and a place in `STAGES`.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from stream_recon.app.core.cancel import Cancelled, cancel_on_signals
from stream_recon.app.core.process import memory_errors
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.verdict import Verdict, record_verdict
from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.dense import DenseStage
from stream_recon.app.stages.mesh import MeshStage
from stream_recon.app.stages.place import OntoStage, ScaleStage, UnitStage
from stream_recon.app.stages.refine import RefineStage
from stream_recon.app.stages.rig import RigStage
from stream_recon.app.stages.splats import SplatStage
from stream_recon.app.stages.stage import Stage, StageContext
from stream_recon.configs.errors import InputError

STAGES: tuple[type[Stage], ...] = (RefineStage, DenseStage, UnitStage, ScaleStage, OntoStage, MeshStage, SplatStage)
"""All stages that are asked for, in their order; `RigStage` comes before them."""


@dataclass(frozen=True)
class RunPlan:
    """Which stages follow, in their order."""

    stages: tuple[Stage, ...]
    again: bool = False
    """Stages that are done already run again."""
    ends_at_errors: bool = False
    """An error of any stage ends the chain; otherwise some stages are outlasted by the next ones."""

    @staticmethod
    def of(options: RunOptions, *others: Stage, again: bool = False) -> "RunPlan":
        """The stages that the options ask for, and others."""
        asked = [stage for kind in STAGES if (stage := kind.of(options)) is not None]
        return RunPlan(tuple(sorted([*asked, *others], key=lambda stage: STAGES.index(type(stage)))), again)

    def check(self) -> None:
        """Find out before anything begins what cannot be done. Raises StreamReconError."""
        for stage in self.stages:
            stage.check()

    def remaining(self, context: StageContext) -> tuple[Stage, ...]:
        """Stages that are to run on the result as it is. Raises OutputError."""
        return tuple(stage for stage in self.stages if self.again or not stage.is_done(context))


@dataclass(frozen=True)
class ChainEnd:
    """How the stages of a result ended."""

    folder: Path
    is_complete: bool
    """False: it was cancelled."""
    failed: Mapping[str, InputError]
    """Errors of stages that the others outlasted, by the stage's name."""
    verdict: Verdict | None
    """None where nothing was done."""

    def check(self) -> None:
        """Raises InputError where a stage failed, Cancelled."""
        for error in self.failed.values():
            raise InputError(f"{error}; {self.folder} is complete and its unit has not changed") from error
        if not self.is_complete:
            raise Cancelled


def run_stages(plan: RunPlan, context: StageContext) -> ChainEnd:
    """Run the stages of a result and judge it.

    Ctrl-C, or a request to cancel, ends the present stage and the chain: the result is as the last complete stage left
    it. Raises StreamReconError: a stage failed and left the result as it was.
    """
    observer, failed, ran, is_complete = context.observer, dict[str, InputError](), False, True
    verdict: Verdict | None = None
    lock = nullcontext() if context.lock is not None else FolderLock(context.folder)
    with cancel_on_signals(context.cancel), memory_errors(), lock:
        if (rig := RigStage.of_result(context.result)) is not None:
            plan = replace(plan, stages=(rig, *plan.stages))
        for number, stage in enumerate(plan.stages, 1 + context.follows_frames):
            if not plan.again and stage.is_done(context):
                continue
            reason = stage.why_not(context)
            if reason is not None:
                observer.on_message(f"{stage.absent}: {reason}")
                continue
            observer.on_stage(stage.name, number, len(plan.stages) + context.follows_frames)
            try:
                context.cancel.check()
                observer.on_result(stage.run(context))
                ran = True
            except Cancelled:
                is_complete = False
                observer.on_result([stage.stopped] if stage.stopped else [])
                break
            except InputError as error:
                if plan.ends_at_errors or not stage.outlasts_errors:
                    raise
                failed[stage.name] = error
        if ran or not failed:
            verdict = record_verdict(context.folder)
    if verdict is not None:
        observer.on_verdict(verdict)
    return ChainEnd(context.folder, is_complete, failed, verdict)
