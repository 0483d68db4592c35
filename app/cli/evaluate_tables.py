"""Errors of an evaluation as tables and lines for the terminal."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from stream_recon.app.evaluation.dense_depth import DenseDepthErrors
    from stream_recon.app.evaluation.metrics import Metrics
    from stream_recon.app.evaluation.scores import Evaluation

COLUMNS = {
    "ate_m": ("ATE", 4),
    "ate_over_path": ("ATE/path", 4),
    "rpe_trans_m": ("RPE trans", 4),
    "rpe_rot_deg": ("RPE rot °", 2),
    "trans_dir_deg": ("direction °", 1),
    "absrel": ("AbsRel", 3),
    "delta1": ("δ<1.25", 3),
    "one_scale_ratio": ("one scale", 2),
    "scale_jump": ("jump", 2),
    "fov_error_deg": ("FoV °", 1),
}
"""Heading and decimals of each metric in the table. Path length and true rotation are in its title."""


def error_table(evaluation: "Evaluation") -> "Table":
    """Metrics of one sequence and of its baselines. A dash where there is no ground truth or no estimate."""
    from rich.table import Table

    final = evaluation.final
    title = f"{evaluation.name}: {evaluation.frames} frames, stride {evaluation.stride}"
    if final.path_m is not None:
        title += f", path {final.path_m:.3f}"
    if final.gt_rot_deg is not None:
        title += f", {final.gt_rot_deg:.2f}° rotation a frame"
    if 0 < evaluation.posed < evaluation.frames:
        title += f", {evaluation.frames - evaluation.posed} frames without a true pose, not in the pose errors"
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


def dense_line(errors: "DenseDepthErrors") -> str:
    """Errors of dense depth in one line, against the refined network's at the same pixels of keyframes."""
    levels = ", ".join(
        f"{level} {errors.shares[level]:.0%} of the pixels {dense:.4f} ({network:.4f})"
        for level, (dense, network) in errors.absrel.items()
    )
    return (
        f"dense depth of keyframes: AbsRel {errors.dense.absrel:.4f} (network {errors.network.absrel:.4f}), "
        f"δ<1.25 {errors.dense.delta1:.3f} ({errors.network.delta1:.3f}); {levels}; "
        f"worse by more than a tenth of the depth at {errors.worse:.2%}"
    )


def _cells(metrics: "Metrics") -> list[str]:
    values = [(getattr(metrics, name), decimals) for name, (_, decimals) in COLUMNS.items()]
    return ["-" if value is None else f"{value:.{decimals}f}" for value, decimals in values]


def summary_lines(evaluations: "list[Evaluation]") -> list[str]:
    """Mean metrics next to those of the best trivial baseline of each sequence, over sequences with ground truth."""
    from stream_recon.app.evaluation.scores import summarise

    lines = []
    for figure in ("ate_over_path", "absrel"):
        summary = summarise(evaluations, figure)
        if summary is not None:
            share = f" ({summary.final / summary.best_trivial:.2f}x)" if summary.best_trivial > 0 else ""
            lines.append(
                f"mean {COLUMNS[figure][0]} (sequences: {summary.sequences}): ours {summary.final:.4f}, "
                f"best trivial baseline {summary.best_trivial:.4f}{share}"
            )
    return lines
