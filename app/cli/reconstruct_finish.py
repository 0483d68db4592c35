"""What follows the last frame of a reconstruction."""

import json
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from stream_recon.app.cli.console import DONE, FAILED, INTERRUPTED
from stream_recon.app.cli.ending import print_ending
from stream_recon.app.cli.progress import TerminalObserver
from stream_recon.app.cli.reconstruct_job import ReconstructJob
from stream_recon.app.cli.view import result_name, show_result
from stream_recon.app.result.cameras import revision_since_causal
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RUN_NAME, RunSummary, evidence_record
from stream_recon.app.result.verdict import LEVELS, judge, recorded_verdict
from stream_recon.app.run.health import clock
from stream_recon.app.sources.source import Source
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.stage import StageContext

if TYPE_CHECKING:
    from rich.console import Console

    from stream_recon.app.cli.reconstruct_run import SourceRun


def finish(run: "SourceRun", summary: RunSummary, observer: TerminalObserver) -> bool:
    """Run the stages after all frames; False where Ctrl-C ended the run or a stage. Raises StreamReconError."""
    if summary.interrupted:
        if summary.verdict and summary.frames_reconstructed:
            observer.on_verdict(judge(evidence_record(summary)))
        if not run.source.live:
            print_continuation(run.folder, run.out)
        return False
    if run.viewer:
        run.viewer.finish()
    if not summary.frames_reconstructed:
        return True
    # A live source leaves only what the result holds.
    open_again = None if run.source.live else run.open_again
    context = StageContext(run.folder, open_again, observer, view=run.viewer, max_bytes=run.limit.max_bytes)
    context.listeners, context.follows_frames = [run.publisher] if run.publisher else [], True
    is_complete = _run_stages(run.job, run.plan, context, run.out, run.begin)
    if not is_complete and not run.source.live:
        print_continuation(run.folder, run.out)
    if run.publisher and (run.job.options.scale_from or run.job.options.onto):
        run.publisher.revise(revision_since_causal(context.result.cameras))
    return is_complete


def finish_later(job: ReconstructJob, folder: Path, plan: RunPlan, open_again: Callable[[], Source]) -> int:
    """Run the stages that a result with all its frames lacks; returns the exit code. Raises StreamReconError."""
    out, err = job.terminal.consoles()
    begin = time.monotonic()
    out.print(f"result: {folder}")
    context = StageContext(folder, open_again)
    if not plan.remaining(context):
        out.print("it is complete: nothing is left to do")
        print_ending(folder, out)
        return end_code(job, folder)
    with ExitStack() as stack:
        result = context.result
        viewer = stack.enter_context(job.view.open(result.points, out, err)) if job.view else None
        out.print("resumed after all its frames")
        if viewer:
            viewer.name(result_name(folder))
            show_result(viewer, result, lambda _: None)
            viewer.finish()
        with TerminalObserver(out, err, viewer, job.terminal) as observer:
            context.observer, context.view = observer, viewer
            is_complete = _run_stages(job, plan, context, out, begin)
        if not is_complete:
            print_continuation(folder, out)
        if viewer and job.view:
            job.view.wait(viewer, folder, out)
    return end_code(job, folder) if is_complete else INTERRUPTED


def end_code(job: ReconstructJob, folder: Path) -> int:
    """Exit code of a complete result, after its JSON object is printed where the user wants it. Raises OutputError."""
    if not (folder / RUN_NAME).exists():
        return DONE
    result = read_result(folder)
    verdict = recorded_verdict(result.run)
    if job.terminal.as_json:
        entry = {"result": str(folder), "frames": len(result), "verdict": verdict and verdict.to_json()}
        print(json.dumps(entry), flush=True)
    if job.fail_on is None or verdict is None:
        return DONE
    return FAILED if LEVELS.index(verdict.level) >= LEVELS.index(job.fail_on) else DONE


def print_continuation(folder: Path, out: "Console") -> None:
    """Say by which command an interrupted run goes on."""
    arguments = [each for each in sys.argv[1:] if each not in ("--overwrite", "--resume")]
    has_output = any(each == "-o" or each.startswith("--output") for each in arguments)
    output = [] if has_output else ["-o", str(folder)]
    out.print(f"to continue: {shlex.join(['stream-recon', *arguments, *output, '--resume'])}")


def _run_stages(job: ReconstructJob, plan: RunPlan, context: StageContext, out: "Console", begin: float) -> bool:
    end = run_stages(plan, context)
    if end.is_complete:
        end.check()
        job.on_finished(context.folder)
        out.print(f"done in {clock(time.monotonic() - begin)}")
        print_ending(context.folder, out)
    return end.is_complete
