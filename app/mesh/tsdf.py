"""Fusion of depth maps into a truncated signed distance function (TSDF; Curless and Levoy 1996) with voxel hashing.

A voxel's distance is along the optical axis, in units of the truncation: 1 in front of the surface, 0 on it, -1 behind.
Only blocks near surfaces are stored, found by a hash table (Niessner et al., 2013).
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.cores import usable_cores
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import Intrinsics

BLOCK = 8
"""Voxels of a block along each axis, as in Niessner et al."""
VOXELS = BLOCK**3
"""Voxels of a block."""
BITS = 20
"""Bits of a block's coordinate along an axis, so that three fit into 64."""
RAY_STRIDE = 2
"""Pixels between rays along which blocks are allocated: a block is several pixels wide."""
MIN_BLOCKS = 64
"""Blocks that are worth a thread."""
SAME_SURFACE = 1.05
"""Ratio of depths of neighbouring pixels below which they show one surface."""

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class FusionView:
    """Depth, colours and camera of one frame for `Volume.integrate`."""

    depth: NDArray[np.floating]  # [h, w] along the optical axis; 0 where unknown
    rgb: NDArray[np.uint8]  # [h, w, 3]
    camera: Intrinsics  # in pixels of ``depth``
    T_world_camera: NDArray[np.float64]  # [4, 4]
    weight: FloatArray | None = None  # [h, w] of each pixel; None: 1
    band: FloatArray | None = None  # [h, w] depth behind the surface that a pixel fills, in truncations; None: 1
    fade: FloatArray | None = None  # [h, w] share of a pixel's weight that is lost up to the band's end; None: 1
    confirmed: NDArray[np.bool_] | None = None  # [h, w] pixels whose depth stereo confirmed; None: it is not known


class Volume:
    """TSDF volume: distances and colours at lattice points with spacing ``voxel``.

    Attributes:
        blocks: [N, 3] block coordinates, see `cells`.
        distance: [N, 512] in units of the truncation.
        weight: [N, 512], 0 without observations.
        frames: [N, 512] number of frames that observed a voxel, up to 255.
        rgb: [N, 512, 3].
        full: whether a block could not be allocated, because there are ``max_blocks``.
    """

    def __init__(
        self, voxel: float, truncation: float, max_blocks: int, pool: ThreadPoolExecutor | None = None
    ) -> None:
        """``pool``: shares the blocks among its threads."""
        assert voxel > 0 and truncation > voxel
        self._pool = pool
        self.voxel, self.truncation, self._max_blocks = voxel, truncation, max_blocks
        self._slots: dict[int, int] = {}
        self.full = False
        self.blocks = np.empty((0, 3), np.int64)
        self.distance = np.empty((0, VOXELS), np.float32)
        self.weight = np.empty((0, VOXELS), np.float32)
        self.frames = np.empty((0, VOXELS), np.uint8)
        self.rgb = np.empty((0, VOXELS, 3), np.float16)
        grid = np.stack(np.meshgrid(*[np.arange(BLOCK)] * 3, indexing="ij"), axis=-1)
        self._offsets = grid.reshape(-1, 3).astype(np.float64)

    def slot(self, block: tuple[int, int, int]) -> int | None:
        """Row of a block in the arrays; None where it is not allocated."""
        return self._slots.get(_key(*block))

    def integrate(self, view: FusionView, slots: NDArray[np.intp] | None = None) -> None:
        """Add a frame; its pixels with depth 0 change nothing. ``slots``: what `allocate` returned for it."""
        surfaces = _Surfaces.of(view.depth)
        if slots is None:
            slots = self.allocate(view)
        self._grow()
        if self._pool is None:
            return self._integrate(view, surfaces, slots)
        parts = np.array_split(slots, max(1, min(usable_cores(), len(slots) // MIN_BLOCKS)))
        list(self._pool.map(lambda some: self._integrate(view, surfaces, some), parts))

    def _integrate(self, view: FusionView, surfaces: "_Surfaces", slots: NDArray[np.intp]) -> None:
        """Add a frame to the blocks in these rows."""
        T, k = invert_pose(view.T_world_camera), view.camera
        # Camera coordinates of all voxels of these blocks [B, 512]: the block's corner plus the offset within it.
        step = self.voxel * T[:3, :3]
        corner = self.blocks[slots] @ (BLOCK * step).T + T[:3, 3]
        offset = self._offsets @ step.T
        x, y, z = (np.add.outer(corner[:, i], offset[:, i]).astype(np.float32) for i in range(3))
        height, width = view.depth.shape
        with np.errstate(divide="ignore", invalid="ignore"):
            column = np.float32(k.fx) * x / z + np.float32(k.cx)
            row = np.float32(k.fy) * y / z + np.float32(k.cy)
            visible = (z > 0) & (column >= 0) & (column < width) & (row >= 0) & (row < height)
        index = np.flatnonzero(visible)
        column, row, z = column.ravel()[index], row.ravel()[index], z.ravel()[index]
        pixel = row.astype(np.int32) * np.int32(width) + column.astype(np.int32)
        depth = view.depth.ravel()[pixel].astype(np.float32)
        # Between pixels depth matters near the surface alone.
        near = np.flatnonzero(np.abs(depth - z) < np.float32(2 * self.truncation))
        depth[near] = surfaces.depth(depth[near], column[near], row[near])
        distance = (depth - z) * np.float32(1 / self.truncation)
        band = np.ones(len(pixel), np.float32) if view.band is None else view.band.reshape(-1)[pixel]
        observed = (depth > 0) & (distance > -band)
        index, pixel, depth, distance = index[observed], pixel[observed], depth[observed], distance[observed]
        voxel = slots[index // VOXELS] * VOXELS + index % VOXELS
        # The variance of depth grows with its square; behind the surface the weight falls up to the band's end.
        fade = np.float32(1) if view.fade is None else view.fade.reshape(-1)[pixel]
        weight = (1 + fade * np.minimum(distance / band[observed], 0)) / (depth * depth)
        if view.weight is not None:
            weight *= view.weight.reshape(-1)[pixel]
        self._average(
            voxel, np.minimum(distance, np.float32(1)), view.rgb.reshape(-1, 3)[pixel], weight.astype(np.float32)
        )

    def _average(
        self, voxel: NDArray[np.intp], distance: FloatArray, rgb: NDArray[np.uint8], weight: FloatArray
    ) -> None:
        """Add observations [K] of voxels to their weighted means."""
        sums, means, counts = self.weight.reshape(-1), self.distance.reshape(-1), self.frames.reshape(-1)
        colours = self.rgb.reshape(-1, 3)
        total = sums[voxel] + weight
        share = weight / total
        means[voxel] += share * (distance - means[voxel])
        old = colours[voxel].astype(np.float32)
        colours[voxel] = old + share[:, None] * (rgb - old)
        sums[voxel] = total
        counts[voxel] = np.minimum(counts[voxel], 254) + 1

    def allocate(self, view: FusionView) -> NDArray[np.intp]:
        """Rows of the blocks within the truncation distance of a frame's surfaces; allocates missing ones."""
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
            keys.append(np.unique(_key(*cells[near].T)))
        near_blocks = np.unique(np.concatenate(keys))
        slots = np.array([self._slots.get(key, -1) for key in near_blocks.tolist()], np.intp)
        new = near_blocks[slots < 0]
        room = self._max_blocks - len(self._slots)
        if len(new) > room:
            self.full, new = True, new[:room]
        if len(new):
            count = len(self._slots)
            self._slots.update(zip(new.tolist(), range(count, count + len(new)), strict=True))
            slots = np.array([self._slots.get(key, -1) for key in near_blocks.tolist()], np.intp)
        return slots[slots >= 0]

    def _grow(self) -> None:
        """Make room in the arrays for the blocks that were allocated since."""
        count, total = len(self.blocks), len(self._slots)
        if count == total:
            return
        for name in ("blocks", "distance", "weight", "frames", "rgb"):
            old = getattr(self, name)
            grown = np.zeros((total, *old.shape[1:]), old.dtype)
            grown[:count] = old
            setattr(self, name, grown)
        keys = np.fromiter(islice(self._slots, count, None), np.int64)
        half = 1 << (BITS - 1)
        cells = np.stack([keys >> (2 * BITS), keys >> BITS, keys], axis=1) & ((1 << BITS) - 1)
        self.blocks[count:] = cells - half

    @property
    def cells(self) -> NDArray[np.int64]:
        """Coordinates [N, 3] of the allocated blocks, in blocks."""
        self._grow()
        return self.blocks


@dataclass(frozen=True)
class _Surfaces:
    """Inverse depth between each four pixels, which is linear where these are of one surface."""

    is_one: NDArray[np.bool_]  # [(h - 1) * (w - 1)]
    terms: FloatArray  # [(h - 1) * (w - 1), 4] of 1, x, y and xy
    size: tuple[int, int]  # height, width

    @staticmethod
    def of(depth: NDArray[np.floating]) -> "_Surfaces":
        with np.errstate(divide="ignore", invalid="ignore"):
            inverse = (1 / depth).astype(np.float32)
            a, b, c, d = inverse[:-1, :-1], inverse[:-1, 1:], inverse[1:, :-1], inverse[1:, 1:]
            largest, least = (f(f(a, b), f(c, d)) for f in (np.maximum, np.minimum))
            # Infinite where depth is unknown. Four terms together are read faster than from four places.
            terms = np.stack([a, b - a, c - a, a - b - c + d], axis=-1).reshape(-1, 4)
        return _Surfaces((largest < SAME_SURFACE * least).reshape(-1), terms, depth.shape)

    def depth(self, nearest: FloatArray, column: FloatArray, row: FloatArray) -> FloatArray:
        """Depth [K] at points of the image: between pixels of one surface, and else that of the ``nearest`` [K]."""
        height, width = self.size
        if min(height, width) < 2:
            return nearest
        # Pixels have their centres at halves.
        x, y = column - np.float32(0.5), row - np.float32(0.5)
        left, above = x.astype(np.int32).clip(0, width - 2), y.astype(np.int32).clip(0, height - 2)
        block = above * np.int32(width - 1) + left
        between = np.flatnonzero(self.is_one[block])
        x, y = (x - left)[between], (y - above)[between]
        first, along, down, both = self.terms[block[between]].T
        result = nearest.copy()
        result[between] = 1 / (first + x * along + y * (down + x * both))
        return result


def _key(x: Any, y: Any, z: Any) -> Any:
    """Key of a block, or keys of blocks, with these coordinates."""
    half = 1 << (BITS - 1)
    return ((x + half) << (2 * BITS)) | ((y + half) << BITS) | (z + half)
