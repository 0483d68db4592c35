"""The tables and lines that the command ``eval`` prints."""

from rich.table import Table

from stream_recon.app.evaluation.scores import Evaluation, SequenceMetrics, summarise

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
    table.add_row("ours", *_cells(ours), style="bold", end_section=evaluation.network == ours)
    if evaluation.network != ours:
        table.add_row("network alone", *_cells(evaluation.network), end_section=True)
    for name, errors in evaluation.baselines.items():
        table.add_row(name.replace("_", " "), *_cells(errors))
    return table


def _cells(errors: SequenceMetrics) -> list[str]:
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
