"""Refinement at the end of a run, and the body of the command ``refine``. Prints for the user."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from stream_recon.app.cli.console import DONE, INTERRUPTED, PlainConsole
from stream_recon.app.cli.progress import LiveView, says
from stream_recon.app.cli.scale import brought_to_metres
from stream_recon.app.export.source_images import source_of
from stream_recon.app.metric_scale.scale_source import parse_scale_source
from stream_recon.app.pipeline.process import memory_errors, stop_on_signals
from stream_recon.app.pipeline.refine import STORED_IMAGES, RefinementCancelledError, refine_result
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.slam.offline.report import RefinementReport
from stream_recon.app.sources.source import Source


def refine_folder(folder: Path) -> int:
    """Refine a finished or interrupted result, again or for the first time. Raises StreamReconError."""
    out, err = PlainConsole(soft_wrap=True), PlainConsole(stderr=True)
    result = read_result(folder)
    metres = result.metric_scale
    report = refined(result, source_of(result), out, err)
    if report is None:
        return INTERRUPTED
    if metres is not None:
        out.print(f"again to metres, from {metres.given}", markup=False)
        if not brought_to_metres(read_result(folder), parse_scale_source(metres.given), source_of(result), out, err):
            return INTERRUPTED
    return DONE


def refined(
    result: ResultFolder,
    open_again: Callable[[], Source] | None,
    out: Console,
    err: Console,
    page: LiveView | None = None,
) -> RefinementReport | None:
    """Refine with a progress bar and say what came out; None where Ctrl-C ended it, which leaves the result as it was.

    Args:
        page: shows how it goes on, and says what came out.

    Raises:
        StreamReconError: likewise.
    """
    say = says(page)
    columns = TextColumn("{task.description}"), BarColumn(bar_width=None), TimeElapsedColumn()
    with Progress(*columns, console=err, expand=True, refresh_per_second=5) as bar, stop_on_signals() as stop:
        refining = bar.add_task("refining", total=1.0)
        points: TaskID | None = None

        def show_share(share: float, what: str) -> None:
            bar.update(refining, completed=share, description=f"refining: {what}")
            say(f"refining: {what}, {share:.0%}")

        def show_points(done: int, total: int) -> None:
            nonlocal points
            if points is None:
                bar.update(refining, completed=1.0, description="refining")
                points = bar.add_task("points", total=total)
            bar.update(points, completed=done)
            say(f"refined; points of {done} of {total} frames are in place")

        try:
            with memory_errors(), FolderLock(result.folder):
                report = refine_result(
                    result,
                    open_again,
                    show_share,
                    show_points,
                    lambda: stop.requested,
                    page=page,
                )
        except RefinementCancelledError:
            stopped = "refinement stopped: the result is complete and not refined; 'stream-recon refine' goes on"
            out.print(stopped)
            say(stopped)
            return None
    if open_again is None:
        err.print(f"warning: {STORED_IMAGES}", markup=False, soft_wrap=True)
    lines = _described(report)
    for line in lines:
        out.print(line, markup=False)
    say("\n\n".join(lines))
    return report


def _described(report: RefinementReport) -> list[str]:
    """What came out, line by line, and then what did not."""
    lines = []
    if report.reprojection_px is not None and report.focal is not None:
        loops = f", {report.loops} loops" if report.loops else ""
        lines.append(
            f"refined: {report.keyframes} keyframes, {report.pairs_accepted} of {report.pairs_tried} pairs, "
            f"{report.tracks} points{loops}; off by {report.reprojection_px:.2f} px instead of "
            f"{report.reprojection_px_before or 0.0:.2f} px, focal length {report.focal:.0f} px instead of "
            f"{report.focal_before or 0.0:.0f} px; {sum(report.seconds.values()):.1f} s"
        )
    return lines + [
        f"frames {segment['first']} to {segment['last']} stay as the network has them: {segment['why']}"
        for segment in report.fallback_segments
    ]
