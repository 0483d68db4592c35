"""The body of the command ``eval``: a table and a JSON file of the product's errors on sequences with truth.

The tables and lines that the command ``eval`` prints.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.progress import Progress, TaskID
from rich.table import Table

from stream_recon.app.cli.console import PlainConsole, wide_console
from stream_recon.app.core.protocols import FrameEngine
from stream_recon.app.core.types import FrameResult, PreparedFrame, Revision
from stream_recon.app.datasets.scene import Scene
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.evaluation.metrics import Metrics
from stream_recon.app.evaluation.scores import Evaluation, baseline_metrics, summarise
from stream_recon.app.pipeline.listeners import BackEnd, DelegatingBackEnd
from stream_recon.app.pipeline.pipeline import Progress as RunProgress
from stream_recon.app.pipeline.pipeline import reconstruct
from stream_recon.app.pipeline.process import stop_on_signals
from stream_recon.app.pipeline.refine import RefinementCancelledError, refine_result
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunInfo
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.slam.mode import MappingChoice, make_back_end
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError, OutputError

COLUMNS = {
    "ate_m": ("ATE", 4),
    "ate_over_path": ("ATE/path", 4),
    "rpe_trans_m": ("RPE trans", 4),
    "rpe_rot_deg": ("RPE rot °", 2),
    "trans_dir_deg": ("direction °", 1),
    "absrel": ("AbsRel", 3),
    "delta1": ("δ<1.25", 3),
    "fov_error_deg": ("FoV °", 1),
}
"""Heading and decimals of each figure in the table. The path and the true rotation are in its title."""


def error_table(evaluation: Evaluation) -> Table:
    """The errors of one sequence: ours first, then the baselines'. A dash where there is no truth or no estimate."""
    final = evaluation.final
    title = f"{evaluation.name}: {evaluation.frames} frames, stride {evaluation.stride}"
    if final.path_m is not None:
        title += f", path {final.path_m:.3f}"
    if final.gt_rot_deg is not None:
        title += f", {final.gt_rot_deg:.2f}° turned a frame"
    if 0 < evaluation.posed < evaluation.frames:
        title += f", {evaluation.frames - evaluation.posed} frames without a true pose left out of the pose errors"
    if not evaluation.posed:
        title += ", no true poses"
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for heading, _ in COLUMNS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("ours", *_cells(final), style="bold", end_section=evaluation.network == final)
    if evaluation.network != final:
        table.add_row("network alone", *_cells(evaluation.network), end_section=True)
    for name, metrics in evaluation.baselines.items():
        table.add_row(name.replace("_", " "), *_cells(metrics))
    return table


def _cells(metrics: Metrics) -> list[str]:
    values = [(getattr(metrics, name), decimals) for name, (_, decimals) in COLUMNS.items()]
    return ["-" if value is None else f"{value:.{decimals}f}" for value, decimals in values]


def summary_lines(evaluations: list[Evaluation]) -> list[str]:
    """Ours against the best trivial baseline of each sequence, averaged over the sequences with truth."""
    lines = []
    for figure in ("ate_over_path", "absrel"):
        summary = summarise(evaluations, figure)
        if summary is not None:
            share = f" ({summary.final / summary.best_trivial:.2f}x)" if summary.best_trivial > 0 else ""
            lines.append(
                f"mean {COLUMNS[figure][0]} (sequences: {summary.sequences}): ours {summary.final:.4f}, "
                f"best trivial baseline of each {summary.best_trivial:.4f}{share}"
            )
    return lines


PIPE_WIDTH = 120
"""Columns of the table where the output is not a terminal, so that no figure is cut off."""
MAX_PIXELS = 64_000_000
"""So many true depths are compared exactly, in a gigabyte; of more a fair sample is."""


def run(
    sequences: list[Path],
    stride: int,
    frames: int | None,
    json_path: Path | None,
    model: ModelChoice,
    mapping: MappingChoice = "full",
    camera: str | None = None,
) -> int:
    """Evaluate every sequence folder with one engine; prints as it goes, and returns the exit code.

    The JSON file is written anew after each sequence, so that an interrupted run keeps what it finished.

    Args:
        stride, frames: use every ``stride``-th image, and at most ``frames`` of them.
        mapping: what geometry does with the results before they are measured.
        camera: see `Scene`.

    Raises:
        StreamReconError: a bad option, an unreadable sequence or checkpoint, a JSON file that cannot be written.
    """
    model.load_preset()  # a bad choice is told before anything is read
    scenes = _unique_names([_open(folder, stride, frames, camera) for folder in sequences])
    if json_path is not None and (json_path.is_dir() or not json_path.parent.is_dir()):
        raise OutputError(f"{json_path} is no place for a file: give a file name in a folder that exists")
    evaluate_all(model.load(), scenes, stride, frames, json_path, mapping)
    return 0


def _open(folder: Path, stride: int, frames: int | None, camera: str | None) -> Scene:
    """The sequence in a folder, of which all but the images was read once. Raises InputError, ConfigError."""
    scene = Scene(folder.resolve().name, "sequence", folder, None, camera)
    scene.open(stride, frames).close()
    return scene


def evaluate_all(
    engine: FrameEngine,
    scenes: list[Scene],
    stride: int,
    limit: int | None,
    json_path: Path | None,
    mapping: MappingChoice = "off",
) -> list[Evaluation]:
    """Evaluate, print a table for each sequence and the means, and write the JSON file."""
    console = wide_console()
    evaluations: list[Evaluation] = []
    for scene in scenes:
        with Progress(console=PlainConsole(stderr=True), transient=True) as bar:
            show = partial(_show, bar, bar.add_task(scene.name, total=None))
            evaluation = evaluate_scene(engine, scene, stride, limit, show, mapping)
        evaluations.append(evaluation)
        console.print(error_table(evaluation))
        if json_path is not None:
            write_json(json_path, engine.weights_sha256, evaluations)
    for line in summary_lines(evaluations):
        console.print(line)
    return evaluations


def _show(bar: Progress, task: TaskID, progress: RunProgress) -> None:
    bar.update(task, completed=progress.frames, total=progress.frame_hint)


def evaluate_scene(
    engine: FrameEngine,
    scene: Scene,
    stride: int = 1,
    limit: int | None = None,
    on_progress: Callable[[RunProgress], None] | None = None,
    mapping: MappingChoice = "off",
    back_end: BackEnd | None = None,
) -> Evaluation:
    """Run the program on every ``stride``-th image, at most ``limit``, and compare what its user gets with the truth.

    ``stage``: as `reconstruct` has it, in place of the one that ``mapping`` asks for.

    Raises:
        ConfigError: stride or limit below 1.
        InputError: an image or a truth file that cannot be read: figures over fewer frames would pass for better ones.
        KeyboardInterrupt: Ctrl-C came meanwhile.
    """
    truth = scene.truth()
    evaluator = Evaluator(truth, max_pixels=MAX_PIXELS)
    known = scene.camera is not None
    back_end = back_end or make_back_end(mapping, engine.preset.stream.scale_frames, known_intrinsics=known)
    overheard = RecordingBackEnd(back_end, Evaluator(truth, max_pixels=MAX_PIXELS)) if back_end is not None else None
    engine.reset()
    with scene.open(stride, limit) as source:

        def watch(progress: RunProgress) -> None:
            _check(source, evaluator)
            if on_progress is not None:
                on_progress(progress)

        with ExitStack() as stack:
            writer = None
            if mapping == "full":
                # On the disk, as for users: no sequence has to fit into memory.
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="stream-recon-")))
                writer = ResultWriter(
                    folder, RunInfo.from_engine(engine, source.name, {"camera": scene.camera} if known else {})
                )
            summary = reconstruct(source, engine, writer, [evaluator], watch, back_end=overheard)
            _check(source, evaluator)
            if summary.interrupted:
                raise KeyboardInterrupt
            causal, online_final = evaluator.metrics(causal=True), evaluator.metrics()
            if writer is not None:
                open_again = partial(scene.open, stride, limit)
                with stop_on_signals() as stop:
                    try:
                        result = read_result(folder)
                        refine_result(result, open_again, cancelled=lambda: stop.requested, listeners=[evaluator])
                    except RefinementCancelledError as error:
                        raise KeyboardInterrupt from error
            network = overheard.evaluator.metrics() if overheard is not None else causal
            final = evaluator.metrics()
    with scene.open(stride, limit) as frames:
        rows = baseline_metrics(evaluator, frames)
    return Evaluation(
        scene.name,
        stride,
        evaluator.frames,
        posed=len(evaluator.true_trajectory()),
        final=final,
        network=network,
        causal=causal,
        online_final=online_final,
        baselines=rows,
    )


class RecordingBackEnd(DelegatingBackEnd):
    """A stage, and a gatherer of what goes into it: the network's own results, in its own world."""

    def __init__(self, back_end: BackEnd, evaluator: Evaluator) -> None:
        super().__init__(back_end)
        self.evaluator = evaluator

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[FrameResult | Revision]:
        self.evaluator.add(result)
        return super().push(result, frame)


def _check(source: Source, evaluator: Evaluator) -> None:
    if source.damaged:
        raise InputError(f"{source.name}: {source.warnings[-1]}; to be measured, all images have to be readable")
    if evaluator.truth_error is not None:
        raise InputError(evaluator.truth_error)


def _unique_names(scenes: list[Scene]) -> list[Scene]:
    """Sequences whose folders have the same name are told apart by their whole path."""
    names = [scene.name for scene in scenes]
    return [dataclasses.replace(s, name=str(s.path)) if names.count(s.name) > 1 else s for s in scenes]


def write_json(path: Path, weights_sha256: str, evaluations: list[Evaluation]) -> None:
    """Write all figures; a reader never sees half a file.

    Raises:
        OutputError: the file cannot be written.
    """
    content = {
        "weights_sha256": weights_sha256,
        "sequences": {evaluation.name: evaluation.to_json() for evaluation in evaluations},
    }
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
