"""Points of depth maps, each with an observation in every frame whose own depth map agrees that it sees it."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import depth_edges
from stream_recon.app.core.ply import positions
from stream_recon.app.core.transforms import invert_pose, transform_points
from stream_recon.app.core.types import FrameResult
from stream_recon.app.export.observations import Observed, inside, none_observed, projected
from stream_recon.app.export.points import spread_indices, subsample
from stream_recon.app.export.view import PinholeView
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.folder import ResultFolder, result_of
from stream_recon.app.result.ply import stored_points
from stream_recon.configs.errors import OutputError

AGREEMENT = 0.02
"""Share by which a frame's depth may differ from a point's for it to be seen there."""
CANDIDATES = 2
"""How many points are looked at for each one that is wanted: some are seen once, or by no frame that is exported."""
MOST_VIEWS = 64
"""Of a point: more say little, and would take memory without bound."""


def dense_points(
    result: ResultFolder,
    most: int,
    cameras: Sequence[Camera],
    view: PinholeView,
    on_frame: Callable[[int], None],
) -> Observed:
    """At most ``most`` points of a result's cloud, spread over it, as ``cameras`` see them.

    A frame whose depth file cannot be read sees nothing. ``on_frame`` is told how many frames are done.

    Raises:
        OutputError: the cloud's file is missing or damaged.
    """
    folder_points, edge_ratio = stored_points(result.folder / POINTS_NAME), result.points.edge_ratio
    vertices = subsample(folder_points, CANDIDATES * most)
    xyz = positions(vertices)
    views = np.zeros(len(xyz), np.int32)
    point, camera_number, pixel = [], [], []
    for number, camera in enumerate(cameras):
        try:
            frame = result_of(result.folder, camera)
        except OutputError:
            continue
        seen, at = _seen(xyz, frame, view, edge_ratio)
        room = views[seen] < MOST_VIEWS
        seen, at = seen[room], at[room]
        views[seen] += 1
        point.append(seen)
        camera_number.append(np.full(len(seen), number))
        pixel.append(at)
        on_frame(number + 1)
    if not point:
        return none_observed()
    rgb = np.stack([vertices[channel] for channel in ("red", "green", "blue")], axis=1)
    found = Observed(
        xyz.astype(np.float64),
        rgb,
        np.concatenate(point).astype(np.int64),
        np.concatenate(camera_number).astype(np.int64),
        np.concatenate(pixel),
    )
    found = found.kept(np.ones(len(found.point), bool))
    wanted = np.zeros(len(found.xyz), bool)
    wanted[spread_indices(len(found.xyz), most)] = True
    return found.kept(wanted[found.point])


def _seen(
    xyz: NDArray[np.float32], frame: FrameResult, view: PinholeView, edge_ratio: float
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Numbers of the points that a frame sees, and the pixels where. None is seen at a step of depth."""
    depth = frame.depth
    local = transform_points(invert_pose(frame.T_world_camera), xyz)
    ahead = np.flatnonzero(local[:, 2] > 0)
    at = projected(local[ahead], view)
    here = inside(at, view)
    ahead, at = ahead[here], at[here]
    column, row = view.to_network(at, frame.transform).astype(np.intp).T
    column, row = column.clip(0, depth.shape[1] - 1), row.clip(0, depth.shape[0] - 1)
    known = np.where(depth > 0, depth, np.float32(np.nan))
    known[depth_edges(known, edge_ratio)] = np.nan
    with np.errstate(invalid="ignore"):
        agrees = np.abs(known[row, column] / local[ahead, 2] - 1) < AGREEMENT
    return ahead[agrees], at[agrees]
