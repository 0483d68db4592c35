"""Command ``eval``: errors on sequences with ground truth, as a table and a JSON file."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream_recon.app.cli import options as shared
from stream_recon.app.cli.console import DONE, PlainConsole, reported, wide_console
from stream_recon.app.cli.evaluate_tables import dense_line, error_table, summary_lines
from stream_recon.app.cli.options import scene_camera
from stream_recon.app.core.input_file import parse_json, read_file
from stream_recon.configs.errors import OutputError

if TYPE_CHECKING:
    from stream_recon.app.core.types import FrameEngine
    from stream_recon.app.datasets.scene import Scene
    from stream_recon.app.evaluation.scores import Evaluation
    from stream_recon.app.run.options import RunOptions
    from stream_recon.app.sources.frame_choice import FrameChoice


@reported
def eval_command(
    sequences: Annotated[list[Path], typer.Argument(metavar="SEQUENCE...", help="Folders with rgb/ and ground truth.")],
    stride: shared.Stride = 1,
    frames: Annotated[
        int | None, shared.option("Take at most this number of frames.", panel=shared.INPUT, min=1)
    ] = None,
    side: Annotated[
        int | None, shared.option("Reduce the images to this longer side in pixels.", panel=shared.INPUT, min=32)
    ] = None,
    json: Annotated[Path | None, shared.option("Also write the metrics to this file.", panel=shared.OUTPUT)] = None,
    preset: shared.PresetName = "small",
    weights: shared.Weights = None,
    device: shared.Device = "auto",
    attention: shared.Attention = "auto",
    cache: shared.Cache = "full",
    precision: shared.Precision = "auto",
    keyframes: shared.Keyframes = None,
    mapping: shared.Mapping = "full",
    dense: shared.Dense = "on",
    dense_side: shared.DenseSide = shared.DENSE_SIDE,
    intrinsics: shared.Intrinsics = None,
    dataset_intrinsics: shared.DatasetIntrinsics = False,
) -> int:
    """Evaluate on sequences with ground truth, next to simple baselines."""
    from stream_recon.app.engine.model_choice import ModelChoice
    from stream_recon.app.run.options import RunOptions
    from stream_recon.app.sources.frame_choice import FrameChoice

    camera = scene_camera(intrinsics, dataset_intrinsics)
    model = ModelChoice(preset, weights, device, attention, keyframes, cache, precision=precision)
    choice = FrameChoice(stride, max_frames=frames, camera=camera)
    options = RunOptions(choice, model, mapping, dense_side=dense_side if dense == "on" else None)
    return evaluate_folders(sequences, options, json, side)


def evaluate_folders(
    folders: Sequence[Path], options: "RunOptions", json: Path | None = None, side: int | None = None
) -> int:
    """Evaluate sequence folders with one engine; returns the exit code. Raises StreamReconError.

    ``json``: file for the metrics, rewritten after each sequence: an interrupted evaluation keeps the finished ones.
    ``side``: longer side to which images are reduced.
    """
    from stream_recon.app.core.process import memory_errors

    with memory_errors():
        options.model.load_preset()  # errors in options come before data is read
        scenes = _unique_names([_open(folder, options.frames, side) for folder in folders])
        if json is not None and (json.is_dir() or not json.parent.is_dir()):
            raise OutputError(f"{json}: give the name of a file in an existing folder")
        evaluate_all(options.model.load(), scenes, options, json)
    return DONE


def _open(folder: Path, frames: "FrameChoice", side: int | None) -> "Scene":
    """The sequence in a folder, once all but its images was read. Raises InputError, ConfigError."""
    from stream_recon.app.datasets.scene import Scene

    scene = Scene(folder.resolve().name, "sequence", folder, None, frames.camera, side=side)
    scene.open(frames.stride, frames.max_frames).close()
    return scene


def _unique_names(scenes: "list[Scene]") -> "list[Scene]":
    """Scenes with equal names are named by their paths."""
    names = [scene.name for scene in scenes]
    return [dataclasses.replace(s, name=str(s.path)) if names.count(s.name) > 1 else s for s in scenes]


def evaluate_all(
    engine: "FrameEngine", scenes: "list[Scene]", options: "RunOptions", json: Path | None = None
) -> "list[Evaluation]":
    """Evaluate, print a table for each sequence and the means, and write the JSON file. Raises StreamReconError."""
    from rich.progress import Progress as Bar

    from stream_recon.app.result.files import replace_json
    from stream_recon.app.run.listeners import Progress, RunObserver
    from stream_recon.app.stages.evaluate import evaluate_scene

    class BarObserver(RunObserver):
        def __init__(self, bar: Bar, name: str) -> None:
            self._bar, self._task = bar, bar.add_task(name, total=None)

        def on_progress(self, progress: Progress) -> None:
            self._bar.update(self._task, completed=progress.frames, total=progress.frame_hint)

    if json is not None:
        _check_json(json)
    console = wide_console()
    evaluations: list[Evaluation] = []
    for scene in scenes:
        with Bar(console=PlainConsole(stderr=True), transient=True) as bar:
            evaluation = evaluate_scene(engine, scene, options, BarObserver(bar, scene.name))
        evaluations.append(evaluation)
        console.print(error_table(evaluation))
        if evaluation.dense is not None:
            console.print(dense_line(evaluation.dense))
        if json is not None:
            sequences = {each.name: each.to_json() for each in evaluations}
            replace_json(json, {"weights_sha256": engine.weights_sha256, "sequences": sequences})
    for line in summary_lines(evaluations):
        console.print(line)
    return evaluations


def _check_json(path: Path) -> None:
    """Raises OutputError where a file is not an earlier one of ``--json``."""
    if not path.exists() and not path.is_symlink():
        return
    try:
        record = parse_json(read_file(path))
    except (OSError, ValueError):
        record = None
    if not isinstance(record, dict) or "sequences" not in record:
        raise OutputError(f"--json {path} exists and is no earlier evaluation: move it, or choose another name")
