"""What commands print while they work and at the end, in the terminal and in the viewer."""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from stream_recon.app.cli.console import verdict_text
from stream_recon.app.core.cancel import cancel_on_signals
from stream_recon.app.core.progress_file import ProgressFile
from stream_recon.app.result.disk_limit import DiskLimit, bytes_per_frame
from stream_recon.app.result.mesh import MESH_NAME
from stream_recon.app.result.metric_scale import MetricScale
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.verdict import Level, Verdict
from stream_recon.app.run.health import clock, low_quality_intervals
from stream_recon.app.run.listeners import Progress, RunObserver
from stream_recon.app.stages.finish import ResultView
from stream_recon.configs.schema import Preset

if TYPE_CHECKING:
    from stream_recon.app.mesh.build import MeshReport
    from stream_recon.app.run.live_onto import OntoBackEnd
    from stream_recon.app.slam.offline.report import RefinementReport
    from stream_recon.app.slam.online.back_end import OnlineBackEnd
    from stream_recon.app.slam.online.process import ProcessBackEnd
    from stream_recon.app.splat.trainer import TrainProgress
    from stream_recon.app.stages.dense import DenseReport

MIN_SHARE = 0.02
"""Share done of a step from which its time left is estimated."""
COMPILING = "first frames: kernels for this GPU are compiled, up to half a minute at the first start"
"""What a run on a GPU waits for."""
SPLAT_STEPS = 20
"""Steps of a training of splats between two updates."""
OUTLOOK_FPS = 30
"""Frame rate of a camera, for the disk space of an hour."""


class LiveView(ResultView, Protocol):
    """Viewer of a run that also shows a status text."""

    def status(self, text: str) -> None:
        """Show ``text`` (markdown) in place of the last one."""

    @property
    def paused(self) -> bool:
        """Whether the user has paused the run."""


@runtime_checkable
class VerdictView(Protocol):
    """Viewer that shows the judgement of a result."""

    def show_verdict(self, level: Level, text: str) -> None:
        """Show the level in its colour, and its reason with what to do."""


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

    def __init__(self, console: Console) -> None:
        self.note = ""
        columns = [TextColumn("{task.description}"), BarColumn(bar_width=None), _Done()]
        super().__init__(*columns, TimeElapsedColumn(), _TimeLeft(), console=console, expand=True, refresh_per_second=5)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.note:
            yield Text(self.note, no_wrap=True, overflow="ellipsis")


class TerminalObserver(RunObserver):
    """Shows a run as bars on stderr, lines on stdout, and as status of a viewer.

    A context manager, which ends a bar after errors, too. Where stderr is no terminal, only the last state is printed.
    """

    def __init__(self, out: Console, err: Console, page: LiveView | None = None) -> None:
        self.back_end: OnlineBackEnd | ProcessBackEnd | OntoBackEnd | None = None
        """Its map is shown in the viewer."""
        self._out, self._err, self._page = out, err, page
        self._shown_map: object = None
        self._bar: _Bars | None = None
        self._phase = ""
        self._tasks: dict[str, TaskID] = {}
        self._clocks: dict[str, StepClock] = {}
        self._file = ProgressFile.from_environment()
        self._fps: float | None = None
        self._figures = ""

    @property
    def paused(self) -> bool:
        return self._page is not None and self._page.paused

    def expect(self, total: int | None, *, on_gpu: bool = False) -> None:
        """Show the number of frames to come: the first ones take longest, most of all on a GPU."""
        self._update("run", "frames", 0, total)
        note = COMPILING if on_gpu else "first frames"
        self._note(note)
        self._status(note)

    def on_progress(self, progress: Progress) -> None:
        text = describe(progress)
        self._fps, self._figures = progress.fps, progress.notice or ""
        left = self._update("run", "frames", progress.frames, progress.frame_hint)
        self._note(text)
        self._status(f"{_counted(progress.frames, progress.frame_hint)} frames{left}; {text}")
        sparse = None if self.back_end is None else self.back_end.sparse
        if self._page is not None and sparse is not None and sparse is not self._shown_map:
            self._shown_map = sparse
            self._page.show_map(sparse.points, sparse.loops)

    def on_rebuild(self, done: int, total: int) -> None:
        self._update("run", "points", done, total)

    def on_refine(self, share: float, step: str) -> None:
        left = self._update("refine", "refining", round(100 * share), 100, percent=True)
        self._note(step)
        self._status(f"refining: {step}, {share:.0%}{left}")

    def on_refine_points(self, done: int, total: int) -> None:
        self._update("refine", "refining", 100, 100, percent=True)
        self._update("refine", "points", done, total)
        self._note("")
        self._status(f"refined; points of {done} of {total} frames are updated")

    def on_refined(self, report: "RefinementReport | None") -> None:
        self.stop()
        if report is None:
            lines = ["refinement stopped: the result is complete but not refined; 'stream-recon refine' refines it"]
        else:
            lines = describe_refinement(report)
        for line in lines:
            self._out.print(line, markup=False)
        self._status("\n\n".join(lines))

    def on_scale(self, step: str, done: int, total: int) -> None:
        self._update("steps", step, done, total)
        if step == "markers":
            self._status(f"looking for markers: {done} of {total} frames")

    def on_scaled(self, unit: MetricScale | None) -> None:
        self.stop()
        line = "stopped: the result is complete and its unit has not changed; 'stream-recon scale' converts it"
        if unit is not None:
            error = "" if unit.error is None else f" (error about {100 * unit.error:.2g} %)"
            line = f"in metres: 1 unit of the reconstruction is {unit.T_metric_own.scale:.5g} m{error}, by {unit.how}"
        self._out.print(line, markup=False)
        self._status(line)

    def on_dense(self, done: int, total: int) -> None:
        left = self._update("dense", "dense depth", done, total)
        self._status(f"dense depth: {_counted(done, total)}{left}")

    def on_dense_points(self, done: int, total: int) -> None:
        self._update("dense", "points", done, total)

    def on_densified(self, report: "DenseReport | None") -> None:
        self.stop()
        line = "stopped: the result is complete without dense depth; 'stream-recon refine' computes it"
        if report is not None:
            line = (
                f"dense depth: {report.keyframes} keyframes at {report.side} pixels, {report.confirmed:.0%} of the "
                f"pixels confirmed by other views, {report.near:.0%} near these; {report.seconds:.1f} s"
            )
        self._out.print(line, markup=False)
        self._status(line)

    def on_mesh(self, done: int, total: int) -> None:
        left = self._update("mesh", "mesh", done, total)
        self._status(f"making the mesh, {done / total:.0%}{left}")

    def on_meshed(self, report: "MeshReport | None") -> None:
        self.stop()
        line = "stopped: the result is complete without a mesh; 'stream-recon export' makes one"
        if report is not None:
            textures = f", textures of {report.views} frames" if report.views else ""
            line = f"mesh: {MESH_NAME}, {report.triangles} triangles{textures}, {report.size / 1e6:.1f} MB"
        self._out.print(line, markup=False)
        self._status(line)

    def on_step(self, step: str, done: int, total: int) -> None:
        """A bar for each step of a command, and its status on the page with the time left."""
        left = self._update("steps", step, done, total)
        self._status(f"{step}: {_counted(done, total)}{left}")

    def on_splats(self, progress: "TrainProgress") -> None:
        """Training of splats: steps, and how well they show images that they have not seen."""
        if progress.step % SPLAT_STEPS and progress.step < progress.steps:
            return
        left = self._update("splats", "splats", progress.step, progress.steps)
        measured = "" if progress.psnr is None else f", held-out PSNR {progress.psnr:.1f} dB"
        text = f"{progress.splats} splats{measured}"
        self._note(text)
        self._status(f"training splats: step {_counted(progress.step, progress.steps)}{left}; {text}")

    def on_verdict(self, verdict: Verdict) -> None:
        self.stop()
        self._out.print(verdict_text(verdict, "verdict: "))
        if isinstance(self._page, VerdictView):
            self._page.show_verdict(verdict.level, verdict.explanation)

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
        self._bar, self._phase = None, ""

    def __enter__(self) -> "TerminalObserver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _update(self, phase: str, task: str, done: float, total: float | None, percent: bool = False) -> str:
        """Show the state of a step; returns the time left as ``, about 1:20 left``, empty while it is not known."""
        if self._bar is None or self._phase != phase:
            self.stop()
            self._bar = _Bars(console=self._err)
            self._bar.start()
            self._phase, self._tasks, self._clocks = phase, {}, {}
        if task not in self._tasks:
            self._tasks[task] = self._bar.add_task(task, total=None)
            self._clocks[task] = StepClock()
        left = self._clocks[task].left(done, total)
        self._bar.update(self._tasks[task], completed=done, total=total, percent=percent, left=left)
        is_run = task == "frames" and phase == "run"
        self._file.write(task, done, total, left, self._fps if is_run else None, self._figures if is_run else "")
        return "" if left is None or total is None or done >= total else f", about {clock(left)} left"

    def _note(self, text: str) -> None:
        if self._bar is not None:
            self._bar.note = text

    def _status(self, text: str) -> None:
        if self._page is not None:
            self._page.status(text)


def _counted(done: int, total: int | None) -> str:
    return f"{done}" if total is None else f"{done} of {total}"


def describe(progress: Progress) -> str:
    """Figures of a run in one line, such as ``12.3 FPS, 7 keyframes, 512 MB``."""
    dropped = f", {progress.dropped} dropped" if progress.dropped else ""
    back_end = f"; {progress.back_end}" if progress.back_end else ""
    notice = f"; {progress.notice}" if progress.notice else ""
    figures = f"{progress.fps:.1f} FPS, {progress.keyframes} keyframes, {progress.memory_mb:.0f} MB{dropped}"
    return f"{figures}{back_end}{notice}"


def describe_lens(report: "RefinementReport") -> str:
    """The field of view of a refinement, and its camera model where that bends lines."""
    model = report.lens or ""
    terms = ", ".join(f"{value:.3f}" for value in (report.k1, report.k2) if value)
    bent = f", {'fish-eye lens' if 'FISHEYE' in model else 'radial distortion'} ({terms})" if "RADIAL" in model else ""
    unknown = " (not measured)" if report.field_of_view_measured is False else ""
    return f"field of view {report.field_of_view_deg or 0.0:.0f} degrees{unknown}{bent}"


def describe_refinement(report: "RefinementReport") -> list[str]:
    """Lines on the success of a refinement, and on segments that it left alone."""
    lines = []
    if report.reprojection_px is None:
        reasons = dict.fromkeys(str(segment["why"]) for segment in report.fallback_segments)
        why = ", ".join(reasons) or "no map came out"
        return [f"not refined: all frames keep the network's poses and depth, because {why}"]
    if report.focal is not None:
        loops = f", {report.loops} loops" if report.loops else ""
        lines.append(
            f"refined: {report.keyframes} keyframes, {report.pairs_accepted} of {report.pairs_tried} pairs, "
            f"{report.tracks} points{loops}; reprojection error {report.reprojection_px:.2f} px instead of "
            f"{report.reprojection_px_before or 0.0:.2f} px, focal length {report.focal:.0f} px instead of "
            f"{report.focal_before or 0.0:.0f} px, {describe_lens(report)}; {sum(report.seconds.values()):.1f} s"
        )
    lines += [
        f"the scale may change by a factor of {jump['factor']} at frame {jump['frame']}, where few points tie them"
        for jump in report.scale_jumps
    ]
    return lines + [
        f"frames {segment['first']} to {segment['last']} are not refined and keep the network's poses, "
        f"because {segment['why']}"
        for segment in report.fallback_segments
    ]


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
    out.print(f"{'interrupted' if summary.interrupted else 'done'}: {counts}; {speed}")


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
