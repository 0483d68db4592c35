"""A frame between keyframes: points followed into it from both sides, and its pose from these."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.ba.pose_only import batched_pose_only_ba
from stream_recon.app.slam.ba.problem import Observations
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.offline.pose_interpolation import MOST_POINTS, in_view, track_klt

FloatArray = NDArray[np.float64]
Grey = NDArray[np.uint8]

MIN_POINTS = 15
GOOD_PX = 3.0


def points_of_keyframes(
    fitted: BAState, features: Sequence[Features], count: int
) -> list[tuple[NDArray[np.float32], FloatArray]]:
    """For each keyframe the pixels [P, 2] and world points [P, 3] of what it sees well."""
    found: list[tuple[NDArray[np.float32], FloatArray]] = []
    seen = fitted.observations
    well = np.flatnonzero(fitted.errors < 2)
    well = well[np.argsort(seen.camera[well], kind="stable")]
    ends = np.searchsorted(seen.camera[well], np.arange(1, count + 1))
    for rows in np.split(well, ends)[:count]:
        if len(rows) > MOST_POINTS:
            rows = rows[np.linspace(0, len(rows) - 1, MOST_POINTS).astype(int)]
        k = len(found)
        found.append((features[k].uv[fitted.feature[rows]], fitted.scene.points[seen.point[rows]]))
    return found


def fit_frame(
    fitted: BAState,
    frame: int,
    image: Grey,
    sides: Sequence[tuple[NDArray[np.float32], FloatArray, Grey]],
    T: FloatArray,
) -> None:
    """Fit a frame to what its neighbours see well; changes its ``T`` where enough is found.

    Args:
        sides: of the keyframes on either side the pixels and points of `points_of_keyframes`, and the image.
    """
    lens = fitted.scene.lens
    pixels, xyz = [], []
    for uv, points, grey in sides:
        there, arrived = track_klt(grey, image, uv, in_view(lens, T[frame], points))
        pixels.append(there[arrived])
        xyz.append(points[arrived])
    uv, world = np.concatenate(pixels), np.concatenate(xyz)
    if len(uv) < MIN_POINTS:
        return
    seen = Observations(np.zeros(len(uv), np.intp), np.arange(len(uv)), uv.astype(np.float64))
    moved = batched_pose_only_ba(T[frame][None], world, seen, lens, loss_scales=(20.0, 5.0, 1.5))
    good = moved.distances < GOOD_PX
    if good.sum() < max(MIN_POINTS, 0.3 * len(uv)):
        return
    T[frame] = moved.T_world_camera[0]
