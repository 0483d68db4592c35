"""How far things are: bars in the terminal, words on the page."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from stream_recon.app.pipeline import refine
from stream_recon.app.pipeline.pipeline import Progress


class LiveView(refine.RefinementView, Protocol):
    """A viewer that is also told in words how things are."""

    def status(self, text: str) -> None:
        """Show ``text`` (markdown) in place of what was told before."""


def says(page: LiveView | None) -> Callable[[str], None]:
    """What tells a page; nobody hears it where there is none."""
    return page.status if page is not None else lambda text: None


def describe(progress: Progress) -> str:
    """``12.3 FPS, 7 keyframes, 512 MB``, the frames dropped if there are any, and what else there is to tell."""
    dropped = f", {progress.dropped} dropped" if progress.dropped else ""
    back_end = f"; {progress.back_end}" if progress.back_end else ""
    notice = f"; {progress.notice}" if progress.notice else ""
    figures = f"{progress.fps:.1f} FPS, {progress.keyframes} keyframes, {progress.memory_mb:.0f} MB{dropped}"
    return f"{figures}{back_end}{notice}"


class RunBar:
    """One line for the frames, and a second one once the cloud is built anew after revisions."""

    def __init__(self, bar: RichProgress) -> None:
        self._bar = bar
        self._frames = bar.add_task("frames", total=None, detail="")
        self._points: TaskID | None = None

    def __call__(self, progress: Progress) -> None:
        """Show where the run is."""
        self._bar.update(self._frames, completed=progress.frames, total=progress.frame_hint, detail=describe(progress))

    def show_rebuild(self, done: int, total: int) -> None:
        """Show how many frames' points are in place, of how many."""
        if self._points is None:
            self._points = self._bar.add_task("points", detail="")
        self._bar.update(self._points, completed=done, total=total)


@contextmanager
def progress_bar(console: Console) -> Iterator[RunBar]:
    """Shows a run's progress; on anything but a terminal only the last state is printed."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with RichProgress(*columns, console=console, expand=True, refresh_per_second=5) as bar:
        yield RunBar(bar)


@contextmanager
def steps_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Shows what is done, how much of it, of how much: a line for each kind, none before it has begun."""
    columns = TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn()
    bar = RichProgress(*columns, console=console, expand=True, refresh_per_second=5)
    tasks: dict[str, TaskID] = {}

    def show(what: str, done: int, total: int) -> None:
        if not tasks:
            bar.start()
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total)
        bar.update(tasks[what], completed=done, total=total)

    try:
        yield show
    finally:
        if tasks:
            bar.stop()
