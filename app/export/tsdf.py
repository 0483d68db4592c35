"""Depth maps fused into a truncated signed distance, as Curless and Levoy (1996) do it, kept in blocks about surfaces.

A voxel's distance is along the optical axis, in units of the truncation: 1 before the surface, 0 on it, -1 behind.
Blocks are found by hashing (Niessner et al., 2013), so that memory follows the surface and not the space around it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import Intrinsics

BLOCK = 8
"""Voxels of a block along an axis."""
VOXELS = BLOCK**3
BITS = 20
"""Of a block's number along an axis."""
RAY_STRIDE = 2
"""Blocks are looked for along every so many-th pixel's ray: a block is several pixels wide."""

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class DepthView:
    """One frame's depth as a volume takes it in."""

    depth: FloatArray
    """[h, w] along the optical axis; 0 where nothing is known."""
    rgb: NDArray[np.uint8]  # [h, w, 3]
    camera: Intrinsics  # in pixels of ``depth``
    T_world_camera: NDArray[np.float64]  # [4, 4]


class Volume:
    """Fused distances and colours at lattice points ``voxel`` apart.

    Attributes:
        blocks: [N, 3] where the blocks lie, in blocks from the origin.
        distance: [N, 512] in units of the truncation.
        weight: [N, 512], 0 where no frame looked.
        seen: [N, 512] by how many frames, up to 255.
        rgb: [N, 512, 3].
        full: whether a block was left out, because there are as many as there may be.
    """

    def __init__(self, voxel: float, truncation: float, most_blocks: int) -> None:
        assert voxel > 0 and truncation > voxel
        self.voxel, self.truncation, self._most = voxel, truncation, most_blocks
        self._slots: dict[int, int] = {}
        self.full = False
        self.blocks = np.empty((0, 3), np.int64)
        self.distance = np.empty((0, VOXELS), np.float32)
        self.weight = np.empty((0, VOXELS), np.float32)
        self.seen = np.empty((0, VOXELS), np.uint8)
        self.rgb = np.empty((0, VOXELS, 3), np.float16)
        grid = np.stack(np.meshgrid(*[np.arange(BLOCK)] * 3, indexing="ij"), axis=-1)
        self._within = grid.reshape(-1, 3).astype(np.float64)

    def slot(self, block: tuple[int, int, int]) -> int | None:
        """Where a block's voxels are in the arrays; None where it is not there."""
        return self._slots.get(_key(*block))

    def integrate(self, view: DepthView) -> None:
        """Take in a frame. Points where its depth is 0 stay as they are."""
        slots = self._slots_about(view)
        if not len(slots):
            return
        T, k = invert_pose(view.T_world_camera), view.camera
        # Of all voxels of these blocks [B, 512] in the camera's axes: a block's corner and a place within it add up.
        step = self.voxel * T[:3, :3]
        corner = self.blocks[slots] @ (BLOCK * step).T + T[:3, 3]
        within = self._within @ step.T
        x, y, z = (np.add.outer(corner[:, i], within[:, i]).astype(np.float32) for i in range(3))
        height, width = view.depth.shape
        with np.errstate(divide="ignore", invalid="ignore"):
            column = np.float32(k.fx) * x / z + np.float32(k.cx)
            row = np.float32(k.fy) * y / z + np.float32(k.cy)
            shown = (z > 0) & (column >= 0) & (column < width) & (row >= 0) & (row < height)
        at = np.flatnonzero(shown)
        pixel = row.ravel()[at].astype(np.intp) * width + column.ravel()[at].astype(np.intp)
        depth = view.depth.ravel()[pixel]
        distance = (depth - z.ravel()[at]) * np.float32(1 / self.truncation)
        taken = (depth > 0) & (distance > -1)
        at, pixel, depth, distance = at[taken], pixel[taken], depth[taken], distance[taken]
        place = slots[at // VOXELS] * VOXELS + at % VOXELS
        # Errors of depth grow with it, and of what lies behind a surface its front says less and less.
        share = np.where(distance < 0, 1 + distance, np.float32(1)) / (depth * depth)
        self._blend(place, np.minimum(distance, 1), view.rgb.reshape(-1, 3)[pixel], share.astype(np.float32))

    def _blend(self, place: NDArray[np.intp], distance: FloatArray, rgb: NDArray[np.uint8], weight: FloatArray) -> None:
        sums, means, counts = self.weight.reshape(-1), self.distance.reshape(-1), self.seen.reshape(-1)
        colours = self.rgb.reshape(-1, 3)
        total = sums[place] + weight
        share = weight / total
        means[place] += share * (distance - means[place])
        old = colours[place].astype(np.float32)
        colours[place] = old + share[:, None] * (rgb - old)
        sums[place] = total
        counts[place] = np.minimum(counts[place], 254) + 1

    def _slots_about(self, view: DepthView) -> NDArray[np.intp]:
        """Numbers of the blocks that the truncation about a frame's surfaces touches; makes those that are missing."""
        depth = view.depth[::RAY_STRIDE, ::RAY_STRIDE]
        rows, columns = np.nonzero(depth > 0)
        z = depth[rows, columns].astype(np.float64)
        k, T = view.camera, view.T_world_camera
        x = (columns * RAY_STRIDE + 0.5 - k.cx) / k.fx
        y = (rows * RAY_STRIDE + 0.5 - k.cy) / k.fy
        rays = np.stack([x, y, np.ones_like(x)], axis=1) @ T[:3, :3].T
        side = BLOCK * self.voxel
        steps = max(2, int(np.ceil(2 * self.truncation / (0.7 * side))) + 1)
        keys = []
        for offset in np.linspace(-self.truncation, self.truncation, steps):
            cells = np.floor((rays * (z + offset)[:, None] + T[:3, 3]) / side).astype(np.int64)
            near = (np.abs(cells) < 1 << (BITS - 1)).all(axis=1)
            keys.append(np.unique(_keys(cells[near])))
        wanted = np.unique(np.concatenate(keys))
        slots = np.array([self._slots.get(key, -1) for key in wanted.tolist()], np.intp)
        new = wanted[slots < 0]
        room = self._most - len(self._slots)
        if len(new) > room:
            self.full, new = True, new[:room]
        if len(new):
            self._make(new)
            slots = np.array([self._slots.get(key, -1) for key in wanted.tolist()], np.intp)
        return slots[slots >= 0]

    def _make(self, keys: NDArray[np.int64]) -> None:
        count = len(self._slots)
        self._slots.update(zip(keys.tolist(), range(count, count + len(keys)), strict=True))
        if count + len(keys) > len(self.blocks):
            room = min(max(2 * len(self.blocks), count + len(keys), 1024), self._most)
            for name in ("blocks", "distance", "weight", "seen", "rgb"):
                old = getattr(self, name)
                grown = np.zeros((room, *old.shape[1:]), old.dtype)
                grown[:count] = old[:count]
                setattr(self, name, grown)
        half = 1 << (BITS - 1)
        cells = np.stack([keys >> (2 * BITS), keys >> BITS, keys], axis=1) & ((1 << BITS) - 1)
        self.blocks[count : count + len(keys)] = cells - half

    @property
    def cells(self) -> NDArray[np.int64]:
        """[N, 3] where the blocks lie, in blocks."""
        return self.blocks[: len(self._slots)]


def _keys(cells: NDArray[np.int64]) -> NDArray[np.int64]:
    shifted = cells + (1 << (BITS - 1))
    return np.asarray((shifted[:, 0] << (2 * BITS)) | (shifted[:, 1] << BITS) | shifted[:, 2])


def _key(x: int, y: int, z: int) -> int:
    half = 1 << (BITS - 1)
    return ((x + half) << (2 * BITS)) | ((y + half) << BITS) | (z + half)
