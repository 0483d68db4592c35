"""Changes to a finished result: new poses, cloud and entries of ``run.json``.

A kill leaves the old result or the new one, except in the moment when files are renamed. The numbers under
``revisions`` in ``run.json`` then differ, see `FileRevisions`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from stream_recon.app.core.types import Revision
from stream_recon.app.result.cameras import write_cameras
from stream_recon.app.result.cloud import POINTS_NAME, world_points, write_cloud
from stream_recon.app.result.files import PART_SUFFIX, output_errors, replace_json
from stream_recon.app.result.folder import ResultFolder, points_of
from stream_recon.app.result.run_record import RUN_NAME
from stream_recon.app.result.tracks import TRACKS_NAME, SparseTracks, write_tracks


def amend(
    result: ResultFolder,
    revision: Revision,
    record: dict[str, Any],
    tracks: SparseTracks | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> bool:
    """Apply a revision to a folder that no run writes to.

    The cloud is built from the existing depth files: frames without one lose their points.

    Args:
        record: entries to set in ``run.json``.
        tracks: triangulated points; None removes those of an earlier refinement.
        on_progress, cancelled: see `write_cloud`.

    Returns:
        False where it was cancelled: the result is unchanged.

    Raises:
        OutputError: no space, or a damaged file; the result is unchanged.
    """
    folder = result.folder
    changes = {frame.index: frame for frame in revision.frames}
    cameras = [c.revised(changes[c.index]) if c.index in changes else c for c in result.cameras]
    part = folder / (POINTS_NAME + PART_SUFFIX)
    try:
        config = points_of({**result.run, **record})
        shown = result.with_depth(cameras)
        frames = (partial(world_points, folder, camera, config) for camera in shown)
        if not write_cloud(part, config.voxel, frames, len(shown), on_progress, cancelled):
            return False
        # The rest writes little and is not cancelled.
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
