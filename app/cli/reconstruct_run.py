"""Run of the command ``reconstruct``: all parts of a run put together, and the steps that follow it."""

import dataclasses
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from stream_recon.app.cli import options as shared
from stream_recon.app.cli.console import DONE, INTERRUPTED, result_consoles
from stream_recon.app.cli.ending import print_ending
from stream_recon.app.cli.publish import publishing
from stream_recon.app.cli.scan_load import RunLoad, load_of_rest, load_of_scan
from stream_recon.app.cli.splat import require_splats, splat_options, train_folder
from stream_recon.app.cli.view import ViewerChoice, result_name, show_result
from stream_recon.configs.errors import ConfigError, InputError

if TYPE_CHECKING:
    from stream_recon.app.engine.model_choice import ModelChoice
    from stream_recon.app.pipeline.finish import Finisher, FinishSteps
    from stream_recon.app.pipeline.listeners import ResultListener
    from stream_recon.app.sources.frame_choice import FrameChoice
    from stream_recon.app.sources.source import Source
    from stream_recon.app.viewer.viewer import Viewer

MAX_NAME = 80
"""Characters of the name of a default result folder; a source's name may be longer than file systems allow."""


def at_terminal() -> bool:
    """Whether a user can press Ctrl-C. Service managers close stdin."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


@dataclasses.dataclass(frozen=True)
class ReconstructJob:
    """A reconstruction as given on the command line."""

    spec: str
    """The source; see `open_source`."""
    frames: "FrameChoice"
    model: "ModelChoice"
    view: ViewerChoice | None = None
    output: Path | None = None
    overwrite: bool = False
    resume: bool = False
    keep_depth: Literal["all", "keyframes", "none"] = "all"
    max_disk: str | None = None
    mesh: bool = True
    splat: bool = False
    """Gaussian splats are trained at the end."""
    keep_map: bool = True
    dense_side: int | None = shared.DENSE_SIDE
    """Longer side of dense depth maps; None: none are made."""
    mapping: Literal["full", "stream", "off"] = "full"
    mask_sky: bool = False
    scale_from: str | None = None
    onto: Path | None = None
    reconnect: float = 120.0
    publish: tuple[str, ...] = ()
    """Addresses, see `stream_recon.app.publishing.address`."""
    publish_token: bool = True
    """Other machines need the token of a printed address."""
    on_finished: Callable[[Path], None] = lambda folder: None
    """Called with the complete result, before the viewer stays open."""

    @property
    def recorded(self) -> dict[str, Any]:
        """Options that change the result, for ``run.json``."""
        from stream_recon.app.sources.source import without_password

        # Options added after 0.1 are recorded only where they are used, so that results of 0.1 can be resumed.
        frames = dataclasses.asdict(self.frames)
        for name in ("masks", "topic"):
            if frames[name] is None:
                del frames[name]
        sky = {"mask_sky": True} if self.mask_sky else {}
        return {"source": without_password(self.spec), **frames, "keyframes": self.model.keyframes, **sky}


def reconstruct_source(job: ReconstructJob) -> int:
    """Reconstruct a source; returns the exit code. Raises StreamReconError.

    All checks that need no frame come before anything is written.
    """
    out, err = result_consoles()
    if _may_exist(job.spec) and not job.resume:
        # Imports and weights take seconds: a user should see at once that something happens.
        out.print("loading the network")
    from stream_recon.app.cli.progress import TerminalObserver, disk_outlook, print_summary
    from stream_recon.app.datasets.source_identity import check_source
    from stream_recon.app.pipeline.dense import DenseOptions
    from stream_recon.app.pipeline.finish import Finisher, FinishSteps
    from stream_recon.app.pipeline.guidance import Guidance
    from stream_recon.app.pipeline.process import memory_errors
    from stream_recon.app.pipeline.session import EarlierRun, Output, RunOptions, Session
    from stream_recon.app.pipeline.verdict import judge
    from stream_recon.app.result.cameras import revision_since_causal
    from stream_recon.app.result.disk_limit import DiskLimit
    from stream_recon.app.result.folder import read_result
    from stream_recon.app.result.lock import FolderLock
    from stream_recon.app.result.resume import check_choice
    from stream_recon.app.result.run_record import RunInfo, evidence_record
    from stream_recon.app.sources.scan_folder import is_scan
    from stream_recon.app.sources.source import open_source

    if job.splat:
        require_splats()
    preset = job.model.load_preset()
    dense = None if job.dense_side is None else DenseOptions(job.dense_side, job.model.device)
    if job.onto is not None and not job.keep_map:
        raise ConfigError("--onto needs the map: leave out --no-map")
    steps = FinishSteps.parse(
        refine=job.mapping == "full",
        scale_from=job.scale_from,
        mesh=job.mesh,
        onto=job.onto,
        dense=dense if job.mapping == "full" else None,
    )
    limit = DiskLimit.parse(job.keep_depth, job.max_disk)
    folder = job.output or default_output(job.spec, job.overwrite or job.resume)
    earlier = EarlierRun.find(folder, resume=job.resume, overwrite=job.overwrite)
    open_again: Callable[[], Source] = partial(open_source, job.spec, job.frames)
    with ExitStack() as stack:
        source = stack.enter_context(open_source(job.spec, job.frames, reconnect=job.reconnect))
        # A recording or photographs may contain their camera.
        job = dataclasses.replace(job, frames=dataclasses.replace(job.frames, camera=source.camera))
        if (earlier.record or earlier.partial) and source.live:
            raise ConfigError("--resume needs a file: a camera or stream cannot be read again")
        if earlier.record is not None:
            check_choice(folder, earlier.record, source.name, job.recorded)
            source.close()
            return _finish_later(folder, open_again, steps.remaining(earlier.record, folder), job)
        if earlier.partial is not None:
            check_source(folder, earlier.partial.cameras, open_again)
        viewer = stack.enter_context(job.view.open(preset.points, out, err)) if job.view else None
        if viewer:
            viewer.name(result_name(folder))
            viewer.state.follows = source.feedback is not None  # who scans looks along
        published = publishing(job.publish, source, preset.points, job.publish_token, out)
        publisher = stack.enter_context(published)
        lock = stack.enter_context(FolderLock(folder))
        begin = time.monotonic()
        load = RunLoad(job.model, job.mapping)
        if source.feedback is not None:
            load = load_of_scan(load)
        elif earlier.partial is not None and is_scan(job.spec):
            load = load_of_rest(load, earlier.partial)
        with memory_errors():
            engine = load.model.load()
        out.print(f"network: {engine.precision} on {engine.device}, loaded in {time.monotonic() - begin:.1f} s")
        info = RunInfo.from_engine(engine, source.name, job.recorded)
        output = Output(folder, info, job.overwrite or job.resume, lock, earlier.partial, limit)
        known = job.frames.camera is not None
        options = RunOptions(load.mapping, job.mask_sky, known, process_allowed=True, onto=job.onto)
        session = stack.enter_context(Session(engine, source, open_again, options, output))
        out.print(f"result: {folder}")
        if source.live:
            out.print(disk_outlook(folder, limit, preset))
        if earlier.partial is not None:
            out.print(f"resumed after frame {earlier.partial.last.index}, {len(earlier.partial.cameras)} frames")
            if viewer:
                show_result(viewer, read_result(folder), lambda _: None)
        with TerminalObserver(out, err, viewer) as observer:
            observer.back_end = session.back_end
            observer.expect(session.source.frame_hint, on_gpu=engine.device.startswith("cuda"))
            guidance = [] if source.feedback is None else [Guidance.of(source.feedback)]
            others = [each for each in (publisher, *guidance) if each is not None]
            is_live_dense = dense is not None and session.back_end is not None
            is_light = source.feedback is not None and session.back_end is None
            with _listeners(viewer, engine.device, is_live_dense, is_light) as listeners:
                summary = session.reconstruct([*listeners, *others], observer)
            observer.stop()
            print_summary(summary, out, err)
            session.source.close()
            finished = not summary.interrupted
            if finished:
                lock.release()  # each step takes it again
                if viewer:
                    viewer.finish()
                if summary.frames_reconstructed:
                    # A live source leaves only what the result holds.
                    again = None if source.live else open_again
                    others = [publisher] if publisher else []
                    finisher = Finisher(
                        folder, again, observer, others, viewer, max_bytes=limit.max_bytes, keep_map=job.keep_map
                    )
                    finished = _finish(finisher, steps, job, viewer)
                    if publisher and (steps.scale or steps.onto):
                        publisher.revise(revision_since_causal(read_result(folder).cameras))
            elif summary.verdict and summary.frames_reconstructed:
                observer.on_verdict(judge(evidence_record(summary)))
            if finished and summary.frames_reconstructed:
                print_ending(folder, out)
        if not summary.interrupted and viewer and job.view:
            job.view.wait(viewer, folder, out)
    if summary.source_lost:
        verdict = f" (verdict: {summary.verdict['level']})" if summary.verdict else ""
        raise InputError(f"{summary.warnings[-1]}; what was reconstructed is in {folder}{verdict}")
    return DONE if finished else INTERRUPTED


@contextmanager
def _listeners(
    viewer: "Viewer | None", device: str, is_live_dense: bool, is_light: bool
) -> Iterator["list[ResultListener]"]:
    """Who gets the results of a run: the viewer, with stereo in front of it, or less of each frame."""
    if viewer is not None and is_light:
        from stream_recon.app.pipeline.keyframe_points import KeyframePoints

        yield [KeyframePoints(viewer)]
        return
    if viewer is None or not is_live_dense:
        yield [] if viewer is None else [viewer]
        return
    from stream_recon.app.pipeline.live_dense import LiveDense, StereoProcess

    with closing(LiveDense(viewer, StereoProcess("cpu" if device == "cpu" else "cuda"))) as live:
        yield [live]


def _finish(finisher: "Finisher", steps: "FinishSteps", job: ReconstructJob, viewer: "Viewer | None") -> bool:
    """Do the last steps; False where Ctrl-C ended one."""
    finished = finisher.run(steps)
    if finished and job.splat:
        from stream_recon.app.result.splats import CHECKPOINT_NAME

        options = splat_options(resume=job.resume and (finisher.folder / CHECKPOINT_NAME).exists())
        finished = train_folder(finisher.folder, options, viewer).is_complete
    if finished:
        job.on_finished(finisher.folder)
    return finished


def _finish_later(folder: Path, open_again: "Callable[[], Source]", steps: "FinishSteps", job: ReconstructJob) -> int:
    """Do the remaining steps of a result that has all its frames; returns the exit code."""
    from stream_recon.app.cli.progress import TerminalObserver
    from stream_recon.app.pipeline.finish import Finisher
    from stream_recon.app.result.folder import read_result
    from stream_recon.app.result.splats import current_splats

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
            finished = _finish(finisher, steps, job, viewer)
            if finished:
                print_ending(folder, out)
        if viewer and job.view:
            job.view.wait(viewer, folder, out)
    return DONE if finished else INTERRUPTED


def default_output(spec: str, overwrite: bool) -> Path:
    """``NAME-recon`` in the current folder; where it exists, the next free number unless ``overwrite`` is set."""
    from stream_recon.app.sources.source import ADDRESS

    if ADDRESS.match(spec):
        name = urlsplit(spec).hostname or "stream"
    elif spec.isdecimal() and not Path(spec).exists():
        name = f"camera-{spec}"
    else:
        path = Path(spec).expanduser().resolve()
        name = path.name if _is_folder(path) else path.stem
    base = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:MAX_NAME] or "stream"
    folder, number = Path(f"{base}-recon"), 1
    while folder.exists() and not overwrite:
        number += 1
        folder = Path(f"{base}-recon-{number}")
    return folder


def _may_exist(spec: str) -> bool:
    """Whether a source is worth loading the network for; found out without imports."""
    with suppress(OSError, RuntimeError):  # such as a name that is too long, or an unknown user
        return "://" in spec or spec.isdecimal() or Path(spec).expanduser().exists()
    return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # such as a name that is too long
        return False
