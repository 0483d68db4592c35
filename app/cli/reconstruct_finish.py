"""What follows the last frame of a reconstruction, and who gets its results while it runs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stream_recon.app.cli.console import DONE, INTERRUPTED, result_consoles
from stream_recon.app.cli.ending import print_ending
from stream_recon.app.cli.reconstruct_job import ReconstructJob
from stream_recon.app.cli.splat import splat_options, train_folder
from stream_recon.app.cli.view import result_name, show_result

if TYPE_CHECKING:
    from stream_recon.app.run.listeners import ResultListener
    from stream_recon.app.sources.source import Source
    from stream_recon.app.stages.finish import Finisher, FinishSteps
    from stream_recon.app.viewer.viewer import Viewer


@contextmanager
def run_listeners(
    viewer: "Viewer | None", device: str, is_live_dense: bool, is_light: bool
) -> Iterator["list[ResultListener]"]:
    """Who gets the results of a run: the viewer, with stereo in front of it, or less of each frame."""
    if viewer is not None and is_light:
        from stream_recon.app.run.keyframe_points import KeyframePoints

        yield [KeyframePoints(viewer)]
        return
    if viewer is None or not is_live_dense:
        yield [] if viewer is None else [viewer]
        return
    from stream_recon.app.run.live_dense import LiveDense, StereoProcess

    with closing(LiveDense(viewer, StereoProcess("cpu" if device == "cpu" else "cuda"))) as live:
        yield [live]


def finish(finisher: "Finisher", steps: "FinishSteps", job: ReconstructJob, viewer: "Viewer | None") -> bool:
    """Do the last steps; False where Ctrl-C ended one."""
    finished = finisher.run(steps)
    if finished and job.splat:
        from stream_recon.app.result.splats import CHECKPOINT_NAME

        options = splat_options(resume=job.resume and (finisher.folder / CHECKPOINT_NAME).exists())
        finished = train_folder(finisher.folder, options, viewer).is_complete
    if finished:
        job.on_finished(finisher.folder)
    return finished


def finish_later(folder: Path, open_again: "Callable[[], Source]", steps: "FinishSteps", job: ReconstructJob) -> int:
    """Do the remaining steps of a result that has all its frames; returns the exit code."""
    from stream_recon.app.cli.progress import TerminalObserver
    from stream_recon.app.result.folder import read_result
    from stream_recon.app.result.splats import current_splats
    from stream_recon.app.stages.finish import Finisher

    out, err = result_consoles()
    out.print(f"result: {folder}")
    if not steps and not (job.splat and current_splats(read_result(folder)) is None):
        out.print("it is complete: nothing is left to do")
        print_ending(folder, out)
        return DONE
    with ExitStack() as stack:
        result = read_result(folder)
        viewer = stack.enter_context(job.view.open(result.points, out, err)) if job.view else None
        out.print("resumed after all its frames")
        if viewer:
            viewer.name(result_name(folder))
            show_result(viewer, result, lambda _: None)
            viewer.finish()
        with TerminalObserver(out, err, viewer) as observer:
            finisher = Finisher(folder, open_again, observer, page=viewer, keep_map=job.keep_map)
            finished = finish(finisher, steps, job, viewer)
            if finished:
                print_ending(folder, out)
        if viewer and job.view:
            job.view.wait(viewer, folder, out)
    return DONE if finished else INTERRUPTED
