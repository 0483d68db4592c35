"""What commands print while they work and at the end, in the terminal and in the viewer."""

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from stream_recon.app.cli.console import Terminal, verdict_text
from stream_recon.app.core.cancel import cancel_on_signals
from stream_recon.app.core.progress_file import ProgressFile, ProgressLines
from stream_recon.app.core.views import RunView
from stream_recon.app.result.disk_limit import DiskLimit, bytes_per_frame
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.verdict import Verdict
from stream_recon.app.run.health import clock, low_quality_intervals
from stream_recon.app.run.listeners import Progress, RunObserver
from stream_recon.configs.schema import Preset

if TYPE_CHECKING:
    from stream_recon.app.run.back_end import RunBackEnd

MIN_SHARE = 0.02
"""Share done of a step from which its time left is estimated."""
COMPILING = "first frames: kernels for this GPU are compiled, up to half a minute at the first start"
"""What a run on a GPU waits for."""
OUTLOOK_FPS = 30
"""Frame rate of a camera, for the disk space of an hour."""


class StepClock:
    """Estimates the time left of a step from its mean speed."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._begun, self._first = now, 0.0, 0.0
        self._started = False

    def left(self, done: float, total: float | None) -> float | None:
        """Seconds left; None while too little is done.

        The first report of something done counts as the beginning: a run may be resumed, or start slowly.
        """
        if not self._started and done > 0:
            self._started, self._first, self._begun = True, done, self._now()
        if not self._started or not total or done - self._first < MIN_SHARE * total:
            return None
        return (self._now() - self._begun) / (done - self._first) * max(total - done, 0.0)


class _Done(ProgressColumn):
    """Number done and total, or the share done of a step in percent."""

    def render(self, task: Task) -> Text:
        total = "?" if task.total is None else f"{task.total:.0f}"
        text = f"{task.completed:.0f} %" if task.fields.get("percent") else f"{task.completed:.0f}/{total}"
        return Text(text, style="progress.download")


class _TimeLeft(ProgressColumn):
    """Time left of a step, or after its end the time that it took."""

    def render(self, task: Task) -> Text:
        if task.finished:
            return Text(f"took {clock(task.finished_time or 0.0)}", style="progress.elapsed")
        left: float | None = task.fields.get("left")
        return Text("left -:--" if left is None else f"left {clock(left)}", style="progress.remaining")


class _Bars(RichProgress):
    """Bars with number done, total and time left, and a line of text below them, cut to the terminal's width."""

    def __init__(self, console: Console, disable: bool) -> None:
        self.note = ""
        columns = [TextColumn("{task.description}"), BarColumn(bar_width=None), _Done()]
        super().__init__(
            *columns,
            TimeElapsedColumn(),
            _TimeLeft(),
            console=console,
            expand=True,
            refresh_per_second=5,
            disable=disable,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.note:
            yield Text(self.note, no_wrap=True, overflow="ellipsis")


class TerminalObserver(RunObserver):
    """Shows a run as bars on stderr, lines on stdout, and as status of a viewer.

    A context manager, which ends a bar after errors, too. Where stderr is no terminal, only the last state is printed.
    ``terminal``: what is printed in place of bars.
    """

    def __init__(
        self, out: Console, err: Console, view: RunView | None = None, terminal: Terminal | None = None
    ) -> None:
        self.back_end: RunBackEnd | None = None
        """Its map is shown in the viewer."""
        self._out, self._err, self.view = out, err, view
        self._shown_map: object = None
        self._bar: _Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._clocks: dict[str, StepClock] = {}
        terminal = terminal or Terminal()
        self._has_bars = terminal.progress == "bars" and terminal.log_level == "info"
        self._files = [ProgressFile.from_environment()]
        if terminal.progress == "json":
            self._files.append(ProgressLines(sys.stderr))
        self._stage = ""
        self._fps: float | None = None
        self._figures = ""

    @property
    def paused(self) -> bool:
        return self.view is not None and self.view.paused

    def expect(self, total: int | None, *, on_gpu: bool = False, stages: int = 1) -> None:
        """Show the number of frames to come: the first ones take longest, most of all on a GPU.

        ``stages``: steps of the whole run, of which the frames are the first.
        """
        self._begin_stage("frames", 1, stages)
        self._update("frames", 0, total)
        note = COMPILING if on_gpu else "first frames"
        self._note(note)
        self._status(note)

    def on_progress(self, progress: Progress) -> None:
        text = describe(progress)
        self._fps, self._figures = progress.fps, progress.notice or ""
        left = self._update("frames", progress.frames, progress.frame_hint)
        self._note(text)
        self._status(f"{self._stage}{_counted(progress.frames, progress.frame_hint)} frames{left}; {text}")
        sparse = None if self.back_end is None else self.back_end.sparse
        if self.view is not None and sparse is not None and sparse is not self._shown_map:
            self._shown_map = sparse
            self.view.show_map(sparse.points, sparse.loops)

    def on_stage(self, name: str, number: int, count: int) -> None:
        self.stop()
        self._begin_stage(name, number, count)

    def on_step(self, step: str, done: int, total: int, note: str = "") -> None:
        left = self._update(step, done, total)
        self._note(note)
        self._status(f"{self._stage}{step}: {_counted(done, total)}{left}{note and f'; {note}'}")

    def on_share(self, step: str, share: float, note: str = "") -> None:
        left = self._update(step, round(100 * share), 100, percent=True)
        self._note(note)
        self._status(f"{self._stage}{step}: {note and f'{note}, '}{share:.0%}{left}")

    def on_result(self, lines: Sequence[str]) -> None:
        self.stop()
        for line in lines:
            self._out.print(line, markup=False)
        if lines:
            self._status("\n\n".join(lines))

    def on_verdict(self, verdict: Verdict) -> None:
        self.stop()
        self._out.print(verdict_text(verdict, "verdict: "))
        if self.view is not None:
            self.view.show_verdict(verdict.level, verdict.explanation)

    def on_message(self, line: str, *, warning: bool = False) -> None:
        self.stop()
        if warning:
            self._err.print(f"warning: {line}", markup=False, soft_wrap=True)
        else:
            self._out.print(line, markup=False)

    def stop(self) -> None:
        """End the bar under way, so that lines can follow."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = None

    def __enter__(self) -> "TerminalObserver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _begin_stage(self, name: str, number: int, count: int) -> None:
        self._stage = f"step {number} of {count}, " if count > 1 else ""
        for file in self._files:
            file.note(stage=f"{number} of {count}: {name}")

    def _update(self, task: str, done: float, total: float | None, percent: bool = False) -> str:
        """Show the state of a step; returns the time left as ``, about 1:20 left``, empty while it is not known."""
        if self._bar is None:
            self._bar = _Bars(console=self._err, disable=not self._has_bars)
            self._bar.start()
            self._tasks, self._clocks = {}, {}
        if task not in self._tasks:
            self._tasks[task] = self._bar.add_task(f"{self._stage}{task}", total=None)
            self._clocks[task] = StepClock()
        left = self._clocks[task].left(done, total)
        self._bar.update(self._tasks[task], completed=done, total=total, percent=percent, left=left)
        is_run = task == "frames"
        for file in self._files:
            file.write(task, done, total, left, self._fps if is_run else None, self._figures if is_run else "")
        return "" if left is None or total is None or done >= total else f", about {clock(left)} left"

    def _note(self, text: str) -> None:
        if self._bar is not None:
            self._bar.note = text

    def _status(self, text: str) -> None:
        if self.view is not None:
            self.view.status(text)


def _counted(done: int, total: int | None) -> str:
    return f"{done}" if total is None else f"{done} of {total}"


def describe(progress: Progress) -> str:
    """Figures of a run in one line, such as ``12.3 FPS, 7 keyframes, 512 MB``."""
    dropped = f", {progress.dropped} dropped" if progress.dropped else ""
    back_end = f"; {progress.back_end}" if progress.back_end else ""
    notice = f"; {progress.notice}" if progress.notice else ""
    figures = f"{progress.fps:.1f} FPS, {progress.keyframes} keyframes, {progress.memory_mb:.0f} MB{dropped}"
    return f"{figures}{back_end}{notice}"


def print_summary(summary: RunSummary, out: Console, err: Console) -> None:
    """Warnings of a run on stderr, and its counts and speed on stdout."""
    for warning in summary.warnings:
        err.print(f"warning: {warning}", markup=False, soft_wrap=True)
    # Photographs in no order do not fit the one before, and have no times.
    for interval in [] if summary.unordered else low_quality_intervals(summary.health):
        when = f"from {clock(interval.begin)} to {clock(interval.end)} ({interval.frames} frames)"
        err.print(f"warning: low tracking quality {when}: {interval.why}", markup=False, soft_wrap=True)
    losses = ((summary.frames_damaged, "damaged"), (summary.frames_dropped, "dropped"))
    lost = [f"{count} {word}" for count, word in losses if count]
    speed = f"{summary.seconds:.1f} s, {summary.fps:.1f} frames/s"
    if summary.latency_p50_ms is not None:
        speed += f", latency {summary.latency_p50_ms:.0f} ms (p95 {summary.latency_p95_ms:.0f} ms)"
    counts = ", ".join([f"{summary.frames_reconstructed} frames", f"{summary.keyframes} keyframes", *lost])
    out.print(f"{'stopped after' if summary.interrupted else 'stream:'} {counts}; {speed}")


def disk_outlook(folder: Path, limit: DiskLimit, preset: Preset) -> str:
    """Disk space that a live source will need, in one line."""
    each = bytes_per_frame(preset.image.max_patches * preset.network.patch_size**2, limit.keep_depth)
    hour = OUTLOOK_FPS * 3600 * each / 1e9
    free = shutil.disk_usage(folder).free / 1e9
    bound = f"at most {limit.max_bytes / 1e9:g} GB (--max-disk)" if limit.max_bytes else f"no limit, {free:.0f} GB free"
    return f"disk: about {hour:.1f} GB an hour at {OUTLOOK_FPS} frames/s, plus points; {bound}"


@contextmanager
def step_bars(out: Console, err: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Function that shows the number done and the total of a named step, and raises Cancelled after Ctrl-C."""
    with cancel_on_signals() as cancel, TerminalObserver(out, err) as observer:

        def show(step: str, done: int, total: int) -> None:
            cancel.check()
            observer.on_step(step, done, total)

        yield show
