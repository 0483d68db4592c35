"""What the command ``batch`` prints: its scenes, progress, and the report at the end."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from stream_recon.app.batch.page import PAGE_NAME
from stream_recon.app.batch.plan import Batch
from stream_recon.app.batch.store import Store
from stream_recon.app.batch.summary import SHOWN, Row, compared_means, comparison, differences
from stream_recon.app.cli.console import verdict_text
from stream_recon.app.result.verdict import recorded_verdict

MAX_NAMES = 10
"""Scenes that one line names."""


def list_scenes(batch: Batch, console: Console) -> None:
    """Print what would be run."""
    table = Table("scene", "dataset", "frames", "path")
    counts = [batch.options.frames.count(scene.frames) for scene in batch.scenes]
    for scene, count in zip(batch.scenes, counts, strict=True):
        path = scene.path.relative_to(batch.root) if batch.root in scene.path.parents else scene.path.name
        table.add_row(scene.name, scene.dataset, "?" if count is None else str(count), str(path))
    console.print(table)
    unknown = counts.count(None)
    more = f", and {unknown} scenes of unknown length" if unknown else ""
    console.print(f"{len(counts)} scenes, {sum(count or 0 for count in counts)} frames{more}; nothing was run")


def print_report(summary: dict[str, Any], store: Store, console: Console) -> None:
    """Print what was done: scenes with problems, totals, verdicts, means, and where the page is."""
    for scene in summary["scenes"]:
        _print_scene(scene, console)
    totals = summary["totals"]
    console.print(_totals(totals))
    if judged := [f"{count} {level}" for level, count in totals["verdicts"].items() if count]:
        console.print(f"verdicts: {', '.join(judged)}")
    known = {SHOWN[name]: entry["mean"] for name, entry in summary["means"].items() if name in SHOWN}
    if means := [f"{heading} {mean:.{decimals}f}" for (heading, decimals), mean in known.items()]:
        console.print(f"means: {', '.join(means)}", soft_wrap=True)
    console.print(f"page: {store.location(PAGE_NAME)}", soft_wrap=True)


def _print_scene(scene: dict[str, Any], console: Console) -> None:
    """Why a scene failed, is not good or has no scale; nothing where all is well."""
    if scene["status"] == "failed":
        console.print(f"failed: {scene['name']}: {scene['reason']}", soft_wrap=True)
        return
    verdict = recorded_verdict(scene)
    if verdict is not None and verdict.level != "good":
        console.print(verdict_text(verdict, f"{scene['name']}: "), soft_wrap=True)
    if reason := (scene.get("metric_scale") or {}).get("reason"):
        console.print(f"not in metres: {scene['name']}: {reason}", markup=False, soft_wrap=True)


def _totals(totals: dict[str, Any]) -> str:
    words = {"resumed": "of them earlier", "failed": "failed", "not_run": "left"}
    counts = [f"{totals['done']} done", *(f"{totals[key]} {word}" for key, word in words.items() if totals[key])]
    rate = f", {totals['scenes_per_hour']:g} scenes an hour" if totals["scenes_per_hour"] else ""
    frames = f"{totals['frames']} frames in {totals['seconds']:.1f} s{rate}"
    return f"{totals['scenes']} scenes: {', '.join(counts)}; {frames}"


def print_comparison(summary: dict[str, Any], other: dict[str, Any], console: Console) -> None:
    """Print the differences from another batch."""
    console.print(comparison(summary, other))
    console.print(compared_means(summary, other))
    for line in differences(summary, other):
        console.print(f"note: {line}", soft_wrap=True)


def print_names(what: str, names: Sequence[str], console: Console) -> None:
    """Print a note on some scenes."""
    if names:
        more = ", ..." if len(names) > MAX_NAMES else ""
        listed = ", ".join(names[:MAX_NAMES])
        console.print(f"note: {what}: {listed}{more}", markup=False, soft_wrap=True)


class BatchBar:
    """Bar over the frames of all scenes, with a line for each scene that failed."""

    def __init__(self, console: Console) -> None:
        self.bar = Progress(
            TextColumn("{task.fields[scenes]}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("frames"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )

    def begin(self, rows: Sequence[Row], frames: int) -> None:
        self._scenes, self._ended = len(rows), sum(row.status != "not run" for row in rows)
        self._task = self.bar.add_task("frames", total=frames, scenes=self._counted())

    def progress(self, frames: int) -> None:
        self.bar.update(self._task, completed=frames)

    def finished(self, row: Row) -> None:
        self._ended += 1
        self.bar.update(self._task, scenes=self._counted())
        if row.status == "failed":
            self.bar.console.print(f"failed: {row.name}: {row.reason}", soft_wrap=True)

    def _counted(self) -> str:
        return f"{self._ended}/{self._scenes} scenes"
