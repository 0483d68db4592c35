"""Covariances of a result's poses, from the tracks of its refinement."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import scipy.sparse as sparse

from stream_recon.app.export.observations import MAX_ERROR_SHARE
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.tracks import SparseTracks
from stream_recon.app.slam.ba.pose_covariance import pose_covariances
from stream_recon.app.slam.ba.problem import BAScene, FloatArray, Observations
from stream_recon.app.slam.ba.robust_ba import ADJUSTMENT, with_errors, without_outliers

MAX_KEYFRAMES = 300
"""Keyframes whose poses are considered together; of more, every second, third and so on."""
MIN_SHARED = 15
"""Fewest points that tie one keyframe to another one."""


def frame_covariances(
    cameras: Sequence[FrameCamera], tracks: SparseTracks | None, *, known_camera: bool
) -> dict[int, FloatArray]:
    """Covariances [6, 6] by frame, as in `pose_covariances`; without frames of which nothing is known.

    Known are keyframes whose tracks tie them to the first frame, and frames between two of these: theirs are between
    those of both, with that of the fit to their points in addition.
    """
    if tracks is None:
        return {}
    by_index = {camera.index: camera for camera in cameras}
    frames = sorted(by_index.keys() & set(tracks.frame.tolist()))
    frames = frames[:: -(-len(frames) // MAX_KEYFRAMES) or 1]
    if not frames or frames[0] != cameras[0].index:
        return {}
    kept = np.isin(tracks.frame, frames)
    pixel, point = tracks.pixel[kept].astype(np.float64), tracks.point[kept].astype(np.intp)
    T = np.array([by_index[index].T_world_camera for index in frames])
    scene = BAScene(T, tracks.points.astype(np.float64), tracks.camera_model)
    seen = Observations(np.searchsorted(frames, tracks.frame[kept]), point, pixel)
    fit = with_errors(scene, seen, np.zeros(len(point), np.int64))
    fit = without_outliers(fit, max(MAX_ERROR_SHARE * float(max(tracks.source_size)), 2.0))
    seen, shape = fit.observations, (len(frames), len(fit.scene.points))
    views = (sparse.csr_matrix((np.ones(len(seen)), (seen.camera, seen.point)), shape=shape) > 0).astype(np.int64)
    _, part = sparse.csgraph.connected_components((views @ views.T) >= MIN_SHARED, directed=False)
    tied = part == part[0]
    if tied.sum() < 2:
        return {}
    fit = without_outliers(replace(fit, errors=np.where(tied[seen.camera], fit.errors, np.inf)), np.inf)
    seen = replace(fit.observations, camera=(np.cumsum(tied) - 1)[fit.observations.camera])
    fit = replace(fit, scene=replace(fit.scene, T_world_camera=T[tied]), observations=seen)
    try:
        poses, own = pose_covariances(fit, None if known_camera else ADJUSTMENT.second_pass_log_focal_sigma)
    except np.linalg.LinAlgError:
        return {}
    found = dict(zip(np.array(frames)[tied].tolist(), poses, strict=True))
    for left, (k, other) in enumerate(pairwise(np.flatnonzero(tied))):
        first, last, right = frames[k], frames[other], left + 1
        for index in range(first + 1, last if other == k + 1 else 0):
            share = (index - first) / (last - first)
            both = [(1 - share) * each[left] + share * each[right] for each in (poses, own)]
            found[index] = both[0] + both[1]
    return found
