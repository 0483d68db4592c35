"""A finished result brought up to date: cameras, trajectory, cloud and what ``run.json`` says, each in one step.

A run that is killed meanwhile leaves the old result or the new one, but for the moment in which the files are renamed;
then the numbers under ``revisions`` in ``run.json`` differ, see `FileRevisions`.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stream_recon.app.core.depth_points import FramePoints, frame_points
from stream_recon.app.core.transforms import transform_points
from stream_recon.app.core.types import Revision
from stream_recon.app.core.voxels import VoxelTable
from stream_recon.app.result.cameras import Camera, write_cameras
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.files import PART_SUFFIX, PlyFile, in_order, output_errors, replace_json
from stream_recon.app.result.folder import ResultFolder, points_of, result_of
from stream_recon.app.result.run_record import RUN_NAME
from stream_recon.app.result.tracks import TRACKS_NAME, SparseTracks, write_tracks
from stream_recon.configs.schema import PointsConfig


def amend(
    result: ResultFolder,
    revision: Revision,
    record: dict[str, Any],
    tracks: SparseTracks | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> bool:
    """Apply a revision to a folder that nobody writes to any more.

    The cloud is made of the depth files there are: a run that did not keep all of them loses the points of the others.

    Args:
        record: what ``run.json`` is to say besides, by its names.
        tracks: what was triangulated; None removes what an earlier refinement left.
        on_progress: told how many frames' points are in place, of how many.
        cancelled: asked now and then.

    Returns:
        False where it was cancelled: everything is as it was.

    Raises:
        OutputError: no room, or a damaged file; the result is as it was.
    """
    folder = result.folder
    changes = {frame.index: frame for frame in revision.frames}
    cameras = [c.revised(changes[c.index]) if c.index in changes else c for c in result.cameras]
    part = folder / (POINTS_NAME + PART_SUFFIX)
    try:
        config = points_of({**result.run, **record})
        if not _rebuild(result, config, result.with_depth(cameras), part, on_progress, cancelled):
            return False
        # From here on nothing large is written, and nothing is asked any more.
        number = int(result.run.get("revisions", {}).get("cameras", 0)) + 1
        numbers = {"cameras": number, "trajectory": number - 1, "points": number - 1}
        replace_json(folder / RUN_NAME, {**result.run, "revisions": numbers})
        write_cameras(folder, cameras, number)
        if tracks is not None:
            write_tracks(folder, tracks)
        else:
            (folder / TRACKS_NAME).unlink(missing_ok=True)
        with output_errors(part):
            part.replace(folder / POINTS_NAME)
        numbers = dict.fromkeys(numbers, number)
        replace_json(folder / RUN_NAME, {**result.run, **record, "revisions": numbers})
    finally:
        part.unlink(missing_ok=True)
    return True


def _rebuild(
    result: ResultFolder,
    config: PointsConfig,
    cameras: Sequence[Camera],
    path: Path,
    on_progress: Callable[[int, int], None] | None,
    cancelled: Callable[[], bool],
) -> bool:
    voxels, ply = VoxelTable(config.voxel), PlyFile(path)

    def unprojected(camera: Camera) -> tuple[Camera, FramePoints]:
        return camera, frame_points(result_of(result.folder, camera), config)

    def arguments() -> Iterator[tuple[Camera]]:
        for camera in cameras:
            yield (camera,)

    try:
        threads = os.cpu_count() or 1
        with ThreadPoolExecutor(threads, "cloud") as pool:
            work = in_order(pool, unprojected, arguments(), ahead=2 * threads)
            for done, (camera, points) in enumerate(work, start=1):
                if cancelled():
                    return False
                xyz = transform_points(camera.T_world_camera, points.xyz)
                new = voxels.take_new(xyz)
                ply.append(xyz[new], points.rgb[new])
                if on_progress is not None:
                    on_progress(done, len(cameras))
    finally:
        ply.close()
    return True
