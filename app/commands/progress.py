"""A bar in the terminal: frames, frames/s, keyframes, memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from stream_recon.app.run.pipeline import Progress


def describe(progress: Progress) -> str:
    """``12.3 FPS, 7 keyframes, 512 MB``, and the frames dropped if there are any."""
    dropped = f", {progress.dropped} dropped" if progress.dropped else ""
    return f"{progress.fps:.1f} FPS, {progress.keyframes} keyframes, {progress.memory_mb:.0f} MB{dropped}"


@contextmanager
def progress_bar(console: Console) -> Iterator[Callable[[Progress], None]]:
    """A function that shows a run's progress; on anything but a terminal only the last state is printed."""
    columns = (
        TextColumn("frames"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with RichProgress(*columns, console=console, expand=True, refresh_per_second=5) as bar:
        task = bar.add_task("frames", total=None, detail="")

        def show(progress: Progress) -> None:
            bar.update(task, completed=progress.frames, total=progress.frame_hint, detail=describe(progress))

        yield show
