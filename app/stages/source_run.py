"""A source reconstructed into a result folder, with the stages that follow: what the command and Python do alike."""

import dataclasses
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from stream_recon.app.core.cancel import Cancel
from stream_recon.app.core.views import ResultListener, RunView
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.run_record import VIEWS, RunInfo, RunSummary, evidence_record
from stream_recon.app.result.verdict import judge
from stream_recon.app.run.earlier import EarlierRun
from stream_recon.app.run.listeners import RunObserver
from stream_recon.app.run.options import RunJob
from stream_recon.app.run.publish import publishing
from stream_recon.app.run.scan_load import begins_again, run_load
from stream_recon.app.run.session import Output, Session
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import Source, open_source
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.stage import StageContext
from stream_recon.configs.errors import SourceLostError


class SourceRun(ExitStack):
    """One run over a source and the stages that follow. Leaving the block closes what it opened.

    Who shows it derives from it: the public methods after `run` are called in their order, and do nothing here.
    """

    def __init__(
        self, job: RunJob, observer: RunObserver, cancel: Cancel | None = None, listeners: Sequence[ResultListener] = ()
    ) -> None:
        """
        Args:
            cancel: a request ends the run as Ctrl-C does. It ends a live recording, whose stages follow.
            listeners: get each result and each revision, in another thread.
        """
        super().__init__()
        self.job, self.observer, self.cancel = job, observer, cancel or Cancel()
        self.view: RunView | None = None
        self.following: RunJob | None = None
        """The run that has to follow this one."""
        self._listeners = list(listeners)

    def run(self) -> bool:
        """All of it; returns False where it was stopped: finished frames are in the folder, to be resumed.

        All checks that need no frame come before anything is written. Raises StreamReconError.
        """
        self.plan = RunPlan.of(self.job.options)
        self.plan.check()
        self.preset = self.job.options.model.load_preset()
        self.limit = self.job.options.disk_limit
        self.earlier = EarlierRun.find(self.job.folder, resume=self.job.resume, overwrite=self.job.overwrite)
        self._open()
        if self.earlier.record is not None:
            return self._finish_earlier()
        self.on_open()
        publisher = publishing(self.job.options, self.source, self.preset.points, self.observer.on_message)
        if (opened := self.enter_context(publisher)) is not None:
            self._listeners.append(opened)
        lock = self.enter_context(FolderLock(self.job.folder))
        summary = self._reconstruct(lock)
        if summary.source_lost:
            verdict = f" (verdict: {summary.verdict['level']})" if summary.verdict else ""
            raise SourceLostError(f"{summary.warnings[-1]}; what was reconstructed is in {self.job.folder}{verdict}")
        if summary.interrupted:
            self.on_stopped()
        if summary.interrupted or self.following is not None:
            return not summary.interrupted
        lock.release()  # the stages take it again
        return self._finish(has_frames=summary.frames_reconstructed > 0)

    def open(self, frames: FrameChoice, reconnect: float) -> Source:
        """The source at its first frame. Raises StreamReconError."""
        return open_source(self.job.spec, frames, reconnect=reconnect)

    @property
    def opens_again(self) -> bool:
        """Whether the stages may open it again; else they have only what the result holds."""
        return not self.source.live

    def on_open(self) -> None:
        """The source is open, and the network is not loaded."""

    def on_begin(self, session: Session) -> None:
        """The first frame is next."""

    def listeners(self, session: Session, stack: ExitStack) -> list[ResultListener]:
        """Who gets the results, besides the listeners that were given; ``stack`` is closed after the last frame."""
        return []

    def on_summary(self, summary: RunSummary) -> None:
        """The last frame is done."""

    def on_frames_end(self) -> None:
        """The result has all its frames, and its stages follow."""

    def on_stopped(self) -> None:
        """Ctrl-C has ended the run or a stage."""

    def on_complete(self, *, is_new: bool) -> None:
        """All stages are done; ``is_new``: they were not before the run."""

    def on_end(self) -> None:
        """Nothing follows."""

    def follow(self, job: RunJob) -> "SourceRun":
        """The run of ``following``. Listeners, which have had their results, get none of it."""
        return SourceRun(job, self.observer, self.cancel)

    def _open(self) -> None:
        """Open the source, and check that it is the one of an earlier run."""
        options = self.job.options
        self._open_again = partial(self.open, options.frames, options.reconnect)
        self.source: Source = self.enter_context(self._open_again())
        # A recording or photographs may contain their camera.
        frames = dataclasses.replace(options.frames, camera=self.source.camera)
        self.job = dataclasses.replace(self.job, options=dataclasses.replace(options, frames=frames))
        if begins_again(self.job, self.source, self.earlier):
            self.job = dataclasses.replace(self.job, resume=False, overwrite=True)
            self.earlier = EarlierRun()
        self._recorded = self.job.options.recorded(self.job.spec)
        if (rig := self.source.rig) is not None:
            self.job.options.check_rig(rig, self.source.name)
            self._recorded[VIEWS] = rig.to_json()
            self.observer.on_message(f"{self.source.name}: read as {len(rig)} views ({', '.join(rig.names)}), in turn")
        self.earlier.check(self.job.folder, self.source, self._recorded, self._open_again)

    def _reconstruct(self, lock: FolderLock) -> RunSummary:
        """Run all frames, or those that an interrupted run has left."""
        job, partial_result = self.job, self.earlier.partial
        load = run_load(job.options, self.source)
        begin = time.monotonic()
        engine = load.load_engine()
        seconds = time.monotonic() - begin
        self.observer.on_message(f"network: {engine.precision} on {engine.device}, loaded in {seconds:.1f} s")
        info = RunInfo.from_engine(engine, self.source.name, self._recorded)
        output = Output(job.folder, info, job.overwrite or job.resume, lock, partial_result, self.limit)
        with Session(engine, self.source, self._open_again, load.options, output) as session:
            self.observer.on_message(f"result: {job.folder}")
            if partial_result is not None:
                count = len(partial_result.cameras)
                self.observer.on_message(f"resumed after frame {partial_result.last.index}, {count} frames")
            if session.outlook is not None:
                self.observer.on_message(session.outlook)
            self.on_begin(session)
            with ExitStack() as stack:
                listeners = [*self.listeners(session, stack), *self._listeners]
                summary = session.reconstruct(listeners, self.observer, cancel=self.cancel)
        self.source.close()
        self.on_summary(summary)
        if summary.interrupted and summary.verdict and summary.frames_reconstructed:
            self.observer.on_verdict(judge(evidence_record(summary)))
        elif not summary.interrupted and self.source.live:
            self.cancel.requested = False  # it has ended the recording
        if load.is_lighter and not summary.interrupted and summary.frames_reconstructed:
            self.observer.on_message("all frames are reconstructed once more, in full size")
            options = dataclasses.replace(job.options, publish=())
            self.following = dataclasses.replace(job, options=options, resume=False, overwrite=True)
        return summary

    def _finish_earlier(self) -> bool:
        """Run the stages that a result with all its frames lacks; returns False where they were stopped."""
        self.source.close()
        context = StageContext(self.job.folder, self._open_again)
        self.observer.on_message(f"result: {self.job.folder}")
        if not self.plan.remaining(context):
            self.observer.on_message("it is complete: nothing is left to do")
            self.on_complete(is_new=False)
            return True
        self.on_open()
        self.observer.on_message("resumed after all its frames")
        return self._finish()

    def _finish(self, *, has_frames: bool = True) -> bool:
        """Run the stages; returns False where they were stopped."""
        self.on_frames_end()
        is_complete = not has_frames or self._run_stages()
        self.on_end()
        return is_complete

    def _run_stages(self) -> bool:
        open_again = self._open_again if self.opens_again else None
        context = StageContext(self.job.folder, open_again, self.observer, self._listeners, self.view, self.cancel)
        context.max_bytes, context.follows_frames = self.limit.max_bytes, self.earlier.record is None
        end = run_stages(self.plan, context)
        if end.is_complete:
            end.check()
            self.on_complete(is_new=True)
        else:
            self.on_stopped()
        options = self.job.options
        if self._listeners and any((options.scale_from, options.onto, options.poses)):
            revision = context.result.revision_since_causal
            for listener in self._listeners:
                listener.revise(revision)
        return end.is_complete


def reconstruct_source(run: SourceRun) -> bool:
    """Carry out a run, and the one that has to follow it; returns False where it was stopped.

    Raises StreamReconError; see `SourceRun.run`.
    """
    while True:
        with run:
            is_complete = run.run()
        if run.following is None:
            return is_complete
        run = run.follow(run.following)
