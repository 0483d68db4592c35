"""Uniform samples of a result's point cloud, and its points ordered by frame."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.output_file import new_file
from stream_recon.app.core.ply import Vertices, header, subsample
from stream_recon.app.core.voxels import VoxelTable
from stream_recon.app.export.job import ExportJob
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.consistent import ConsistentFrames, with_neighbours
from stream_recon.app.result.files import checked_points
from stream_recon.configs.errors import OutputError


def sample_cloud(folder: Path, most: int) -> Vertices:
    """A uniform sample of at most ``most`` points of the cloud, in its order.

    Raises OutputError where the file is missing or damaged.
    """
    return subsample(checked_points(folder / POINTS_NAME), most)


def write_points(path: Path, vertices: Vertices) -> None:
    """Write a PLY file. Raises OSError."""
    with new_file(path) as file:
        file.write(header(len(vertices)))
        file.write(np.ascontiguousarray(vertices).view(np.uint8).data)


@dataclass(frozen=True)
class OrderedPoints:
    """Points [N] in the order of the cameras that observed them first."""

    xyz: NDArray[np.float32]  # [N, 3]
    rgb: NDArray[np.uint8]  # [N, 3]
    cameras: Sequence[FrameCamera]
    point_ends: NDArray[np.int64]  # [n] number of points of the first 1 to n cameras
    spacing: float
    """Approximate distance of neighbouring points."""

    @property
    def extent(self) -> float:
        """Diagonal of the 5 % to 95 % quantiles of the points."""
        low, high = self._bounds
        return float(np.linalg.norm(high - low)) or 1.0

    @property
    def centre(self) -> NDArray[np.float64]:
        """Centre [3] of these quantiles: unlike the mean, not biased to near surfaces, which have more points."""
        return np.asarray(self._bounds.mean(axis=0), np.float64)

    @property
    def _bounds(self) -> NDArray[np.float64]:
        return np.asarray(np.quantile(self.xyz, [0.05, 0.95], axis=0), np.float64)


def ordered_points(job: ExportJob, most: int, on_frame: Callable[[int, int], None]) -> OrderedPoints:
    """Points of keyframes that other frames confirm, one a voxel. Frames that cannot be read have none.

    Args:
        most: maximum number of points; where there are more, every second one is left out, repeatedly.
        on_frame: called with the number of frames read and their total.

    Raises StreamReconError: no frames, or no points in them.
    """
    cameras, config = job.cameras("keyframes"), job.points
    table = VoxelTable(config.voxel)
    frames = ConsistentFrames(job.result.surface_of, config)
    neighbours = {camera.index: others for camera, others in with_neighbours(job.result.surface_cameras)}
    xyz: list[NDArray[np.float32]] = []  # of each camera
    rgb: list[NDArray[np.uint8]] = []
    every, total = 1, 0
    for done, camera in enumerate(cameras, start=1):
        xyz.append(np.empty((0, 3), np.float32))
        rgb.append(np.empty((0, 3), np.uint8))
        # A frame without its own best depth adds nothing, as a frame that cannot be read.
        with suppress(OutputError):
            if camera.index in neighbours:
                world, colours = frames.world_points(camera, neighbours[camera.index])
                inside = job.is_inside(world)
                world, colours = world[inside], colours[inside]
                new = table.take_new(world)[::every]
                xyz[-1], rgb[-1] = world[new], colours[new]
                total += len(new)
        while total > max(most, done):
            # Points so far and those to come, so that memory stays bounded.
            every, xyz, rgb = 2 * every, [part[::2] for part in xyz], [part[::2] for part in rgb]
            total = sum(len(part) for part in xyz)
        on_frame(done, len(cameras))
    if not total:
        where = "has no points yet" if job.box is None else "has no points in the box"
        raise OutputError(f"{job.result.folder} {where}: there is nothing to export")
    point_ends = np.cumsum([len(part) for part in xyz])
    spacing = config.voxel * every**0.5
    return OrderedPoints(np.concatenate(xyz), np.concatenate(rgb), cameras, point_ends, spacing)
