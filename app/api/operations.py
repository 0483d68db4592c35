"""What `Result` does with a result folder: stages that run again on it, and exports."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_recon.app.api.options import OnProgress, ProgressCalls, chosen
from stream_recon.app.core.cancel import Cancel
from stream_recon.configs.errors import ConfigError
from stream_recon.configs.schema import DeviceChoice

if TYPE_CHECKING:
    from stream_recon.app.sources.source import Source
    from stream_recon.app.stages.chain import RunPlan

Work = tuple["RunPlan", "Callable[[], Source] | None"]
"""The stages, and what opens the source of a result again."""


def refinement(folder: Path, device: DeviceChoice, dense_side: int | None, mesh: bool, keep_map: bool) -> Work:
    """Another refinement of a result. Raises StreamReconError."""
    from stream_recon.app.engine.model_choice import ModelChoice
    from stream_recon.app.run.options import RunOptions
    from stream_recon.app.stages.again import plan_refinement

    options = RunOptions(model=ModelChoice(device=device), dense_side=dense_side, mesh=mesh, keep_map=keep_map)
    return plan_refinement(folder, options)


def scaling(folder: Path, what: str) -> Work:
    """A conversion to metres. Raises StreamReconError."""
    from stream_recon.app.stages.again import plan_scale

    return plan_scale(folder, what), None


def run_work(folder: Path, work: Work, on_progress: OnProgress | None, cancel: Cancel | None) -> None:
    """Run stages on a result folder. Raises StreamReconError, Cancelled."""
    from stream_recon.app.stages.chain import run_stages
    from stream_recon.app.stages.stage import StageContext

    plan, open_again = work
    context = StageContext(folder, open_again, ProgressCalls(on_progress), cancel=cancel or Cancel())
    run_stages(plan, context).check()


def export_result(
    folder: Path,
    form: str,
    path: Path | None,
    options: dict[str, Any],
    overwrite: bool,
    on_progress: OnProgress | None,
    cancel: Cancel | None,
) -> Path:
    """Write a result in the format ``form``; see `Result.export`."""
    from stream_recon.app.export.formats import FORMATS, export
    from stream_recon.app.export.job import ExportOptions

    chosen("format", form, tuple(FORMATS))
    names = {field.name for field in dataclasses.fields(ExportOptions)}
    if unknown := sorted(set(options) - names):
        raise ConfigError(f"export has no option {unknown[0]}: use {', '.join(sorted(names))}")
    observer, cancel = ProgressCalls(on_progress), cancel or Cancel()

    def progress(done: int, total: int) -> None:
        cancel.check()
        observer.on_step(form, done, total)

    cancel.check()
    return export(folder, form, path, ExportOptions(**options), overwrite=overwrite, progress=progress)[0]
