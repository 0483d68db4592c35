"""Run of the command ``reconstruct``: all parts of a run put together."""

import dataclasses
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING

from stream_recon.app.cli.console import DONE, INTERRUPTED, result_consoles
from stream_recon.app.cli.ending import print_ending
from stream_recon.app.cli.publish import publishing
from stream_recon.app.cli.reconstruct_finish import finish, finish_later, run_listeners
from stream_recon.app.cli.reconstruct_job import ReconstructJob, default_output, may_exist
from stream_recon.app.cli.scan_load import UPDATE_SHARE, begins_again, run_load
from stream_recon.app.cli.splat import require_splats
from stream_recon.app.cli.view import result_name, show_result
from stream_recon.configs.errors import ConfigError, InputError

if TYPE_CHECKING:
    from stream_recon.app.sources.source import Source


def reconstruct_source(job: ReconstructJob) -> int:
    """Reconstruct a source; returns the exit code. Raises StreamReconError.

    All checks that need no frame come before anything is written.
    """
    done = _reconstruct(job)
    while isinstance(done, ReconstructJob):
        done = _reconstruct(done)
    return done


def _reconstruct(job: ReconstructJob) -> int | ReconstructJob:
    """One run over a source: its exit code, or the run that has to follow."""
    out, err = result_consoles()
    if may_exist(job.spec) and not job.resume:
        # Imports and weights take seconds: a user should see at once that something happens.
        out.print("loading the network")
    from stream_recon.app.cli.progress import TerminalObserver, disk_outlook, print_summary
    from stream_recon.app.core.process import memory_errors
    from stream_recon.app.datasets.source_identity import check_source
    from stream_recon.app.result.cameras import revision_since_causal
    from stream_recon.app.result.disk_limit import DiskLimit
    from stream_recon.app.result.folder import read_result
    from stream_recon.app.result.lock import FolderLock
    from stream_recon.app.result.resume import check_choice
    from stream_recon.app.result.run_record import RunInfo, evidence_record
    from stream_recon.app.result.verdict import judge
    from stream_recon.app.run.guidance import Guidance
    from stream_recon.app.run.session import EarlierRun, Output, RunOptions, Session
    from stream_recon.app.sources.source import open_source
    from stream_recon.app.stages.finish import Finisher

    if job.splat:
        require_splats()
    preset = job.model.load_preset()
    steps = job.last_steps
    limit = DiskLimit.parse(job.keep_depth, job.max_disk)
    folder = job.output or default_output(job.spec, job.overwrite or job.resume)
    earlier = EarlierRun.find(folder, resume=job.resume, overwrite=job.overwrite)
    open_again: Callable[[], Source] = partial(open_source, job.spec, job.frames)
    with ExitStack() as stack:
        source = stack.enter_context(open_source(job.spec, job.frames, reconnect=job.reconnect))
        # A recording or photographs may contain their camera.
        job = dataclasses.replace(job, frames=dataclasses.replace(job.frames, camera=source.camera))
        if begins_again(job, source, earlier):
            job, earlier = dataclasses.replace(job, resume=False, overwrite=True), EarlierRun()
        if (earlier.record or earlier.partial) and source.live:
            raise ConfigError("--resume needs a file: a camera or stream cannot be read again")
        if earlier.record is not None:
            check_choice(folder, earlier.record, source.name, job.recorded)
            source.close()
            return finish_later(folder, open_again, steps.remaining(earlier.record, folder), job)
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
        load = run_load(job, source)
        if load.mapping != "off":
            # Beside the network's weights, which are read and packed without Python.
            Thread(target=import_module, args=("stream_recon.app.slam.online.back_end",), daemon=True).start()
        with memory_errors():
            engine = load.model.load()
        if load.threads is not None:
            engine.threads = min(engine.threads, load.threads)
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
            is_live_dense = job.dense is not None and session.back_end is not None
            is_light = source.feedback is not None and session.back_end is None
            if viewer and is_light:
                viewer.update_share = UPDATE_SHARE
            with run_listeners(viewer, engine.device, is_live_dense, is_light) as listeners:
                summary = session.reconstruct([*listeners, *others], observer)
            observer.stop()
            print_summary(summary, out, err)
            session.source.close()
            finished = not summary.interrupted
            if finished and load.is_lighter and summary.frames_reconstructed:
                out.print("all frames are reconstructed once more, in full size")
                view = dataclasses.replace(job.view, port=viewer.port) if viewer and job.view else job.view
                return dataclasses.replace(job, resume=False, overwrite=True, view=view, publish=())
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
                    finished = finish(finisher, steps, job, viewer)
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
