"""Depths with truth, gathered over a scene in memory that does not grow with its length."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.datasets.sequence import MatchedPixels
from stream_recon.app.results import FrameResult, Intrinsics
from stream_recon.app.transforms import FloatArray

MAX_PIXELS = 4_000_000


class PixelSample:
    """All pixels while they fit; beyond ``budget`` a uniform sample: each frame is halved, later ones come halved."""

    def __init__(self, budget: int = MAX_PIXELS) -> None:
        self._budget = budget
        self._halvings = 0
        self._count = 0
        self._rows: dict[int, NDArray[np.float32]] = {}
        """By frame: depth, true depth, and the pixel's x and y in the source [K, 4], in random order."""
        self._cameras: dict[int, Intrinsics] = {}

    def add(self, result: FrameResult, truth: MatchedPixels) -> None:
        """Take the pixels of a frame that have a true depth."""
        if not len(truth.z):
            return
        scale_x, scale_y = result.transform.scale
        left, top = result.transform.crop[:2]
        depth = result.depth[truth.rows, truth.columns]
        x, y = left + (truth.columns + 0.5) / scale_x, top + (truth.rows + 0.5) / scale_y
        # In random order any part from the front is a fair sample; the frame's number makes it the same each time.
        order = np.random.default_rng(result.index).permutation(len(truth.z))
        kept = order[: len(order) >> self._halvings]
        rows = np.stack([depth, truth.z, x, y], axis=1, dtype=np.float32, casting="same_kind")[kept]
        self._rows[result.index], self._cameras[result.index] = rows, result.intrinsics
        self._count += len(rows)
        while self._count > self._budget:
            self._halvings += 1
            self._rows = {index: rows[: len(rows) // 2].copy() for index, rows in self._rows.items()}
            self._count = sum(map(len, self._rows.values()))

    def depths(self) -> tuple[FloatArray, FloatArray] | None:
        """Depths and true depths [K]; None where there are none."""
        if not self._count:
            return None
        rows = np.concatenate(list(self._rows.values())).astype(np.float64)
        return rows[:, 0], rows[:, 1]

    def points(
        self, poses: Mapping[int, FloatArray], true_poses: Mapping[int, FloatArray], true_camera: Intrinsics
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """The same pixels [K, 3] as our points in our world and as true ones in the true world, of posed frames."""
        ours, true = [], []
        for index, rows in self._rows.items():
            if index in true_poses:
                ours.append(_unprojected(rows[:, 0], rows[:, 2:], self._cameras[index], poses[index]))
                true.append(_unprojected(rows[:, 1], rows[:, 2:], true_camera, true_poses[index]))
        return (np.concatenate(ours), np.concatenate(true)) if ours else None


def _unprojected(
    z: NDArray[np.float32], pixels: NDArray[np.float32], camera: Intrinsics, T_world_camera: FloatArray
) -> NDArray[np.float32]:
    centre, focal = np.array([camera.cx, camera.cy]), np.array([camera.fx, camera.fy])
    rays = np.column_stack([(pixels - centre) / focal, np.ones(len(z))])
    xyz: NDArray[np.float32] = ((z[:, None] * rays) @ T_world_camera[:3, :3].T + T_world_camera[:3, 3]).astype(
        np.float32
    )
    return xyz
