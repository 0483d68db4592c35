"""Depths with truth, gathered over a scene in memory that does not grow with its length."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import depth_factors
from stream_recon.app.core.ground_truth import MatchedPixels
from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.core.types import FrameResult, FrameRevision, ImageTransform, Intrinsics

MAX_PIXELS = 4_000_000
"""16 bytes each."""


@dataclass(frozen=True)
class SampledPixels:
    """Network pixels [K] of one frame that have a true depth."""

    depth: NDArray[np.float32]
    """Depth as first given out."""
    truth: FloatArray
    rows: NDArray[np.uint16]
    columns: NDArray[np.uint16]
    transform: ImageTransform

    def __len__(self) -> int:
        return len(self.truth)

    def taken(self, places: NDArray[np.intp]) -> "SampledPixels":
        """The pixels at these places of the arrays."""
        return SampledPixels(
            self.depth[places], self.truth[places], self.rows[places], self.columns[places], self.transform
        )

    def revised(self, frame: FrameRevision) -> FloatArray:
        """Depths [K] as a revision has them."""
        depth = self.depth.astype(np.float64) * frame.depth_scale
        if frame.depth_field is None:
            return depth
        width, height = self.transform.network_size
        return depth * depth_factors(frame.depth_field, (height, width))[self.rows, self.columns]

    @property
    def positions(self) -> NDArray[np.float32]:
        """Their centres [K, 2] in pixels of the source, x and y."""
        scale_x, scale_y = self.transform.scale
        left, top = self.transform.crop[:2]
        x, y = left + (self.columns + 0.5) / scale_x, top + (self.rows + 0.5) / scale_y
        return np.stack([x, y], axis=1, dtype=np.float32, casting="same_kind")


class PixelSample:
    """All pixels while they fit; beyond ``budget`` a uniform sample: each frame is halved, later ones come halved."""

    def __init__(self, budget: int = MAX_PIXELS) -> None:
        self._budget = budget
        self._halvings = 0
        self._count = 0
        self._frames: dict[int, SampledPixels] = {}
        """Pixels of each frame: in the image's order while all are here, then in random order."""

    def add(self, result: FrameResult, truth: MatchedPixels) -> None:
        """Take the pixels of a frame that have a true depth."""
        if not len(truth.z):
            return
        depth = result.depth[truth.rows, truth.columns]
        rows, columns = truth.rows.astype(np.uint16), truth.columns.astype(np.uint16)
        pixels = SampledPixels(depth, truth.z, rows, columns, result.transform)
        if self._halvings:
            pixels = pixels.taken(_shuffled(result.index, pixels)[: len(pixels) >> self._halvings])
        self._frames[result.index] = pixels
        self._count += len(pixels)
        while self._count > self._budget:
            self._halve()

    def _halve(self) -> None:
        for index, pixels in self._frames.items():
            order = np.arange(len(pixels)) if self._halvings else _shuffled(index, pixels)
            self._frames[index] = pixels.taken(order[: len(pixels) // 2])
        self._halvings += 1
        self._count = sum(map(len, self._frames.values()))

    def depths(
        self, estimate: Callable[[int, SampledPixels], NDArray[np.floating]]
    ) -> tuple[FloatArray, FloatArray] | None:
        """Depths and true depths [K] of all pixels; None where there are none.

        ``estimate`` gives the depths of a frame's pixels, by the frame's index.
        """
        if not self._count:
            return None
        estimated = np.concatenate([estimate(index, pixels) for index, pixels in self._frames.items()])
        truth = np.concatenate([pixels.truth for pixels in self._frames.values()])
        return estimated.astype(np.float64), truth

    def points(
        self, frames: Mapping[int, FrameRevision], true_poses: Mapping[int, FloatArray], true_camera: Intrinsics
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """The same pixels [K, 3] as our points in our world and as true ones in the true world, of posed frames."""
        ours, true = [], []
        for index, pixels in self._frames.items():
            frame = frames[index]
            if index not in true_poses or frame.intrinsics is None:
                continue
            # In random order any part of a frame is a fair sample of it.
            shuffled = pixels if self._halvings else pixels.taken(_shuffled(index, pixels))
            depth, truth = shuffled.revised(frame).astype(np.float32), shuffled.truth.astype(np.float32)
            ours.append(_unprojected(depth, shuffled.positions, frame.intrinsics, frame.T_world_camera))
            true.append(_unprojected(truth, shuffled.positions, true_camera, true_poses[index]))
        return (np.concatenate(ours), np.concatenate(true)) if ours else None


def _shuffled(index: int, pixels: SampledPixels) -> NDArray[np.intp]:
    """Places of a frame's pixels in random order, the same each time: any part from the front is a fair sample."""
    order: NDArray[np.intp] = np.random.default_rng(index).permutation(len(pixels))
    return order


def _unprojected(
    z: NDArray[np.float32], pixels: NDArray[np.float32], camera: Intrinsics, T_world_camera: FloatArray
) -> NDArray[np.float32]:
    centre, focal = np.array([camera.cx, camera.cy]), np.array([camera.fx, camera.fy])
    rays = np.column_stack([(pixels - centre) / focal, np.ones(len(z))])
    xyz: NDArray[np.float32] = ((z[:, None] * rays) @ T_world_camera[:3, :3].T + T_world_camera[:3, 3]).astype(
        np.float32
    )
    return xyz
