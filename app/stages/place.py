"""The world and unit of a result, as stages: metres, the unit of another result, or another result's world."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stream_recon.app.core.transforms import align
from stream_recon.app.core.views import RunView
from stream_recon.app.metric_scale import known_poses
from stream_recon.app.metric_scale.apply import apply_metric_scale, move_world
from stream_recon.app.metric_scale.scale_source import PosesChoice, parse_scale_source
from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.metric_scale import MetricScale, T_current_own
from stream_recon.app.result.run_record import CHANGES_NAME, METRIC_SCALE, ONTO, RUN_NAME
from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.stage import Stage, StageContext
from stream_recon.configs.errors import InputError

if TYPE_CHECKING:
    from stream_recon.app.localization.alignment import Alignment
    from stream_recon.app.localization.changes import Changes


@dataclass(frozen=True)
class ScaleStage(Stage):
    """Conversion to metres. InputError: ``given`` gives no scale for this result."""

    name = "metric scale"
    absent = "not in metres"
    stopped = "stopped: the result is complete and its unit has not changed; 'stream-recon scale' converts it"
    outlasts_errors = True
    given: str = ""
    """Source of the scale in the user's words, see `parse_scale_source`."""

    @classmethod
    def of(cls, options: RunOptions) -> "ScaleStage | None":
        if options.scale_from is None and options.poses is not None and options.onto is None:
            return ScaleStage(f"poses:{options.poses}")
        return None if options.scale_from is None else ScaleStage(options.scale_from)

    def check(self) -> None:
        parse_scale_source(self.given)

    def is_done(self, context: StageContext) -> bool:
        return bool(context.result.run.get(METRIC_SCALE))

    def why_not(self, context: StageContext) -> str | None:
        source = parse_scale_source(self.given)[0]
        return known_poses.why_no_unit(source) if isinstance(source, PosesChoice) else None

    def run(self, context: StageContext) -> Sequence[str]:
        from stream_recon.app.metric_scale.measure import measure_scale

        result = context.result
        source, text = parse_scale_source(self.given)
        if isinstance(source, PosesChoice):
            source = known_poses.fit_known_poses(result, source).track
        change = measure_scale(result, source, text, context.open_again, context.progress("markers"))
        apply_metric_scale(result, change, context.progress("points"), context.view)
        return [_described(change.after(T_current_own(result.run)))]


def _described(unit: MetricScale) -> str:
    error = "" if unit.error is None else f" (error about {100 * unit.error:.2g} %)"
    return f"in metres: 1 unit of the reconstruction is {unit.T_metric_own.scale:.5g} m{error}, by {unit.how}"


@dataclass(frozen=True)
class UnitStage(Stage):
    """The unit of a result that has frames of this one, where that is in metres."""

    name = "unit"
    known: ResultFolder

    @classmethod
    def of(cls, options: RunOptions) -> None:
        return None

    def is_done(self, context: StageContext) -> bool:
        return self.known.metric_scale is None

    def run(self, context: StageContext) -> Sequence[str]:
        unit, result = self.known.metric_scale, context.result
        assert unit is not None
        own = {camera.index: camera.T_world_camera[:3, 3] for camera in result.cameras}
        known = [camera for camera in self.known.cameras if camera.index in own]
        source = np.array([own[camera.index] for camera in known])
        S = align(source, np.array([camera.T_world_camera[:3, 3] for camera in known]))
        unit = replace(unit, T_metric_own=S, how=f"as in {self.known.folder.resolve().name}: {unit.how}")
        apply_metric_scale(result, unit, context.progress("points"), context.view)
        return []


@dataclass(frozen=True)
class OntoStage(Stage):
    """The world of another result of the same place. InputError: the two share no view."""

    name = "onto"
    outlasts_errors = True
    target: Path = Path()

    @classmethod
    def of(cls, options: RunOptions) -> "OntoStage | None":
        return None if options.onto is None else OntoStage(options.onto)

    def check(self) -> None:
        from stream_recon.app.localization.localize import LocalizationMap

        LocalizationMap.open(self.target)

    def is_done(self, context: StageContext) -> bool:
        return bool(context.result.run.get(ONTO))

    def run(self, context: StageContext) -> Sequence[str]:
        report = put_onto(context.result, self.target, context.progress("points"), context.view)
        changes = record_changes(context.folder, self.target)
        counts = f"{len(changes.added)} frames show something new, {len(changes.gone)} earlier ones what is gone"
        return [f"in the world of {self.target}: {report.keyframes} keyframes agree", f"{CHANGES_NAME}: {counts}"]


def put_onto(
    result: ResultFolder,
    target: Path,
    on_progress: Callable[[int, int], None] | None = None,
    view: RunView | None = None,
) -> "Alignment":
    """Move a refined result into the world and unit of ``target``, a result of the same place.

    Raises InputError where the two share no view, OutputError; the result is unchanged then.
    """
    from stream_recon.app.localization.alignment import NotAligned, align_results
    from stream_recon.app.localization.localize import LocalizationMap

    alignment = align_results(LocalizationMap.open(target), LocalizationMap.open(result.folder))
    if isinstance(alignment, NotAligned):
        raise InputError(f"{result.folder} is not put onto {target}: it {alignment.reason}")
    known = read_result(target)
    own = alignment.S_first_second @ T_current_own(result.run)
    record: dict[str, Any] = {
        METRIC_SCALE: None,
        ONTO: {
            "result": str(target.resolve()),
            "keyframes": alignment.keyframes,
            "points": alignment.points,
            "T_onto_own": own.matrix.tolist(),
        },
    }
    unit = known.metric_scale
    if unit is not None:
        how = f"as in {target.resolve().name}: {unit.how}"
        record[METRIC_SCALE] = replace(unit, T_metric_own=own, given=f"onto {target.resolve().name}", how=how).to_json()
    move_world(result, alignment.S_first_second, record, on_progress, view)
    return alignment


def record_changes(folder: Path, target: Path) -> "Changes":
    """Compare a result with the one in whose world it is, and record per frame what has changed.

    Writes ``changes.ply``, and ``added`` and ``gone`` in the entry ``onto`` of ``run.json``. Raises OutputError.
    """
    from stream_recon.app.localization.changes import find_changes

    result = read_result(folder)
    changes = find_changes(result, read_result(target))
    entry = {**result.run[ONTO], **asdict(changes)}
    replace_json(folder / RUN_NAME, {**result.run, ONTO: entry})
    return changes
