"""What is flown through: points that are seen from where the cameras were, and the path."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.export.job import ExportJob
from stream_recon.app.export.ordered import ordered_points
from stream_recon.app.export.render.raster import Points
from stream_recon.app.result.cameras import Camera

POINT_SPACINGS = 2.2
"""How wide a point is drawn: neighbours overlap."""
PATH_COLOUR = (255, 150, 40)
PATH_SHARE = 0.004
"""How thick the path is drawn, as a share of the scene's extent."""


@dataclass(frozen=True)
class RenderScene:
    """Points in the order of ``cameras``, which brought them."""

    points: Points
    upto: NDArray[np.int64]
    """[n] how many points are there once each camera has brought its own."""
    cameras: Sequence[Camera]
    extent: float
    """Diagonal of what lies within the middle nine tenths of the points."""
    centre: NDArray[np.float64]  # [3] the middle of that

    @property
    def line(self) -> NDArray[np.float64]:
        """Where the cameras were [n, 3]."""
        return np.array([camera.T_world_camera[:3, 3] for camera in self.cameras])


def gather(job: ExportJob, most: int, on_frame: Callable[[int, int], None]) -> RenderScene:
    """The scene of a result; see `ordered_points`, which says what is raised."""
    found = ordered_points(job, most, on_frame)
    eyes = np.array([camera.T_world_camera[:3, 3] for camera in found.cameras], np.float32)
    side = np.repeat(eyes, np.diff(found.upto, prepend=0), axis=0) - found.xyz
    size = np.full(len(found.xyz), POINT_SPACINGS * found.spacing, np.float32)
    points = Points(found.xyz, found.rgb, size, side)
    return RenderScene(points, found.upto, found.cameras, found.extent, found.centre)
