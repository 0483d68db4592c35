"""Putting a result into the world of another result of the same place."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stream_recon.app.localization.alignment import Alignment, NotAligned, align_results
from stream_recon.app.localization.changes import Changes, find_changes
from stream_recon.app.localization.localize import LocalizationMap
from stream_recon.app.metric_scale.apply import ScaleView, move_world
from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.metric_scale import T_current_own
from stream_recon.app.result.run_record import METRIC_SCALE, ONTO, RUN_NAME
from stream_recon.configs.errors import InputError


def check_onto(folder: Path) -> None:
    """Raises InputError or OutputError where a folder is no result with a map."""
    LocalizationMap.open(folder)


def put_onto(
    result: ResultFolder,
    target: Path,
    on_progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    pages: Sequence[ScaleView] = (),
) -> Alignment:
    """Move a refined result into the world and unit of ``target``, a result of the same place.

    Raises InputError where the two share no view, OutputError, Cancelled; the result is unchanged then.
    """
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
    move_world(result, alignment.S_first_second, record, on_progress, cancelled, pages)
    return alignment


def record_changes(folder: Path, target: Path) -> Changes:
    """Compare a result with the one in whose world it is, and record per frame what has changed.

    Writes ``changes.ply``, and ``added`` and ``gone`` in the entry ``onto`` of ``run.json``. Raises OutputError.
    """
    result = read_result(folder)
    changes = find_changes(result, read_result(target))
    entry = {**result.run[ONTO], **asdict(changes)}
    replace_json(folder / RUN_NAME, {**result.run, ONTO: entry})
    return changes
