"""Some of a result's points, spread evenly over all of them.

A result's points in the order in which its frames brought them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import frame_points
from stream_recon.app.core.ply import Vertices, header
from stream_recon.app.core.transforms import transform_points
from stream_recon.app.core.voxels import VoxelTable
from stream_recon.app.export.job import ExportJob
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.files import stored_points
from stream_recon.app.result.folder import result_of
from stream_recon.configs.errors import OutputError


def some_points(folder: Path, most: int) -> Vertices:
    """At most ``most`` points of the cloud, in its order. Raises OutputError where the file is missing or damaged."""
    return subsample(stored_points(folder / POINTS_NAME), most)


def subsample(vertices: Vertices, most: int) -> Vertices:
    """At most ``most`` of the points: one from each of so many equal parts of the list."""
    return np.array(vertices) if len(vertices) <= most else vertices[spread_indices(len(vertices), most)]


def spread_indices(count: int, most: int) -> NDArray[np.intp]:
    """Ascending numbers below ``count``, ``most`` of them or all.

    Drawn within each part: equal steps would fall into step with an image's rows, and show.
    """
    if count <= most:
        return np.arange(count)
    draw = np.random.default_rng(0).random(most)
    return ((np.arange(most) + draw) * (count / most)).astype(np.intp).clip(0, count - 1)


def write_points(path: Path, vertices: Vertices) -> None:
    """A PLY file. OSError where the system refuses."""
    with path.open("wb") as file:
        file.write(header(len(vertices)))
        file.write(np.ascontiguousarray(vertices).view(np.uint8).data)


@dataclass(frozen=True)
class OrderedPoints:
    """Points [N], those of each camera after those of the ones before it."""

    xyz: NDArray[np.float32]  # [N, 3]
    rgb: NDArray[np.uint8]  # [N, 3]
    cameras: Sequence[Camera]
    upto: NDArray[np.int64]
    """[n] how many points are there once each camera has brought its own."""
    spacing: float
    """About how far they are from one another, where there are many."""

    @property
    def extent(self) -> float:
        """Diagonal of what lies within the middle nine tenths of them."""
        low, high = self._bounds
        return float(np.linalg.norm(high - low)) or 1.0

    @property
    def centre(self) -> NDArray[np.float64]:
        """Middle [3] of the same: what was seen from near has many points, but is no larger for that."""
        return np.asarray(self._bounds.mean(axis=0), np.float64)

    @property
    def _bounds(self) -> NDArray[np.float64]:
        return np.asarray(np.quantile(self.xyz, [0.05, 0.95], axis=0), np.float64)


def ordered_points(job: ExportJob, most: int, on_frame: Callable[[int, int], None]) -> OrderedPoints:
    """The sure points of keyframes, one a voxel; frames that cannot be read bring none.

    Args:
        most: points at most; of a scene with more every second is left out, as often as need be.
        on_frame: told how many frames are read, of how many.

    Raises:
        StreamReconError: no frames, or no points in them.
    """
    cameras, config = job.cameras("keyframes"), job.result.points
    table = VoxelTable(config.voxel)
    xyz: list[NDArray[np.float32]] = []  # of each camera
    rgb: list[NDArray[np.uint8]] = []
    every, total = 1, 0
    for done, camera in enumerate(cameras, start=1):
        try:
            result = result_of(job.result.folder, camera)
        except OutputError:
            xyz.append(np.empty((0, 3), np.float32))
            rgb.append(np.empty((0, 3), np.uint8))
        else:
            found = frame_points(result, config)
            world = transform_points(result.T_world_camera, found.xyz)
            new = table.take_new(world)[::every]
            xyz.append(world[new])
            rgb.append(found.rgb[new])
            total += len(new)
        while total > max(most, done):
            # All so far, and what comes from here on: memory keeps its bound.
            every, xyz, rgb = 2 * every, [part[::2] for part in xyz], [part[::2] for part in rgb]
            total = sum(len(part) for part in xyz)
        on_frame(done, len(cameras))
    if not total:
        raise OutputError(f"{job.result.folder} has no points yet: there is nothing to show")
    upto = np.cumsum([len(part) for part in xyz])
    spacing = config.voxel * every**0.5
    return OrderedPoints(np.concatenate(xyz), np.concatenate(rgb), cameras, upto, spacing)
