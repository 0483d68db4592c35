"""The body of the command ``eval``: a table and a JSON file of the product's errors on sequences with truth."""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stream_recon.app.datasets.sequence import TruthSequence, read_sequence
from stream_recon.app.evaluation.scores import Errors, Evaluation, StreamEngine, evaluate_sequence, summarise
from stream_recon.app.model_choice import ModelChoice
from stream_recon.app.results import Frame, FrameResult
from stream_recon.configs.errors import OutputError

COLUMNS = {
    "ate_m": ("ATE", 4),
    "ate_over_path": ("ATE/path", 4),
    "rpe_trans_m": ("RPE trans", 4),
    "rot_step_deg": ("RPE rot °", 2),
    "tdir_deg": ("direction °", 1),
    "absrel": ("AbsRel", 3),
    "delta1": ("δ<1.25", 3),
    "fov_error_deg": ("FoV °", 1),
}
"""Heading and decimals of each figure in the table. The path and the true rotation are in its title."""
PIPE_WIDTH = 120
"""Columns of the table where the output is not a terminal, so that no figure is cut off."""


def run(
    sequences: list[Path],
    stride: int,
    frames: int | None,
    json_path: Path | None,
    model: ModelChoice,
) -> int:
    """Evaluate every sequence folder with one engine; prints as it goes, and returns the exit code.

    The JSON file is written anew after each sequence, so that an interrupted run keeps what it finished.

    Args:
        stride, frames: use every ``stride``-th image, and at most ``frames`` of them.

    Raises:
        StreamReconError: a bad option, an unreadable sequence or checkpoint, a JSON file that cannot be written.
    """
    model.load_preset()  # a bad choice is told before anything is read
    opened = _unique_names([read_sequence(folder) for folder in sequences])
    for sequence in opened:
        sequence.used(stride, frames)
    if json_path is not None and (json_path.is_dir() or not json_path.parent.is_dir()):
        raise OutputError(f"{json_path} is no place for a file: give a file name in a folder that exists")
    evaluate_all(model.load(), opened, stride, frames, json_path)
    return 0


def evaluate_all(
    engine: StreamEngine, sequences: list[TruthSequence], stride: int, limit: int | None, json_path: Path | None
) -> list[Evaluation]:
    """Evaluate, print a table for each sequence and the means, and write the JSON file."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    evaluations: list[Evaluation] = []
    for sequence in sequences:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            watched = _Watched(engine, progress, sequence.name, len(sequence.used(stride, limit)))
            evaluation = evaluate_sequence(watched, sequence, stride, limit)
        evaluations.append(evaluation)
        console.print(error_table(evaluation))
        if json_path is not None:
            write_json(json_path, engine.weights_sha256, evaluations)
    for line in summary_lines(evaluations):
        console.print(line, highlight=False)
    return evaluations


class _Watched:
    """An engine whose results move a progress bar."""

    def __init__(self, engine: StreamEngine, progress: Progress, name: str, total: int) -> None:
        self.weights_sha256 = engine.weights_sha256
        self._engine = engine
        self._progress = progress
        self._task = progress.add_task(name, total=total)

    def reset(self) -> None:
        self._engine.reset()

    def stream(self, frames: Iterable[Frame]) -> Iterator[FrameResult]:
        for result in self._engine.stream(frames):
            self._progress.advance(self._task)
            yield result


def _unique_names(sequences: list[TruthSequence]) -> list[TruthSequence]:
    """Sequences whose folders have the same name are told apart by their whole path."""
    names = [sequence.name for sequence in sequences]
    return [dataclasses.replace(s, name=str(s.folder)) if names.count(s.name) > 1 else s for s in sequences]


def error_table(evaluation: Evaluation) -> Table:
    """The errors of one sequence: ours first, then the baselines'. A dash where there is no truth or no estimate."""
    ours = evaluation.ours
    title = f"{evaluation.name}: {ours.frames} frames, stride {evaluation.stride}"
    if ours.path_m is not None:
        title += f", path {ours.path_m:.3f}"
    if ours.rot_moved_deg is not None:
        title += f", {ours.rot_moved_deg:.2f}° turned a frame"
    if 0 < evaluation.posed < ours.frames:
        title += f", {ours.frames - evaluation.posed} frames without a true pose left out of the pose errors"
    if not evaluation.posed:
        title += ", no true poses"
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for heading, _ in COLUMNS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("ours", *_cells(ours), style="bold", end_section=True)
    for name, errors in evaluation.baselines.items():
        table.add_row(name.replace("_", " "), *_cells(errors))
    return table


def _cells(errors: Errors) -> list[str]:
    values = [(getattr(errors, name), decimals) for name, (_, decimals) in COLUMNS.items()]
    return ["-" if value is None else f"{value:.{decimals}f}" for value, decimals in values]


def summary_lines(evaluations: list[Evaluation]) -> list[str]:
    """Ours against the best trivial baseline of each sequence, averaged over the sequences with truth."""
    lines = []
    for figure in ("ate_over_path", "absrel"):
        summary = summarise(evaluations, figure)
        if summary is not None:
            share = f" ({summary.ours / summary.best_trivial:.2f}x)" if summary.best_trivial > 0 else ""
            lines.append(
                f"mean {COLUMNS[figure][0]} (sequences: {summary.sequences}): ours {summary.ours:.4f}, "
                f"best trivial baseline of each {summary.best_trivial:.4f}{share}"
            )
    return lines


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
