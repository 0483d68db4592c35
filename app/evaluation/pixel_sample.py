"""Sample of pixels with true depth over a scene, in memory that does not grow with its length."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import depth_factors
from stream_recon.app.core.ground_truth import MatchedPixels
from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.core.types import FrameResult, FrameRevision, ImageTransform, Intrinsics

MAX_PIXELS = 4_000_000
"""Most pixels of a sample, at 16 bytes each: 64 MB."""


@dataclass(frozen=True)
class SampledPixels:
    """Network pixels [K] of one frame with true depth."""

    depth: NDArray[np.float32]
    """Depth before any revision."""
    truth: FloatArray
    """True depth."""
    rows: NDArray[np.uint16]
    columns: NDArray[np.uint16]
    transform: ImageTransform

    def __len__(self) -> int:
        return len(self.truth)

    def subset(self, chosen: NDArray[np.intp]) -> "SampledPixels":
        """The pixels with the given indices."""
        return SampledPixels(
            self.depth[chosen], self.truth[chosen], self.rows[chosen], self.columns[chosen], self.transform
        )

    def revised(self, frame: FrameRevision) -> FloatArray:
        """Depths [K] after a revision."""
        depth = self.depth.astype(np.float64) * frame.depth_scale
        if frame.depth_field is None:
            return depth
        width, height = self.transform.network_size
        return depth * depth_factors(frame.depth_field, (height, width))[self.rows, self.columns]

    @property
    def positions(self) -> NDArray[np.float32]:
        """Pixel centres [K, 2], x and y in pixels of the source image."""
        scale_x, scale_y = self.transform.scale
        left, top = self.transform.crop[:2]
        x, y = left + (self.columns + 0.5) / scale_x, top + (self.rows + 0.5) / scale_y
        return np.stack([x, y], axis=1, dtype=np.float32, casting="same_kind")


class PixelSample:
    """All pixels up to ``budget``, then a uniform sample: the pixels of present and later frames are halved."""

    def __init__(self, budget: int = MAX_PIXELS) -> None:
        self._budget = budget
        self._halvings = 0
        self._count = 0
        self._frames: dict[int, SampledPixels] = {}
        """Pixels by frame: in image order while all are kept, then in random order."""

    def add(self, result: FrameResult, truth: MatchedPixels) -> None:
        """Add the pixels of a frame with true depth."""
        if not len(truth.z):
            return
        depth = result.depth[truth.rows, truth.columns]
        rows, columns = truth.rows.astype(np.uint16), truth.columns.astype(np.uint16)
        pixels = SampledPixels(depth, truth.z, rows, columns, result.transform)
        if self._halvings:
            pixels = pixels.subset(_random_order(result.index, pixels)[: len(pixels) >> self._halvings])
        self._frames[result.index] = pixels
        self._count += len(pixels)
        while self._count > self._budget:
            self._halve()

    def _halve(self) -> None:
        for index, pixels in self._frames.items():
            order = np.arange(len(pixels)) if self._halvings else _random_order(index, pixels)
            self._frames[index] = pixels.subset(order[: len(pixels) // 2])
        self._halvings += 1
        self._count = sum(map(len, self._frames.values()))

    @property
    def counts(self) -> list[int]:
        """Number of pixels of each frame, in the order of `depths`."""
        return [len(pixels) for pixels in self._frames.values()]

    def depths(
        self, estimate: Callable[[int, SampledPixels], NDArray[np.floating]]
    ) -> tuple[FloatArray, FloatArray] | None:
        """Estimated and true depths [K] of all pixels; None where there are none.

        ``estimate`` gives the depths of a frame's pixels by the frame's index.
        """
        if not self._count:
            return None
        estimated = np.concatenate([estimate(index, pixels) for index, pixels in self._frames.items()])
        truth = np.concatenate([pixels.truth for pixels in self._frames.values()])
        return estimated.astype(np.float64), truth

    def points(
        self, frames: Mapping[int, FrameRevision], true_poses: Mapping[int, FloatArray], true_camera: Intrinsics
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """Corresponding points [K, 3] of frames with a true pose: estimated and true ones, each in their own world.

        None where there are none.
        """
        estimated, true = [], []
        for index, pixels in self._frames.items():
            frame = frames[index]
            if index not in true_poses or frame.intrinsics is None:
                continue
            # In random order every n-th point is a uniform sample.
            shuffled = pixels if self._halvings else pixels.subset(_random_order(index, pixels))
            depth, truth = shuffled.revised(frame).astype(np.float32), shuffled.truth.astype(np.float32)
            estimated.append(_unprojected(depth, shuffled.positions, frame.intrinsics, frame.T_world_camera))
            true.append(_unprojected(truth, shuffled.positions, true_camera, true_poses[index]))
        return (np.concatenate(estimated), np.concatenate(true)) if estimated else None


def _random_order(index: int, pixels: SampledPixels) -> NDArray[np.intp]:
    """Indices of a frame's pixels in random order, the same each time; the first n are a uniform sample."""
    return np.random.default_rng(index).permutation(len(pixels))


def _unprojected(
    z: NDArray[np.float32], pixels: NDArray[np.float32], camera: Intrinsics, T_world_camera: FloatArray
) -> NDArray[np.float32]:
    centre, focal = np.array([camera.cx, camera.cy]), np.array([camera.fx, camera.fy])
    rays = np.column_stack([(pixels - centre) / focal, np.ones(len(z))])
    return np.asarray((z[:, None] * rays) @ T_world_camera[:3, :3].T + T_world_camera[:3, 3], np.float32)
