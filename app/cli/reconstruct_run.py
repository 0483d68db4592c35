"""A run of the command ``reconstruct``: what the terminal and the viewer show of it."""

import dataclasses
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from stream_recon.app.cli.console import Terminal
from stream_recon.app.cli.downloads import result_name
from stream_recon.app.cli.ending import print_continuation, print_ending
from stream_recon.app.cli.progress import TerminalObserver, disk_outlook, print_summary
from stream_recon.app.cli.view import ViewerChoice, show_result
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.run.health import clock
from stream_recon.app.run.options import RunJob
from stream_recon.app.run.session import Session
from stream_recon.app.stages.source_run import SourceRun

if TYPE_CHECKING:
    from stream_recon.app.core.views import ResultListener
    from stream_recon.app.viewer.viewer import Viewer


class TerminalRun(SourceRun):
    """A run with lines and bars in the terminal, and a viewer where one was chosen."""

    def __init__(
        self, job: RunJob, choice: ViewerChoice | None, terminal: Terminal, on_finished: Callable[[Path], None]
    ) -> None:
        """``on_finished`` is called with the complete result, before the viewer stays open."""
        self.out, self.err = terminal.consoles()
        self.shown = TerminalObserver(self.out, self.err, terminal=terminal)
        super().__init__(job, self.shown)
        self.enter_context(self.shown)
        self.choice, self.terminal, self.on_finished = choice, terminal, on_finished
        self.begin = time.monotonic()
        self.viewer: Viewer | None = None

    def on_open(self) -> None:
        if self.choice is None:
            return
        points = self.preset.points if self.earlier.record is None else read_result(self.job.folder).points
        self.viewer = self.enter_context(self.choice.open(points, self.out, self.err))
        self.viewer.name(result_name(self.job.folder))
        self.viewer.state.follows = self.source.feedback is not None  # who scans looks along
        self.view = self.shown.view = self.viewer

    def on_begin(self, session: Session) -> None:
        if self.source.live:
            self.out.print(disk_outlook(self.job.folder, self.limit, self.preset))
        if self.viewer and self.earlier.partial is not None:
            show_result(self.viewer, read_result(self.job.folder), lambda _: None)
        self.shown.back_end = session.back_end
        on_gpu, stages = session.engine.device.startswith("cuda"), 1 + len(self.plan.stages)
        self.shown.expect(session.source.frame_hint, on_gpu=on_gpu, stages=stages)

    def listeners(self, session: Session, stack: ExitStack) -> "list[ResultListener]":
        """The viewer, with stereo in front of it, or less of each frame; guidance."""
        listeners: list[ResultListener] = []
        has_back_end, viewer = session.back_end is not None, self.viewer
        if viewer is None:
            pass
        elif self.source.feedback is not None and not has_back_end:
            from stream_recon.app.run.keyframe_points import UPDATE_SHARE, KeyframePoints

            viewer.update_share = UPDATE_SHARE
            listeners.append(KeyframePoints(viewer))
        elif self.job.options.dense_side is not None and has_back_end:
            from stream_recon.app.run.live_dense import LiveDense, StereoProcess

            device = "cuda" if session.engine.device.startswith("cuda") else "cpu"
            listeners.append(stack.enter_context(closing(LiveDense(viewer, StereoProcess(device)))))
        else:
            listeners.append(viewer)
        if self.source.feedback is not None:
            from stream_recon.app.run.guidance import Guidance

            stack.callback(self.source.feedback.tell, {"type": "session.done"})
            listeners.append(Guidance.of(self.source.feedback))
        return listeners

    def on_summary(self, summary: RunSummary) -> None:
        self.shown.stop()
        self.shown.back_end = None
        print_summary(summary, self.out, self.err)

    def on_frames_end(self) -> None:
        if self.viewer is None:
            return
        if self.earlier.record is not None:
            show_result(self.viewer, read_result(self.job.folder), lambda _: None)
        self.viewer.finish()

    def on_stopped(self) -> None:
        if not self.source.live:
            print_continuation(self.job, self.out)

    def on_complete(self, *, is_new: bool) -> None:
        if is_new:
            self.on_finished(self.job.folder)
            self.out.print(f"done in {clock(time.monotonic() - self.begin)}")
        print_ending(self.job.folder, self.out)

    def on_end(self) -> None:
        self.shown.stop()
        if self.viewer and self.choice:
            self.choice.wait(self.viewer, self.job.folder, self.out)

    def follow(self, job: RunJob) -> "TerminalRun":
        choice = dataclasses.replace(self.choice, port=self.viewer.port) if self.viewer and self.choice else self.choice
        return TerminalRun(job, choice, self.terminal, self.on_finished)
