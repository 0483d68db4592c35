"""Worlds of one video that differ by a similarity: how one lies in the other, and moving results between them."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.evaluation.metrics import FloatArray, Similarity
from stream_recon.app.results import FrameResult

UNSURE = 0.1
"""Of the median confidence: less is next to none."""
IDENTITY = Similarity(1.0, np.eye(3), np.zeros(3))


def similarity_between(earlier: FloatArray, later: FloatArray, scale: float) -> Similarity:
    """From the later world to the earlier one, by poses [N, 4, 4] of the same frames in both.

    The rotation is the mean of the frames' relative rotations (chordal, by SVD), the translation the median of what
    is then left. ``scale``: of lengths in the later world, see `depth_ratio`.
    """
    rotation = _mean_rotation(earlier[:, :3, :3] @ np.swapaxes(later[:, :3, :3], 1, 2))
    translation = np.median(earlier[:, :3, 3] - scale * later[:, :3, 3] @ rotation.T, axis=0)
    return Similarity(scale, rotation, translation)


def depth_ratio(earlier: FrameResult, later: FrameResult) -> float | None:
    """Ratio of the median depths of two maps of one picture; None where no pixel has depth in both.

    Only pixels of next to no confidence, such as sky, are left out: the surest ones alone lie at some depths rather
    than others, where the ratio may be another one.
    """
    chosen = (earlier.depth > 0) & (later.depth > 0)
    for result in (earlier, later):
        chosen &= result.confidence >= UNSURE * np.median(result.confidence)
    return float(np.median(earlier.depth[chosen]) / np.median(later.depth[chosen])) if chosen.any() else None


def composed(outer: Similarity, inner: Similarity) -> Similarity:
    """First ``inner``, then ``outer``."""
    return Similarity(
        outer.scale * inner.scale,
        outer.rotation @ inner.rotation,
        outer.apply(inner.translation),
    )


def moved(result: FrameResult, transform: Similarity) -> FrameResult:
    """A result in another world of another unit."""
    pose = moved_pose(result.T_world_camera, transform)
    return replace(result, T_world_camera=pose, depth=result.depth * np.float32(transform.scale))


def moved_pose(T_world_camera: FloatArray, transform: Similarity) -> FloatArray:
    """A camera [4, 4] in another world of another unit."""
    T = np.eye(4)
    T[:3, :3] = transform.rotation @ T_world_camera[:3, :3]
    T[:3, 3] = transform.apply(T_world_camera[:3, 3])
    return T


def _mean_rotation(rotations: NDArray[np.float64]) -> FloatArray:
    """The rotation nearest to all of [N, 3, 3] in the least-squares sense."""
    u, _, vt = np.linalg.svd(rotations.sum(axis=0))
    mean: FloatArray = (u * np.array([1.0, 1.0, np.linalg.det(u) * np.linalg.det(vt)])) @ vt
    return mean
