"""Worlds of one video that differ by a similarity: how one lies in the other, and moving results between them."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.metrics import FloatArray, Similarity
from stream_recon.app.results import FrameResult

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
    """Median ratio of two depth maps of one picture, over the pixels of which both are surer than of most; None
    where no pixel has depth in both."""
    valid = (earlier.depth > 0) & (later.depth > 0)
    sure = valid.copy()
    for result in (earlier, later):
        sure &= result.confidence >= np.median(result.confidence)
    chosen = sure if sure.any() else valid
    return float(np.median(earlier.depth[chosen] / later.depth[chosen])) if chosen.any() else None


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
