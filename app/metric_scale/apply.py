"""Conversion of a result folder to metres: cameras, trajectory, tracks, point cloud and run.json in one revision."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stream_recon.app.core.transforms import Similarity
from stream_recon.app.core.types import FrameRevision, Revision
from stream_recon.app.core.views import RunView
from stream_recon.app.result.amend import amend
from stream_recon.app.result.cameras import revision_since_causal
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.metric_scale import MetricScale, T_current_own
from stream_recon.app.result.run_record import METRIC_SCALE
from stream_recon.app.result.tracks import read_tracks


def apply_metric_scale(
    result: ResultFolder,
    metres: MetricScale,
    on_progress: Callable[[int, int], None] | None = None,
    view: RunView | None = None,
) -> None:
    """Convert a result to metres. Depth files, causal poses and the network's poses do not change.

    Args:
        metres: scale of the current world, from `measure_scale`.
        on_progress: see `write_cloud`.
        view: shows the causal result and its revisions.

    Raises OutputError: no disk space, or a damaged file. Nothing has changed then.
    """
    current = T_current_own(result.run)
    metres = metres.after(current)
    change = metres.T_metric_own @ current.inverse()
    move_world(result, change, {METRIC_SCALE: metres.to_json()}, on_progress, view)


def move_world(
    result: ResultFolder,
    change: Similarity,
    record: dict[str, Any],
    on_progress: Callable[[int, int], None] | None = None,
    view: RunView | None = None,
) -> None:
    """Move a result into another world and unit; arguments and errors as of `apply_metric_scale`.

    ``record``: entries of ``run.json`` that state the new world.
    """
    cameras = [camera.moved(change) for camera in result.cameras]
    revision = Revision(
        tuple(FrameRevision(c.index, c.T_world_camera, c.depth_scale, depth_field=c.depth_field) for c in cameras)
    )
    tracks = read_tracks(result.folder)
    if tracks is not None:
        tracks = replace(tracks, points=change.apply(tracks.points))
    amend(result, revision, record, tracks, on_progress)
    if view is not None:
        view.revise(revision_since_causal(cameras))
        if tracks is not None:
            view.show_map(tracks.points, tracks.loops)
