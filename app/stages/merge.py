"""Merging of results of one place into one: alignment by their maps, then joint refinement.

The merged result has the frames of all results, in order, each result as a segment of its own. Its source is that of
all of them. It is built in a temporary folder next to its own, which it gets as a whole at the end.
"""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stream_recon.app.core.output_file import is_temporary, temporary_name
from stream_recon.app.export.source_images import source_of
from stream_recon.app.localization.placing import PlacedResult, place_results
from stream_recon.app.result.files import output_errors
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.lock import LOCK_NAME, FolderLock
from stream_recon.app.result.writer import check_output
from stream_recon.app.run.listeners import RunObserver
from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.joined_frames import MergeInput, write_joined
from stream_recon.app.stages.place import UnitStage
from stream_recon.app.stages.stage import StageContext
from stream_recon.configs.errors import InputError, OutputError


@dataclass(frozen=True)
class MergeReport:
    """What was merged."""

    folder: Path
    merged: list[str]
    """Names of the results, the one that gives the world first."""
    left_out: list[str]
    """Names of the results that share nothing with the others."""
    frames: int


def merge_results(
    folders: Sequence[Path], target: Path, options: RunOptions, observer: RunObserver | None = None
) -> MergeReport:
    """Merge results of one place in the world of the first one.

    Args:
        target: the new result folder.
        options: of the stages that follow: refinement, dense depth, mesh.

    Raises InputError where no two of them share a view, OutputError, Cancelled. The results themselves do not change,
    and ``target`` does not appear, unless all is done.
    """
    observer = observer or RunObserver()
    if len(folders) < 2 or len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError("give two or more different results to merge")
    inside = {target.resolve(), *target.resolve().parents}
    if any(folder.resolve() in inside for folder in folders):
        raise OutputError(f"{target} is inside a result that is merged: choose another folder with -o")
    check_output(target, overwrite=False)
    _remove_stale(target)
    inputs = [MergeInput.open(folder) for folder in folders]
    _check_views(inputs)
    placed = _place(inputs, observer)
    work = temporary_name(target)
    try:
        with FolderLock(work) as lock:
            chosen = [(inputs[number], placed[number]) for number in sorted(placed)]
            frames = write_joined(work, chosen, partial(observer.on_step, "frames"))
            context = StageContext(work, source_of(read_result(work)), observer, lock=lock)
            run_stages(RunPlan.of(options, UnitStage(inputs[0].result)), context).check()
        with output_errors(target):
            if target.exists():  # an empty folder
                target.rmdir()
            work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    left_out = [each.name for number, each in enumerate(inputs) if number not in placed]
    return MergeReport(target, [each.name for each, _ in chosen], left_out, frames)


def _check_views(inputs: Sequence[MergeInput]) -> None:
    """Raises InputError: the results have other views, or metres by the distance of their cameras."""
    first = inputs[0].result.rig
    for each in inputs:
        rig = each.result.rig
        if rig is not None and not rig.is_central:
            raise InputError(f"{each.name} is in metres by the distance of its cameras: such rigs are not merged")
        if (rig is None) != (first is None) or (rig and first and rig.to_json() != first.to_json()):
            both = f"{inputs[0].name} and {each.name}"
            raise InputError(f"{both} have different views: films of 360 degrees are merged with their like alone")


def _place(inputs: Sequence[MergeInput], observer: RunObserver) -> Mapping[int, PlacedResult]:
    """Poses of the results in the world of the first, by number; those without are told to the user.

    Raises InputError where no two of them share a view.
    """
    alike: dict[int, str] = {}

    def on_placed(number: int, placed: PlacedResult) -> None:
        line = f"{inputs[number].name} lies in {inputs[placed.known].name}: {placed.keyframes} keyframes agree"
        observer.on_message(line)

    def on_alike(number: int, known: int, reason: str) -> None:
        alike[number] = f"{inputs[number].name} is not laid onto {inputs[known].name}: it {reason}"

    placed = place_results([each.place for each in inputs], on_placed, on_alike)
    if len(placed) < 2:
        names = ", ".join(each.name for each in inputs)
        raise InputError("; ".join(alike.values()) or f"{names} share no view: there is nothing to merge")
    for number, each in enumerate(inputs):
        if number not in placed:
            line = alike.get(number, f"{each.name} shares no view with the others: it is left out")
            observer.on_message(line, warning=True)
    return placed


def _remove_stale(target: Path) -> None:
    """Remove temporary folders of merges to ``target`` that were killed."""
    with suppress(OSError):
        for path in target.parent.glob(f"{target.name}.*.part"):
            if not is_temporary(path.name) or path.is_symlink() or not (path / LOCK_NAME).is_file():
                continue
            with suppress(OutputError):
                FolderLock(path).release()  # its process has ended
                shutil.rmtree(path, ignore_errors=True)
