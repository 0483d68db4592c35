"""The main job: a source reconstructed into a folder, with a live view. Prints for the user."""

import dataclasses
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from stream_recon.app.cli.console import DONE, INTERRUPTED, PlainConsole
from stream_recon.app.cli.progress import describe, progress_bar
from stream_recon.app.cli.refine import refined
from stream_recon.app.cli.scale import brought_to_metres
from stream_recon.app.cli.view import ViewerChoice, show_result
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.metric_scale.scale_source import ScaleSource, parse_scale_source
from stream_recon.app.pipeline.cpu_threads import usable_cores
from stream_recon.app.pipeline.health import clock, weak_spans
from stream_recon.app.pipeline.pipeline import Progress, reconstruct
from stream_recon.app.pipeline.process import memory_errors
from stream_recon.app.pipeline.resume import map_state, resume_run
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.disk_limit import DiskLimit, KeepDepth, bytes_per_frame
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.resume import check_choice, finished_record, read_partial_result
from stream_recon.app.result.run_record import METRIC_SCALE, REFINEMENT, RunInfo, RunSummary
from stream_recon.app.result.writer import ResultWriter, check_output
from stream_recon.app.slam.mode import MappingChoice, make_back_end
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import ADDRESS, Source, open_source, without_password
from stream_recon.app.viewer.viewer import Viewer
from stream_recon.configs.errors import ConfigError, InputError
from stream_recon.configs.schema import Preset
from stream_recon.configs.sizes import parse_size

CORES_APART = 4
"""With a GPU and so many cores geometry gets a process of its own; on a CPU the network needs them all."""
LONGEST_NAME = 80
"""Characters of a result folder that is named here; a file's name may be as long as the file system lets it."""


def reconstruct_source(
    spec: str,
    *,
    output: Path | None,
    overwrite: bool,
    resume: bool,
    frames: FrameChoice,
    reconnect: float,
    keep_depth: KeepDepth,
    max_disk: str | None,
    model: ModelChoice,
    view: ViewerChoice | None,
    mapping: MappingChoice = "full",
    mask_sky: bool = False,
    scale_from: str | None = None,
) -> int:
    """The main job; gives the exit code. Everything that can be refused is checked before anything is written.

    Raises:
        StreamReconError: bad input, no room, no memory.
    """
    out, err = PlainConsole(soft_wrap=True), PlainConsole(stderr=True)
    preset = model.load_preset()
    wanted = _Afterwards(mapping == "full", None if scale_from is None else parse_scale_source(scale_from))
    limit = DiskLimit(keep_depth, parse_size(max_disk, "--max-disk") if max_disk else None)
    folder = output or default_output(spec, overwrite or resume)
    record = finished_record(folder) if resume else None
    unfinished = read_partial_result(folder) if resume and record is None else None
    # A run that was cut off before its first result has left nothing to lose.
    overwrite = overwrite or resume
    open_again = partial(open_source, spec, frames)
    if unfinished is None and record is None:
        check_output(folder, overwrite)
    with ExitStack() as stack:
        source = stack.enter_context(open_source(spec, frames, reconnect=reconnect))
        # A recording or photographs may say their camera themselves.
        frames = dataclasses.replace(frames, camera=source.camera)
        if (unfinished or record is not None) and source.live:
            raise ConfigError("a camera or stream cannot be gone back to: --resume is for files")
        options = _options(spec, frames, model, mask_sky)
        if record is not None:
            check_choice(folder, record, source.name, options)
            source.close()
            return _finish_later(folder, open_again, wanted.left(record), view, preset, out, err)
        viewer = stack.enter_context(view.open(preset.points, out, err)) if view else None
        lock = stack.enter_context(FolderLock(folder))
        with memory_errors():
            engine = model.load()
        info = RunInfo.from_engine(engine, source.name, options)
        writer = ResultWriter(folder, info, overwrite=overwrite, lock=lock, resume=unfinished, limit=limit)
        out.print(f"result: {folder}")
        if source.live:
            out.print(_disk_outlook(folder, limit, preset))
        before = None
        if unfinished:
            source, before = resume_run(unfinished, engine, source, open_again, stack, network_poses=mapping != "off")
            out.print(f"resumed after frame {unfinished.last.index}, {len(unfinished.cameras)} frames")
            if viewer:
                show_result(viewer, read_result(folder), lambda _: None)
        # After a break the network gives one frame at a time, in the world of those before.
        prefill = 1 if unfinished else preset.stream.scale_frames
        back_end = make_back_end(
            mapping,
            prefill,
            live=source.live,
            known_intrinsics=frames.camera is not None,
            map_state=map_state(unfinished) if unfinished else None,
            separate_process=engine.device != "cpu" and usable_cores() >= CORES_APART,
        )
        shown: list[object] = [None]
        with progress_bar(err) as show:

            def on_progress(progress: Progress) -> None:
                show(progress)
                if viewer:
                    viewer.status(describe(progress))
                    if back_end is not None and back_end.sparse is not shown[-1]:
                        shown[:] = [back_end.sparse]
                        viewer.show_map(back_end.sparse.points, back_end.sparse.loops)

            listeners = [viewer] if viewer else []
            paused = (lambda: viewer.paused) if viewer else None
            summary = reconstruct(
                source,
                engine,
                writer,
                listeners,
                on_progress,
                back_end=back_end,
                paused=paused,
                on_rebuild=show.show_rebuild,
                before=before,
                mask_sky=mask_sky,
            )
        _report(summary, out, err)
        live = source.live
        source.close()
        whole = not summary.interrupted
        if whole:
            lock.release()  # which refinement and metres take for themselves
            if viewer:
                viewer.finish()
            if summary.frames_reconstructed:
                # Of a live source nothing is left but what the result holds.
                whole = _finish(folder, None if live else open_again, wanted, out, err, viewer)
            _keep_open(viewer, view, folder, out)
    if summary.source_lost:
        raise InputError(f"{summary.warnings[-1]}; what was reconstructed is in {folder}")
    return DONE if whole else INTERRUPTED


@dataclasses.dataclass(frozen=True)
class _Afterwards:
    """What is to be done to a result that has all its frames."""

    refine: bool
    scale: tuple[ScaleSource, str] | None

    def left(self, record: Mapping[str, Any]) -> "_Afterwards":
        """What of it is not done yet, by the result's ``run.json``."""
        return _Afterwards(self.refine and REFINEMENT not in record, None if record.get(METRIC_SCALE) else self.scale)

    def __bool__(self) -> bool:
        return self.refine or self.scale is not None


def _finish_later(
    folder: Path,
    open_again: Callable[[], Source],
    left: _Afterwards,
    view: ViewerChoice | None,
    preset: Preset,
    out: PlainConsole,
    err: PlainConsole,
) -> int:
    """As `_finish`, for a result whose frames a run before has made; gives the exit code."""
    out.print(f"result: {folder}")
    if not left:
        out.print("it is complete: nothing is left to do")
        return DONE
    with ExitStack() as stack:
        viewer = stack.enter_context(view.open(preset.points, out, err)) if view else None
        out.print("resumed after all its frames")
        if viewer:
            show_result(viewer, read_result(folder), lambda _: None)
            viewer.finish()
        whole = _finish(folder, open_again, left, out, err, viewer)
        _keep_open(viewer, view, folder, out)
    return DONE if whole else INTERRUPTED


def _finish(
    folder: Path,
    open_again: Callable[[], Source] | None,
    wanted: _Afterwards,
    out: Console,
    err: Console,
    viewer: Viewer | None,
) -> bool:
    """Do what is left of it; False where Ctrl-C ended it."""
    result = read_result(folder)
    left = wanted.left(result.run)
    if left.refine:
        if open_again is None and not result.with_depth(result.cameras):
            out.print("not refined: no depth was kept")
        elif refined(result, open_again, out, err, viewer) is None:
            return False
    return left.scale is None or brought_to_metres(read_result(folder), left.scale, open_again, out, err, viewer)


def _keep_open(viewer: Viewer | None, view: ViewerChoice | None, folder: Path, out: Console) -> None:
    if viewer and view:
        viewer.offer_cloud(folder / POINTS_NAME)
        if view.keep_open:
            out.print(f"The viewer stays open at {viewer.url}; Ctrl-C ends it.")
            viewer.wait()


def _disk_outlook(folder: Path, limit: DiskLimit, preset: Preset) -> str:
    """What a source without an end will take of the disk, in one line."""
    each = bytes_per_frame(preset.image.max_patches * preset.network.patch_size**2, limit.keep_depth)
    hour = 30 * 3600 * each / 1e9
    free = shutil.disk_usage(folder).free / 1e9
    bound = f"at most {limit.max_bytes / 1e9:g} GB (--max-disk)" if limit.max_bytes else f"no bound, {free:.0f} GB free"
    return f"disk: about {hour:.1f} GB an hour at 30 frames/s and points as they come; {bound}"


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # such as a name too long
        return False


def default_output(spec: str, overwrite: bool) -> Path:
    """``NAME-recon`` in the current folder; the first of ``NAME-recon-2``, ... that is free unless ``overwrite``."""
    if ADDRESS.match(spec):
        name = urlsplit(spec).hostname or "stream"
    elif spec.isdecimal() and not Path(spec).exists():
        name = f"camera-{spec}"
    else:
        path = Path(spec).expanduser().resolve()
        name = path.name if _is_folder(path) else path.stem
    base = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:LONGEST_NAME] or "stream"
    folder, number = Path(f"{base}-recon"), 1
    while folder.exists() and not overwrite:
        number += 1
        folder = Path(f"{base}-recon-{number}")
    return folder


def _options(spec: str, frames: FrameChoice, model: ModelChoice, mask_sky: bool) -> dict[str, Any]:
    # What later versions brought is only told where it is used, so that results of earlier ones can be gone on with.
    chosen = dataclasses.asdict(frames)
    for name in ("masks", "topic"):
        if chosen[name] is None:
            del chosen[name]
    added = {"mask_sky": True} if mask_sky else {}
    return {"source": without_password(spec), **chosen, "keyframes": model.keyframes, **added}


def _report(summary: RunSummary, out: Console, err: Console) -> None:
    for warning in summary.warnings:
        err.print(f"warning: {warning}", markup=False, soft_wrap=True)
    for span in weak_spans(summary.health):
        when = f"from {clock(span.begin)} to {clock(span.end)} ({span.frames} frames)"
        err.print(f"warning: tracking was weak {when}: {span.why}", markup=False, soft_wrap=True)
    lost = [
        f"{count} {word}"
        for count, word in ((summary.frames_damaged, "damaged"), (summary.frames_dropped, "dropped"))
        if count
    ]
    speed = f"{summary.seconds:.1f} s, {summary.fps:.1f} frames/s"
    if summary.latency_p50_ms is not None:
        speed += f", latency {summary.latency_p50_ms:.0f} ms (p95 {summary.latency_p95_ms:.0f} ms)"
    counts = ", ".join([f"{summary.frames_reconstructed} frames", f"{summary.keyframes} keyframes", *lost])
    out.print(f"{'interrupted' if summary.interrupted else 'done'}: {counts}; {speed}")
