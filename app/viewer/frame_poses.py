"""Per-frame poses of the viewer's points, and the error that a chunk's similarity leaves."""

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import GRID, depth_factors_at
from stream_recon.app.core.per_frame_arrays import PerFrameArrays
from stream_recon.app.core.transforms import Similarity, align

FloatArray = NDArray[np.float64]

REACH_VOXELS = 500
"""Bound of a point's depth in voxels for error bounds: beyond it, depth is not accurate to a voxel."""


class FramePoses:
    """Poses of all frames by ordinal.

    ``to_world`` and ``to_chunk`` are affine maps [4, 4] from the axes of the causal camera, in which points were
    unprojected, see `Timeline.point_transforms`, to the world and to the axes of the chunk, as its points are stored.
    A chunk's similarity S is right where ``S @ to_chunk`` equals ``to_world``. Before the map, a point moves along its
    ray by a depth field: ``fields`` for ``to_world``, ``applied_fields`` for ``to_chunk``.
    """

    def __init__(self, reach: float) -> None:
        self._reach = reach
        self._rows = PerFrameArrays(
            to_world=(4, 4), to_chunk=(4, 4), corners=(5, 3), filled=(), field=(GRID, GRID), applied_field=(GRID, GRID),
            window=(4,),
        )  # fmt: skip
        self.to_world, self.to_chunk = self._rows["to_world"], self._rows["to_chunk"]
        self.fields, self.applied_fields = self._rows["field"], self._rows["applied_field"]
        self.filled = self._rows["filled"]
        """Whether frames have points [n]: 1 or 0."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, to_world: FloatArray) -> None:
        """Add the next frame, without points."""
        self._rows.append(to_world=to_world, to_chunk=np.eye(4))

    def fill(self, ordinal: int, to_chunk: FloatArray, xyz: NDArray[np.float32], window: FloatArray) -> None:
        """Record a frame's points ``xyz`` [N, 3] in its camera's axes, and the map by which the chunk stores them.

        ``window``: the borders of its depth map, see `ranked_points`.
        """
        self.filled[ordinal] = bool(len(xyz))
        if len(xyz):
            self.to_chunk[ordinal] = to_chunk
            self._rows["corners"][ordinal], self._rows["window"][ordinal] = pyramid(xyz, self._reach), window

    def fit(self, frames: slice) -> Similarity | None:
        """Least-squares similarity of a chunk with these frames; None if they have no points."""
        filled = self.filled[frames] > 0
        if not filled.any():
            return None
        corners = self._rows["corners"][frames][filled]
        to_chunk, world = (_moved(T[frames][filled], corners).reshape(-1, 3) for T in (self.to_chunk, self.to_world))
        fitted = align(to_chunk, world)
        return fitted if fitted.scale > 0 else None

    def errors(self, frames: slice, S_world_chunk: Similarity) -> FloatArray:
        """Bounds [k] of the position errors of each frame's points; 0 for frames without points.

        The error is a convex function of position, so the corners of the pyramid around a frame's points bound it
        within reach. A point at n times the reach may have 2n - 1 times the error. A depth field adds at most its
        largest node, at the distance of the furthest corner.
        """
        rows, world = self._rows["corners"][frames], self.to_world[frames]
        applied_fields = self.applied_fields[frames]
        corners = rows * np.exp(applied_fields.max(axis=(1, 2), initial=0.0))[:, None, None]
        error = _moved(S_world_chunk.matrix @ self.to_chunk[frames] - world, corners)
        bounds = np.sqrt((error * error).sum(axis=2).max(axis=1))
        along = np.abs(np.expm1(self.fields[frames] - applied_fields)).max(axis=(1, 2), initial=0.0)
        if along.any():
            far = _moved(world, corners) - world[:, None, :3, 3]
            bounds += along * np.sqrt((far * far).sum(axis=2).max(axis=1))
        return np.asarray(bounds * self.filled[frames])

    def moved(
        self, frames: slice, fields: FloatArray, maps: FloatArray, which: NDArray[np.integer], xyz: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Points ``xyz`` [N, 3] in the axes of a chunk of k frames, under other maps of their frames.

        Args:
            fields: depth fields [k, GRID, GRID] to apply in addition.
            maps: affine maps [k, 4, 4] from camera axes that replace ``to_chunk``.
            which: each point's frame [N], counted from the first of ``frames``.
        """
        inverse = np.linalg.inv(self.to_chunk[frames])
        if not fields.any():
            return move_each(np.asarray(maps @ inverse, np.float64), which, xyz)
        local = move_each(np.asarray(inverse, np.float64), which, xyz)
        window = self._rows["window"][frames][which]
        with np.errstate(divide="ignore", invalid="ignore"):
            position = np.nan_to_num((local[:, :2] / local[:, 2:] - window[:, :2]) / window[:, 2:])
        local *= depth_factors_at(fields, position, which)[:, None]
        return move_each(maps, which, local)


def pyramid(xyz: NDArray[np.float32], reach: float) -> FloatArray:
    """Apex (the camera) and base corners [5, 3] of a pyramid around points [N, 3] of one camera up to ``reach``."""
    depth = xyz[:, 2]
    far = min(float(depth.max()), reach)
    # Axis by axis: numpy's reductions over rows of three take many times as long.
    (left, right), (top, bottom) = (
        (float(slope.min()), float(slope.max())) for slope in (xyz[:, 0] / depth, xyz[:, 1] / depth)
    )
    rays = [[0, 0, 0], [left, top, 1], [right, top, 1], [left, bottom, 1], [right, bottom, 1]]
    return far * np.array(rays, np.float64)


def move_each(changes: FloatArray, which: NDArray[np.integer], xyz: NDArray[np.float32]) -> NDArray[np.float32]:
    """Points [N, 3], each by the affine map of ``changes`` [k, 4, 4] that ``which`` [N] names."""
    maps = np.ascontiguousarray(changes[:, :3].transpose(1, 2, 0), np.float32)
    moved = np.empty_like(xyz)
    x, y, z = xyz.T
    for axis, (a, b, c, offset) in enumerate(maps):
        moved[:, axis] = a[which] * x + b[which] * y + c[which] * z + offset[which]
    return moved


def _moved(T: FloatArray, points: FloatArray) -> FloatArray:
    """Points [k, m, 3] under the affine maps T [k, 4, 4]."""
    return np.asarray(points @ np.swapaxes(T[:, :3, :3], 1, 2) + T[:, None, :3, 3])
