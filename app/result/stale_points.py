"""Where the points of each frame lie in the cloud's file, and where they belong now: how far a revision moves them.

One row a frame, in the order of the cloud, on the disk.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import GRID, Field
from stream_recon.app.core.disk_table import BLOCK, DiskTable
from stream_recon.app.core.transforms import FloatArray, Similarity
from stream_recon.app.core.types import FrameResult, FrameRevision, Intrinsics

_FIELD = 17
_CAMERA = _FIELD + GRID**2
"""Rotation and translation by rows (12), depth scale, fx, fy, cx, cy, and the depth field's nodes."""
_TWO = ("placed", "now")
BYTES_PLACED = 8 * (2 * _CAMERA + 2)
"""A row."""


class StalePointTracker:
    """Rows are added in order; see `moved` and `overlooking`. All raises OSError where the disk fails."""

    def __init__(self, folder: Path) -> None:
        """``folder``: where the rows are kept, in a file without a name."""
        self._rows = DiskTable(folder, placed=(_CAMERA,), now=(_CAMERA,), depths=(2,))
        self._revised = False
        self._corners = np.zeros((4, 2))

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        result: FrameResult,
        z: NDArray[np.float32],
        depth_scale: float = 1.0,
        depth_field: Field | None = None,
    ) -> None:
        """A frame whose points have depths ``z`` [N] lies in the cloud as the result says.

        ``depth_scale``, ``depth_field``: by what the depth first given out was corrected in the result.
        """
        if not len(self):
            left, top, width, height = result.transform.crop
            self._corners = np.array([[left + i * width, top + j * height] for i in (0, 1) for j in (0, 1)])
        placed = _row(result.T_world_camera, depth_scale, result.intrinsics, depth_field)
        least, most = np.exp((placed[_FIELD:].min(), placed[_FIELD:].max())) * depth_scale
        depths = (z.min() / most, z.max() / least) if len(z) else (np.nan, np.nan)
        self._rows.append(placed=placed, now=placed, depths=depths)

    def revise(self, row: int, frame: FrameRevision) -> None:
        """The frame belongs elsewhere; its points stay where they are for now."""
        intrinsics = Intrinsics(*self._rows["now"][row][13:_FIELD]) if frame.intrinsics is None else frame.intrinsics
        self._rows["now"][row] = _row(frame.T_world_camera, frame.depth_scale, intrinsics, frame.depth_field)
        self._revised = True

    def settle(self, rows: NDArray[np.intp]) -> None:
        """The points of these frames now lie where they belong."""
        self._rows["placed"][rows] = self._rows["now"][rows]

    def motion(self, row: int) -> Similarity:
        """How the points of a frame move from where they lie to where they belong, but for what its intrinsics and its
        depth field do."""
        placed, now = (
            Similarity(scale, T[:, :3], T[:, 3])
            for scale, T in ((at[12], at[:12].reshape(3, 4)) for at in (self._rows[name][row] for name in _TWO))
        )
        return now @ placed.inverse()

    def moved(self, distance: float) -> NDArray[np.intp]:
        """Rows of the frames of which a point may belong further than ``distance`` from where it lies.

        How far a point moves is convex over the frame's frustum between its nearest and its farthest point, so its
        eight corners bound it, but for what another depth field does: at most what it does at a node, as far off as
        the farthest point. A frame without points does not move.
        """
        found = [np.zeros(0, np.intp)]
        for begin in range(0, len(self) if self._revised else 0, BLOCK):
            rows = self._rows.read(begin, min(begin + BLOCK, len(self)))
            changed = np.flatnonzero((rows["placed"] != rows["now"]).any(axis=1) & np.isfinite(rows["depths"][:, 0]))
            first, last = (rows[name][changed] for name in _TWO)
            depths = rows["depths"][changed] * _reach(first)
            placed, now = (_frustum(at, self._corners, depths) for at in (first, last))
            far: FloatArray = np.linalg.norm(now - placed, axis=-1).max(axis=(1, 2), initial=0.0)
            stretched = np.abs(np.expm1(last[:, _FIELD:] - first[:, _FIELD:])).max(axis=1, initial=0.0)
            length = np.linalg.norm(now[:, :, 1] - last[:, None, 3:12:4], axis=-1).max(axis=1, initial=0.0)
            far += stretched * length
            found.append(begin + changed[far > distance])
        return np.concatenate(found)

    def overlooking(self, points: NDArray[np.float32], since: NDArray[np.intp], radius: float) -> NDArray[np.intp]:
        """Rows of the frames that may have points where one of the ``points`` [P, 3] is that comes of an earlier row.

        Args:
            since: rows [P], ascending, that the points are of.
            radius: how far from that place theirs may be.
        """
        found = []
        for row in range(int(since[0]) + 1 if len(since) else len(self), len(self)):
            before = points[: np.searchsorted(since, row)]
            placed = self._rows["placed"][row]
            near, far = self._rows["depths"][row] * placed[12] * _reach(placed[None])[0]
            if np.isfinite(near) and _sees(placed, self._corners, before, near, far, radius):
                found.append(row)
        return np.array(found, np.intp)


def _row(T_world_camera: FloatArray, depth_scale: float, k: Intrinsics, field: Field | None) -> FloatArray:
    nodes = np.zeros(GRID**2) if field is None else np.asarray(field, np.float64).ravel()
    pose = np.asarray(T_world_camera, np.float64)[:3].ravel()
    return np.concatenate([pose, (depth_scale, k.fx, k.fy, k.cx, k.cy), nodes])


def _reach(rows: FloatArray) -> FloatArray:
    """What the fields of rows [m] multiply depths with, [m, 2]: at least and at most."""
    nodes = rows[:, _FIELD:]
    return np.asarray(np.exp(np.stack([nodes.min(axis=1), nodes.max(axis=1)], axis=1)))


def _frustum(rows: FloatArray, corners: FloatArray, depths: FloatArray) -> FloatArray:
    """The corners [m, 4, 2, 3] in the world of pixels [4, 2] at two depths [m, 2] as first given out."""
    T = rows[:, :12].reshape(-1, 3, 4)
    rays = np.ones((len(rows), 4, 3))
    rays[..., :2] = (corners - rows[:, None, 15:17]) / rows[:, None, 13:15]
    local = rays[:, :, None] * (rows[:, 12:13] * depths)[:, None, :, None]
    world: FloatArray = np.einsum("mij,mckj->mcki", T[:, :, :3], local) + T[:, None, None, :, 3]
    return world


def _sees(
    row: FloatArray, corners: FloatArray, points: NDArray[np.float32], near: float, far: float, radius: float
) -> bool:
    """Whether a ball of ``radius`` about one of the points [P, 3] may reach into the camera's frustum."""
    T, camera = row[:12].reshape(3, 4), row[13:_FIELD]
    local = (points - T[:, 3]) @ T[:, :3]
    z = local[:, 2]
    inside = (z > near - radius) & (z < far + radius)
    low, high = ((side - camera[2:]) / camera[:2] for side in (corners.min(axis=0), corners.max(axis=0)))
    for axis in (0, 1):
        # Distance from the side's plane, which goes through the camera's centre.
        inside &= local[:, axis] - low[axis] * z > -radius * np.hypot(1, low[axis])
        inside &= high[axis] * z - local[:, axis] > -radius * np.hypot(1, high[axis])
    return bool(inside.any())
