"""Fusion of depth maps into a truncated signed distance function (TSDF; Curless and Levoy 1996) with voxel hashing.

A voxel's distance is that from the plane through the pixel's surface, in units of the truncation: 1 in front of the
surface, 0 on it, -1 behind. Along the optical axis alone, floors and walls that are seen from aside would get gaps: the
next voxel behind them is several truncations away.
Only blocks near surfaces are stored, found by a hash table (Niessner et al., 2013).
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

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
CHUNK = 256
"""Blocks that are updated at a time: their arrays fit into a cache."""
COLOUR_STEPS = 256
"""Steps of a level of a stored colour: a mean of many frames would stay at whole levels."""
TINY = np.float32(1e-9)
"""Least depth that pixels are computed with, so that they are finite."""
SAME_SURFACE = 1.05
"""Ratio of depths of neighbouring pixels below which they show one surface."""
SLOPE_WINDOW = 0.03
"""Window in which slopes of surfaces are averaged, as a share of an image's longer side."""
MIN_INCIDENCE = 0.5
"""Least of the `incidences`: with less, more is covered at the wrong depth."""
OUTSIDE = np.float32(3e4)
"""Bound of the coordinates of pixels, as OpenCV has it."""

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
    incidence: FloatArray | None = None  # [h, w], see `incidences`; None: 1
    confirmed: NDArray[np.bool_] | None = None  # [h, w] pixels whose depth stereo confirmed; None: it is not known


class Volume:
    """TSDF volume: distances and colours at lattice points with spacing ``voxel``.

    Attributes:
        blocks: [N, 3] block coordinates, see `cells`.
        distance: [N, 512] in units of the truncation.
        weight: [N, 512], 0 without observations.
        frames: [N, 512] number of frames that observed a voxel, up to 255.
        rgb: [N, 3, 512] in steps, see `COLOUR_STEPS`.
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
        self.rgb = np.empty((0, 3, VOXELS), np.uint16)
        grid = np.stack(np.meshgrid(*[np.arange(BLOCK)] * 3, indexing="ij"), axis=-1)
        self._offsets = grid.reshape(-1, 3).astype(np.float64)

    def slot(self, block: tuple[int, int, int]) -> int | None:
        """Row of a block in the arrays; None where it is not allocated."""
        return self._slots.get(_key(*block))

    def integrate(self, view: FusionView, slots: NDArray[np.intp] | None = None) -> None:
        """Add a frame; its pixels with depth 0 change nothing. ``slots``: what `allocate` returned for it."""
        images = _Images.of(view)
        if slots is None:
            slots = self.allocate(view)
        self._grow()
        chunks = [slots[first : first + CHUNK] for first in range(0, len(slots), CHUNK)]
        some = map if self._pool is None else self._pool.map
        list(some(lambda chunk: self._integrate(view, images, chunk), chunks))

    def _integrate(self, view: FusionView, images: "_Images", slots: NDArray[np.intp]) -> None:
        """Add a frame to the blocks in these rows."""
        T, k = invert_pose(view.T_world_camera), view.camera
        # Camera coordinates of all voxels of these blocks [B, 512]: the block's corner plus the offset within it.
        step = self.voxel * T[:3, :3]
        corner = (self.blocks[slots] @ (BLOCK * step).T + T[:3, 3]).astype(np.float32)
        offset = (self._offsets @ step.T).astype(np.float32)
        x, y, z = (np.add.outer(corner[:, i], offset[:, i]) for i in range(3))
        x[z <= 0] = -np.inf
        inverse = np.reciprocal(np.maximum(z, TINY))
        # OpenCV has the centres of pixels at whole numbers.
        column = (np.float32(k.fx) * x * inverse + np.float32(k.cx - 0.5)).clip(-OUTSIDE, OUTSIDE)
        row = (np.float32(k.fy) * y * inverse + np.float32(k.cy - 0.5)).clip(-OUTSIDE, OUTSIDE)
        depth, weight, reach, fade, incidence, rgb = images.at(column, row)
        distance = (depth - z) * incidence * np.float32(1 / self.truncation)
        # The weight falls behind the surface up to the band's end.
        behind = distance * reach
        observed = (depth > 0) & (behind > -1)
        weight *= observed * (1 + fade * np.minimum(behind, 0))
        total = self.weight[slots] + weight
        share = np.divide(weight, total, out=np.zeros_like(weight), where=observed)
        self.weight[slots] = total
        self.distance[slots] += share * (np.minimum(distance, np.float32(1)) - self.distance[slots])
        frames = self.frames[slots]
        self.frames[slots] = frames + (observed & (frames < 255))
        for channel, levels in enumerate(cv2.split(rgb)):
            mean = self.rgb[slots, channel].astype(np.float32)
            self.rgb[slots, channel] = mean + share * (np.float32(COLOUR_STEPS) * levels - mean) + np.float32(0.5)

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
        stretch = 1.0 if view.incidence is None else 1 / view.incidence[::RAY_STRIDE, ::RAY_STRIDE][rows, columns]
        for offset in np.linspace(-self.truncation, self.truncation, steps):
            cells = np.floor((rays * (z + offset * stretch)[:, None] + T[:3, 3]) / side).astype(np.int64)
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
class _Images:
    """What voxels look up in a frame, [h, w] each."""

    depth: FloatArray
    weight: FloatArray
    """Divided by the square of the depth, with which its variance grows."""
    reach: FloatArray
    """Inverse of the band."""
    fade: FloatArray
    incidence: FloatArray
    """See `incidences`."""
    rgb: NDArray[np.uint8]  # [h, w, 3]
    inverse: FloatArray
    """Inverse depth, which is linear between pixels of one surface."""
    is_one: NDArray[np.uint8]
    """1 where this pixel, the next ones to the right and below, and the one between these show one surface."""

    @staticmethod
    def of(view: FusionView) -> "_Images":
        depth = np.ascontiguousarray(view.depth, np.float32)
        ones = np.ones_like(depth)
        given = view.weight, view.band, view.fade, view.incidence
        weight, band, fade, incidence = (ones if image is None else image for image in given)
        with np.errstate(divide="ignore"):
            inverse = np.where(depth > 0, 1 / depth, np.float32(0))
        a, b, c, d = inverse[:-1, :-1], inverse[:-1, 1:], inverse[1:, :-1], inverse[1:, 1:]
        largest, least = (f(f(a, b), f(c, d)) for f in (np.maximum, np.minimum))
        is_one = np.zeros(depth.shape, np.uint8)
        is_one[:-1, :-1] = largest < SAME_SURFACE * least
        return _Images(
            depth, weight * np.square(inverse), np.float32(1) / band, fade, incidence, view.rgb, inverse, is_one
        )

    def at(self, column: FloatArray, row: FloatArray) -> list[NDArray[Any]]:
        """Depth, weight, reach, fade, incidence [B, N] and colour [B, N, 3] at points; 0 outside the image.

        They are those of the nearest pixels, but the depth between pixels of one surface is that of the surface.
        """
        zero, half = cv2.BORDER_CONSTANT, np.float32(0.5)
        places = cv2.convertMaps(column, row, cv2.CV_16SC2, nninterpolation=True)
        images = self.depth, self.weight, self.reach, self.fade, self.incidence, self.rgb
        values = [cv2.remap(image, *places, cv2.INTER_NEAREST, borderMode=zero) for image in images]
        is_one = cv2.remap(self.is_one, column - half, row - half, cv2.INTER_NEAREST, borderMode=zero)
        inverse = cv2.remap(self.inverse, column, row, cv2.INTER_LINEAR, borderMode=zero)
        np.divide(np.float32(1), inverse, out=values[0], where=is_one > 0)
        return values


def incidences(depth: NDArray[np.floating], camera: Intrinsics) -> FloatArray:
    """Distance [h, w] from each pixel's surface, along its normal, per distance along the optical axis, at most 1.

    It is computed from inverse depth, which is linear in the image of a plane; 1 where depth around is unknown.
    """
    height, width = depth.shape
    side = round(SLOPE_WINDOW * max(height, width)) // 2 * 2 + 1
    step = side // 2 + 1
    known = (depth > 0).astype(np.float32)
    share = cv2.blur(known, (side, side))
    mean = cv2.blur(known / np.maximum(depth, TINY).astype(np.float32), (side, side)) / np.maximum(share, 0.5)
    mean[share < 0.5] = np.nan
    across, down = np.full((2, height, width), np.nan, np.float32)
    across[:, step:-step] = (mean[:, 2 * step :] - mean[:, : -2 * step]) * (camera.fx / (2 * step))
    down[step:-step] = (mean[2 * step :] - mean[: -2 * step]) * (camera.fy / (2 * step))
    x = (np.arange(width) + 0.5 - camera.cx) / camera.fx
    y = (np.arange(height)[:, None] + 0.5 - camera.cy) / camera.fy
    along = mean - x * across - y * down
    cosine = mean / np.sqrt(across * across + down * down + along * along)
    return np.where(np.isfinite(cosine), cosine.clip(MIN_INCIDENCE, 1), 1).astype(np.float32)


def _key(x: Any, y: Any, z: Any) -> Any:
    """Key of a block, or keys of blocks, with these coordinates."""
    half = 1 << (BITS - 1)
    return ((x + half) << (2 * BITS)) | ((y + half) << BITS) | (z + half)
