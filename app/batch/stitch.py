"""The windows of a split scene, joined into one ordinary result folder."""

import dataclasses
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from stream_recon.app.batch.scene_run import record_of, refine_scene
from stream_recon.app.batch.seams import join
from stream_recon.app.batch.stitched_files import write_files
from stream_recon.app.batch.store import Store
from stream_recon.app.batch.units import Model, Unit, windows_folder
from stream_recon.app.evaluation.gather import Gatherer
from stream_recon.app.output.cameras import Camera
from stream_recon.app.output.files import replace_json
from stream_recon.app.output.folder import ResultFolder, read_result
from stream_recon.app.output.run_record import RUN_NAME, RunInfo, Summary, run_record
from stream_recon.app.run.process_memory import peak_host_memory_mb
from stream_recon.configs.errors import InputError


def stitch(unit: Unit, windows: Sequence[Unit], store: Store, model: Model) -> dict[str, Any]:
    """Join the finished ``windows`` of ``unit``, measure the whole, publish it, and remove the windows.

    Gives what the manifest records; ``seams`` says how well the windows fit, ``window_seconds`` and
    ``stitch_seconds`` how long each of them and the joining took.

    Raises:
        StreamReconError: windows that share no frame, damaged results, no room.
    """
    begun = time.monotonic()
    store.check_target(unit.name)
    truth = unit.scene.truth()
    gatherer = Gatherer(truth)
    with ExitStack() as stack:
        work = stack.enter_context(store.workspace())
        fetched = [stack.enter_context(store.fetch(window.name)) for window in windows]
        filled = [folder for folder in fetched if folder is not None]
        if not filled:
            raise InputError(f"not one frame of {unit.scene.path} is readable")
        joined = join([read_result(folder) for folder in filled])
        seams = [dataclasses.asdict(seam) for seam in joined.seams]
        runs = [window.run for window in joined.windows]
        options = {"source": str(unit.scene.path), **unit.key["options"], "windows": len(windows), "seams": seams}
        first = runs[0]
        info = RunInfo(
            first["source"],
            model.preset,
            model.weights_sha256,
            first["device"],
            options,
            first["precision"],
            model.cache,
        )
        written = write_files(work, joined, model.preset.points.voxel)
        cameras = written.cameras
        if truth is None:
            for camera in cameras:
                gatherer.add_pose(camera.index, camera.T_world_camera)
        else:
            for result in joined.results():
                gatherer.add(result)
        stitching = time.monotonic() - begun
        summary = _summary(joined.windows, cameras, stitching)
        if len(filled) < len(windows):
            warning = f"it ends in window {len(filled)} of {len(windows)}: the others had no readable frame"
            summary = dataclasses.replace(summary, warnings=(*summary.warnings, warning))
        replace_json(work / RUN_NAME, run_record(info, summary))
        if unit.mapping == "full":
            # Over the seams, too: windows that drifted apart are one again.
            refine_scene(unit, work, gatherer)
        record = record_of(summary, gatherer, summary.seconds, info.device) | {
            "seams": seams,
            "window_seconds": [run["timings"]["seconds"] for run in runs],
            "stitch_seconds": round(stitching, 3),
        }
        store.publish(work, unit.name, unit.key, record, written.marks)
    store.remove(windows_folder(unit.name))
    return record


def _summary(windows: Sequence[ResultFolder], cameras: Sequence[Camera], seconds: float) -> Summary:
    """Of the whole run; ``seconds`` counts the work on all windows and the stitching, wherever it was done."""
    runs = [window.run for window in windows]
    device_peaks = [run["peak_memory_mb"]["device"] for run in runs if run["peak_memory_mb"]["device"] is not None]
    return Summary(
        interrupted=False,
        frames_read=len(cameras),
        frames_reconstructed=len(cameras),
        keyframes=sum(camera.is_keyframe for camera in cameras),
        # At least: a window that was read through met the damage before it again, so a sum might count it twice.
        frames_damaged=max(run["frames"]["damaged"] for run in runs),
        seconds=seconds + sum(run["timings"]["seconds"] for run in runs),
        peak_host_memory_mb=max(peak_host_memory_mb(), *(run["peak_memory_mb"]["host"] for run in runs)),
        peak_device_memory_mb=max(device_peaks, default=None),
        attention=runs[0]["attention"],
        warnings=tuple(dict.fromkeys(warning for run in runs for warning in run["warnings"])),
    )
