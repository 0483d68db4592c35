"""What is flown through: points in the order in which the frames brought them, and the path."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.export.job import Job
from stream_recon.app.flight.raster import Points
from stream_recon.app.geometry import frame_points
from stream_recon.app.output.cameras import Camera
from stream_recon.app.output.folder import result_of
from stream_recon.app.transforms import transform_points
from stream_recon.app.voxels import VoxelTable
from stream_recon.configs.errors import OutputError

POINT_VOXELS = 2.2
"""How wide a point is drawn: neighbours overlap."""
PATH_COLOUR = (255, 150, 40)
PATH_SHARE = 0.004
"""How thick the path is drawn, as a share of the scene's extent."""


@dataclass(frozen=True)
class FlightScene:
    """Points in the order of ``cameras``, which brought them."""

    points: Points
    upto: NDArray[np.int64]
    """[n] how many points are there once each camera has brought its own."""
    cameras: Sequence[Camera]
    extent: float
    """Diagonal of what lies within the middle nine tenths of the points."""
    centre: NDArray[np.float64]  # [3] their median

    @property
    def line(self) -> NDArray[np.float64]:
        """Where the cameras were [n, 3]."""
        return np.array([camera.T_world_camera[:3, 3] for camera in self.cameras])


def gather(job: Job, most: int, on_frame: Callable[[int, int], None]) -> FlightScene:
    """The sure points of keyframes, one a voxel; frames that cannot be read bring none.

    Args:
        most: points at most; a scene with more is thinned evenly.
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
        if total > most:
            # All so far, and what comes from here on: memory keeps its bound.
            every, xyz, rgb = 2 * every, [part[::2] for part in xyz], [part[::2] for part in rgb]
            total = sum(len(part) for part in xyz)
        on_frame(done, len(cameras))
    if not total:
        raise OutputError(f"{job.result.folder} has no points yet: there is nothing to show")
    upto = np.cumsum([len(part) for part in xyz])
    whole = np.concatenate(xyz)
    low, high = np.quantile(whole, [0.05, 0.95], axis=0)
    eyes = np.array([camera.T_world_camera[:3, 3] for camera in cameras], np.float32)
    side = np.repeat(eyes, [len(part) for part in xyz], axis=0) - whole
    size = np.full(len(whole), POINT_VOXELS * config.voxel * every**0.5, np.float32)
    points = Points(whole, np.concatenate(rgb), size, side)
    extent = float(np.linalg.norm(high - low)) or 1.0
    return FlightScene(points, upto, cameras, extent, np.median(whole, axis=0).astype(np.float64))
