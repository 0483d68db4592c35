"""What follows the last frame of a reconstruction."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from stream_recon.app.cli.console import DONE, INTERRUPTED, result_consoles
from stream_recon.app.cli.ending import print_ending
from stream_recon.app.cli.progress import TerminalObserver
from stream_recon.app.cli.reconstruct_job import ReconstructJob
from stream_recon.app.cli.view import result_name, show_result
from stream_recon.app.result.cameras import revision_since_causal
from stream_recon.app.result.run_record import RunSummary, evidence_record
from stream_recon.app.result.verdict import judge
from stream_recon.app.sources.source import Source
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.stage import StageContext

if TYPE_CHECKING:
    from stream_recon.app.cli.reconstruct_run import SourceRun


def finish(run: "SourceRun", summary: RunSummary, observer: TerminalObserver) -> bool:
    """Run the stages after all frames; False where Ctrl-C ended the run or a stage. Raises StreamReconError."""
    if summary.interrupted:
        if summary.verdict and summary.frames_reconstructed:
            observer.on_verdict(judge(evidence_record(summary)))
        return False
    if run.viewer:
        run.viewer.finish()
    if not summary.frames_reconstructed:
        return True
    # A live source leaves only what the result holds.
    open_again = None if run.source.live else run.open_again
    context = StageContext(run.folder, open_again, observer, view=run.viewer, max_bytes=run.limit.max_bytes)
    context.listeners = [run.publisher] if run.publisher else []
    finished = _run_stages(run.job, run.plan, context)
    if run.publisher and (run.job.options.scale_from or run.job.options.onto):
        run.publisher.revise(revision_since_causal(context.result.cameras))
    return finished


def finish_later(job: ReconstructJob, folder: Path, plan: RunPlan, open_again: Callable[[], Source]) -> int:
    """Run the stages that a result with all its frames lacks; returns the exit code. Raises StreamReconError."""
    out, err = result_consoles()
    out.print(f"result: {folder}")
    context = StageContext(folder, open_again)
    if not plan.remaining(context):
        out.print("it is complete: nothing is left to do")
        print_ending(folder, out)
        return DONE
    with ExitStack() as stack:
        result = context.result
        viewer = stack.enter_context(job.view.open(result.points, out, err)) if job.view else None
        out.print("resumed after all its frames")
        if viewer:
            viewer.name(result_name(folder))
            show_result(viewer, result, lambda _: None)
            viewer.finish()
        with TerminalObserver(out, err, viewer) as observer:
            context.observer, context.view = observer, viewer
            finished = _run_stages(job, plan, context)
        if viewer and job.view:
            job.view.wait(viewer, folder, out)
    return DONE if finished else INTERRUPTED


def _run_stages(job: ReconstructJob, plan: RunPlan, context: StageContext) -> bool:
    end = run_stages(plan, context)
    if end.is_complete:
        end.check()
        job.on_finished(context.folder)
        print_ending(context.folder, result_consoles()[0])
    return end.is_complete
