"""Run of the command ``reconstruct``: prepare, open, run, finish."""

import dataclasses
import time
from contextlib import ExitStack, closing
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from stream_recon.app.cli.console import DONE, INTERRUPTED
from stream_recon.app.cli.progress import TerminalObserver, disk_outlook, print_summary
from stream_recon.app.cli.publish import publishing
from stream_recon.app.cli.reconstruct_finish import end_code, finish, finish_later
from stream_recon.app.cli.reconstruct_job import ReconstructJob, default_output
from stream_recon.app.cli.scan_load import UPDATE_SHARE, begins_again, run_load
from stream_recon.app.cli.view import result_name, show_result
from stream_recon.app.core.process import memory_errors
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.resume import check_choice
from stream_recon.app.result.run_record import RunInfo, RunSummary
from stream_recon.app.run.session import EarlierRun, Output, Session
from stream_recon.app.sources.source import open_source, without_password
from stream_recon.app.stages.chain import RunPlan
from stream_recon.configs.errors import ConfigError, SourceLostError

if TYPE_CHECKING:
    from stream_recon.app.core.views import ResultListener
    from stream_recon.app.viewer.viewer import Viewer


def reconstruct_source(job: ReconstructJob) -> int:
    """Reconstruct a source; returns the exit code. Raises StreamReconError.

    All checks that need no frame come before anything is written.
    """
    following: ReconstructJob | None = job
    while following is not None:
        with SourceRun(following) as run:
            code = run.run()
            following = run.following
    return code


class SourceRun(ExitStack):
    """One run over a source, from its options to its exit code. Leaving the block closes what it opened."""

    def __init__(self, job: ReconstructJob) -> None:
        super().__init__()
        self.job = job
        self.out, self.err = job.terminal.consoles()
        self.begin = time.monotonic()
        self.viewer: Viewer | None = None
        self.following: ReconstructJob | None = None
        """The run that has to follow this one."""

    def run(self) -> int:
        """All of it; returns the exit code. Raises StreamReconError."""
        self._prepare()
        self._open()
        if self.earlier.record is not None:
            return finish_later(self.job, self.folder, self.plan, self.open_again)
        self._load()
        with TerminalObserver(self.out, self.err, self.viewer, self.job.terminal) as observer:
            summary = self._reconstruct(observer)
            is_finished = not summary.interrupted
            if is_finished and self.is_lighter and summary.frames_reconstructed:
                self._follow()
                return DONE
            if is_finished:
                self.lock.release()  # the stages take it again
            is_finished = finish(self, summary, observer)
        if not summary.interrupted and self.viewer and self.job.view:
            self.job.view.wait(self.viewer, self.folder, self.out)
        if summary.source_lost:
            verdict = f" (verdict: {summary.verdict['level']})" if summary.verdict else ""
            raise SourceLostError(f"{summary.warnings[-1]}; what was reconstructed is in {self.folder}{verdict}")
        return end_code(self.job, self.folder) if is_finished else INTERRUPTED

    def _prepare(self) -> None:
        """Check the options, and find what is in the result folder."""
        job = self.job
        self.plan = RunPlan.of(job.options)
        self.plan.check()
        self.preset = job.options.model.load_preset()
        self.limit = job.options.disk_limit
        self.folder: Path = job.output or default_output(job.spec, job.overwrite or job.resume)
        self.earlier = EarlierRun.find(self.folder, resume=job.resume, overwrite=job.overwrite)

    def _open(self) -> None:
        """Open the source, and check that it is the one of an earlier run."""
        from stream_recon.app.datasets.source_identity import check_source

        options = self.job.options
        self.open_again = partial(open_source, self.job.spec, options.frames)
        self.source = self.enter_context(open_source(self.job.spec, options.frames, reconnect=options.reconnect))
        # A recording or photographs may contain their camera.
        frames = dataclasses.replace(options.frames, camera=self.source.camera)
        self.job = dataclasses.replace(self.job, options=dataclasses.replace(options, frames=frames))
        if begins_again(self.job, self.source, self.earlier):
            self.job = dataclasses.replace(self.job, resume=False, overwrite=True)
            self.earlier = EarlierRun()
        earlier = self.earlier
        if (earlier.record or earlier.partial) and self.source.live:
            raise ConfigError("--resume needs a file: a camera or stream cannot be read again")
        self.recorded = self.job.options.recorded(without_password(self.job.spec))
        if earlier.record is not None:
            check_choice(self.folder, earlier.record, self.source.name, self.recorded)
            self.source.close()
        elif earlier.partial is not None:
            check_source(self.folder, earlier.partial.cameras, self.open_again)

    def _load(self) -> None:
        """Open viewer, publishers and folder, and load the network."""
        job, source = self.job, self.source
        if job.view:
            self.viewer = self.enter_context(job.view.open(self.preset.points, self.out, self.err))
            self.viewer.name(result_name(self.folder))
            self.viewer.state.follows = source.feedback is not None  # who scans looks along
        self.publisher = self.enter_context(publishing(job.options, source, self.preset.points, self.out))
        self.lock = self.enter_context(FolderLock(self.folder))
        begin = time.monotonic()
        load = run_load(job.options, source)
        self.is_lighter = load.is_lighter
        if load.options.mapping != "off":
            # Beside the network's weights, which are read and packed without Python.
            Thread(target=import_module, args=("stream_recon.app.slam.online.back_end",), daemon=True).start()
        with memory_errors():
            engine = load.options.model.load()
        if load.threads is not None:
            engine.threads = min(engine.threads, load.threads)
        self.out.print(f"network: {engine.precision} on {engine.device}, loaded in {time.monotonic() - begin:.1f} s")
        self.engine = engine
        info = RunInfo.from_engine(engine, source.name, self.recorded)
        output = Output(self.folder, info, job.overwrite or job.resume, self.lock, self.earlier.partial, self.limit)
        session = Session(engine, source, self.open_again, load.options, output, process_allowed=True)
        self.session = self.enter_context(session)

    def _reconstruct(self, observer: TerminalObserver) -> RunSummary:
        """Run all frames, or those that an interrupted run has left."""
        self.out.print(f"result: {self.folder}")
        if self.source.live:
            self.out.print(disk_outlook(self.folder, self.limit, self.preset))
        partial_result = self.earlier.partial
        if partial_result is not None:
            count = len(partial_result.cameras)
            self.out.print(f"resumed after frame {partial_result.last.index}, {count} frames")
            if self.viewer:
                show_result(self.viewer, read_result(self.folder), lambda _: None)
        observer.back_end = self.session.back_end
        on_gpu, stages = self.engine.device.startswith("cuda"), 1 + len(self.plan.stages)
        observer.expect(self.session.source.frame_hint, on_gpu=on_gpu, stages=stages)
        with ExitStack() as stack:
            summary = self.session.reconstruct(self._listeners(stack), observer)
        observer.stop()
        print_summary(summary, self.out, self.err)
        self.session.source.close()
        return summary

    def _listeners(self, stack: ExitStack) -> "list[ResultListener]":
        """Who gets the results: the viewer, with stereo in front of it, or less of each frame; publishers; guidance."""
        listeners: list[ResultListener] = []
        has_back_end, viewer = self.session.back_end is not None, self.viewer
        if viewer is None:
            pass
        elif self.source.feedback is not None and not has_back_end:
            from stream_recon.app.run.keyframe_points import KeyframePoints

            viewer.update_share = UPDATE_SHARE
            listeners.append(KeyframePoints(viewer))
        elif self.job.options.dense_side is not None and has_back_end:
            from stream_recon.app.run.live_dense import LiveDense, StereoProcess

            device = "cpu" if self.engine.device == "cpu" else "cuda"
            listeners.append(stack.enter_context(closing(LiveDense(viewer, StereoProcess(device)))))
        else:
            listeners.append(viewer)
        if self.publisher is not None:
            listeners.append(self.publisher)
        if self.source.feedback is not None:
            from stream_recon.app.run.guidance import Guidance

            listeners.append(Guidance.of(self.source.feedback))
        return listeners

    def _follow(self) -> None:
        """Let the same source be reconstructed once more, in full size."""
        self.out.print("all frames are reconstructed once more, in full size")
        job, options = self.job, dataclasses.replace(self.job.options, publish=())
        view = dataclasses.replace(job.view, port=self.viewer.port) if self.viewer and job.view else job.view
        self.following = dataclasses.replace(job, options=options, resume=False, overwrite=True, view=view)
