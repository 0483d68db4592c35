"""Where frames lie in the world, and how well a chunk's similarity puts their points there."""

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import GRID, depth_factors_at
from stream_recon.app.core.disk_table import DiskColumn, DiskTable
from stream_recon.app.core.transforms import Similarity, align

FloatArray = NDArray[np.float64]

REACH_VOXELS = 500
"""Points further from their camera count as if they were so far: there the depth is known to no voxel."""


class FramePoses:
    """All frames by their ordinals.

    A placement is an affine map [4, 4] from a frame's camera axes, as its points were first unprojected: pose, depth
    scale and change of intrinsics in one. ``world`` says where the frame's points belong, ``kept`` where they are in
    the axes of their chunk; a chunk's similarity S holds as long as ``S @ kept`` is about ``world``. Before that a
    point goes along its ray as a depth field says: ``fields`` by which it belongs, ``kept_fields`` by which it is kept.
    """

    def __init__(self, reach: float) -> None:
        self._reach = reach
        self._rows = DiskTable(
            world=(4, 4),
            kept=(4, 4),
            corners=(5, 3),
            filled=(),
            field=(GRID, GRID),
            kept_field=(GRID, GRID),
            window=(4,),
        )

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def world(self) -> DiskColumn:
        return self._rows["world"]

    @property
    def kept(self) -> DiskColumn:
        return self._rows["kept"]

    @property
    def fields(self) -> DiskColumn:
        return self._rows["field"]

    @property
    def kept_fields(self) -> DiskColumn:
        return self._rows["kept_field"]

    @property
    def filled(self) -> DiskColumn:
        """Which frames have points [n]: 1, or 0."""
        return self._rows["filled"]

    def add(self, world: FloatArray) -> None:
        """The next frame, without points so far."""
        self._rows.append(world=world, kept=np.eye(4))

    def fill(self, ordinal: int, kept: FloatArray, xyz: NDArray[np.float32], window: FloatArray) -> None:
        """Note that a frame's points, ``xyz`` [N, 3] in its camera's axes, are now kept by ``kept``; ``window``: the
        borders of its depth map, see `ranked_points`."""
        self.filled[ordinal] = bool(len(xyz))
        if len(xyz):
            self.kept[ordinal] = kept
            self._rows["corners"][ordinal], self._rows["window"][ordinal] = pyramid(xyz, self._reach), window

    def fit(self, frames: slice) -> Similarity | None:
        """The similarity of a chunk that places these frames best, by least squares; None if they have no points."""
        filled = self.filled[frames] > 0
        if not filled.any():
            return None
        corners = self._rows["corners"][frames][filled]
        kept, world = (_moved(T[frames][filled], corners).reshape(-1, 3) for T in (self.kept, self.world))
        fitted = align(kept, world)
        return fitted if fitted.scale > 0 else None

    def offsets(self, frames: slice, S_world_chunk: Similarity) -> FloatArray:
        """How far [k] the furthest point of each frame is from where it belongs, at most; 0 for frames without points.

        No point within reach is further off than a corner of the pyramid that holds them: the distance is a convex
        function. A point at n times the reach may be off by 2n - 1 times as much. What a field adds is at most what it
        does at a node, as far off as the furthest corner.
        """
        rows, world = self._rows["corners"][frames], self.world[frames]
        kept_fields = self.kept_fields[frames]
        corners = rows * np.exp(kept_fields.max(axis=(1, 2), initial=0.0))[:, None, None]
        off = _moved(S_world_chunk.matrix @ self.kept[frames] - world, corners)
        most = np.sqrt((off * off).sum(axis=2).max(axis=1))
        along = np.abs(np.expm1(self.fields[frames] - kept_fields)).max(axis=(1, 2), initial=0.0)
        if along.any():
            far = _moved(world, corners) - world[:, None, :3, 3]
            most += along * np.sqrt((far * far).sum(axis=2).max(axis=1))
        return np.asarray(most * self.filled[frames])

    def moved(
        self,
        frames: slice,
        kept: FloatArray,
        fields: FloatArray,
        maps: FloatArray,
        which: NDArray[np.integer],
        xyz: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Points [N, 3], each back by the inverse of ``kept`` [k, 4, 4] of the frame that ``which`` [N] names of
        ``frames``, along its ray by ``fields`` [k, GRID, GRID], and on by ``maps`` [k, 4, 4]."""
        if not fields.any():
            return move_each(np.asarray(maps @ np.linalg.inv(kept), np.float64), which, xyz)
        local = move_each(np.asarray(np.linalg.inv(kept), np.float64), which, xyz)
        window = self._rows["window"][frames][which]
        with np.errstate(divide="ignore", invalid="ignore"):
            place = np.nan_to_num((local[:, :2] / local[:, 2:] - window[:, :2]) / window[:, 2:])
        local *= depth_factors_at(fields, place, which)[:, None]
        return move_each(maps, which, local)


def pyramid(xyz: NDArray[np.float32], reach: float) -> FloatArray:
    """Apex (the camera) and base of a pyramid [5, 3] that holds points [N, 3] of one camera up to depth ``reach``."""
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
    for axis, (a, b, c, shift) in enumerate(maps):
        moved[:, axis] = a[which] * x + b[which] * y + c[which] * z + shift[which]
    return moved


def _moved(T: FloatArray, points: FloatArray) -> FloatArray:
    """Points [k, m, 3] by the upper part of T [k, 4, 4]."""
    return np.asarray(points @ np.swapaxes(T[:, :3, :3], 1, 2) + T[:, None, :3, 3])
