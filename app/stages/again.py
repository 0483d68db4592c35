"""Plans of stages that run again on a finished result: another refinement, another metric scale."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from stream_recon.app.export.source_images import source_of
from stream_recon.app.result.folder import MESH_NAME, read_result
from stream_recon.app.result.run_record import ONTO, POSES
from stream_recon.app.run.options import RunOptions
from stream_recon.app.sources.source import Source
from stream_recon.app.stages.chain import RunPlan


def plan_refinement(folder: Path, options: RunOptions) -> tuple[RunPlan, Callable[[], Source] | None]:
    """Refine a result and bring it where it was, to metres or into another world; and what opens its source again.

    Raises StreamReconError.
    """
    result = read_result(folder)
    unit, earlier, poses = result.metric_scale, result.run.get(ONTO), result.run.get(POSES)
    if isinstance(poses, dict) and isinstance(poses.get("from"), str):
        options = dataclasses.replace(options, poses=poses["from"])
    if isinstance(earlier, dict) and isinstance(earlier.get("result"), str):
        options = dataclasses.replace(options, onto=Path(earlier["result"]))
    elif unit is not None and (result.rig is None or result.rig.is_central):  # another rig stays in metres
        options = dataclasses.replace(options, scale_from=unit.given)
    return RunPlan.of(options, again=True), source_of(result)


def plan_scale(folder: Path, what: str) -> RunPlan:
    """Convert a result to metres by ``what``, see `parse_scale_source`. Raises StreamReconError."""
    read_result(folder)  # an error before a lock file is written
    options = RunOptions(mapping="off", scale_from=what, mesh=(folder / MESH_NAME).exists())
    plan = dataclasses.replace(RunPlan.of(options, again=True), ends_at_errors=True)
    plan.check()
    return plan
