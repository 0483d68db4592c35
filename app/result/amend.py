"""Changes of a finished result whose cloud follows: revised poses, and depth maps that came later."""

from collections.abc import Callable
from typing import Any

from stream_recon.app.core.types import Revision
from stream_recon.app.result.cameras import change_cameras
from stream_recon.app.result.cloud import POINTS_NAME, write_result_cloud
from stream_recon.app.result.commit import FolderChange
from stream_recon.app.result.folder import MESH_NAME, ResultFolder, read_run, revision_of
from stream_recon.app.result.run_record import MESH, RUN_NAME
from stream_recon.app.result.tracks import TRACKS_NAME, SparseTracks, change_tracks


def amend(
    result: ResultFolder,
    revision: Revision,
    record: dict[str, Any],
    tracks: SparseTracks | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Apply a revision to a finished result: new poses, cloud and entries of ``run.json``.

    The cloud is built from the existing depth maps: frames without one lose their points. A kill leaves the old result
    or the new one, see `FolderChange`.

    Args:
        record: entries to set in ``run.json``.
        tracks: triangulated points; None removes those of an earlier refinement.
        on_progress: see `write_cloud`.

    Raises OutputError: no space, or a damaged file. The result is unchanged then.
    """
    folder = result.folder
    changes = {frame.index: frame for frame in revision.frames}
    cameras = [c.revised(changes[c.index]) if c.index in changes else c for c in result.cameras]
    with FolderChange(folder) as change:
        write_result_cloud(change.part(POINTS_NAME), result.amended(cameras, record), on_progress)
        # The rest writes little and is not cancelled.
        number = revision_of(result) + 1
        change_cameras(change, cameras, number)
        if tracks is not None:
            change_tracks(change, tracks)
        else:
            change.remove(TRACKS_NAME)
        change.remove(MESH_NAME)  # it is of the old poses
        kept = {key: value for key, value in result.run.items() if key != MESH}
        numbers = dict.fromkeys(("cameras", "trajectory", "points"), number)
        change.replace_json(RUN_NAME, {**kept, **record, "revisions": numbers})
        change.commit()


def rebuild_cloud(result: ResultFolder, on_progress: Callable[[int, int], None] | None = None) -> None:
    """Write ``points.ply`` anew from the present depth maps of a finished result, for example after dense stereo.

    ``on_progress``: see `write_cloud`. The result is unchanged after its errors, and after a kill.
    """
    with FolderChange(result.folder) as change:
        write_result_cloud(change.part(POINTS_NAME), result, on_progress)
        numbers = result.run.get("revisions")
        if isinstance(numbers, dict) and numbers.get("points") != numbers.get("cameras"):
            # Another step may have changed the file since the result was read.
            record = read_run(result.folder)
            record["revisions"] = {**numbers, "points": numbers.get("cameras")}
            change.replace_json(RUN_NAME, record)
        change.commit()
