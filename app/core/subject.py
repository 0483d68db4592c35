"""The place that the cameras look at, as where someone walked around an object."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.box import Box
from stream_recon.app.core.types import Intrinsics

FloatArray = NDArray[np.float64]
CENTRAL = 0.5
"""Share of the image about its centre in which the place lies for cameras that look at it."""
MIN_LOOKING = 0.75
"""Share of the cameras that look at it: on a straight way or in a room, about half of them at most do."""
MIN_SPREAD = 0.02
"""Mean square sine of the angles of the optical axes to the nearest direction: an arc of 28 degrees has 0.02."""
OUTLIERS = 0.001
"""Share of the points on each side that may lie outside the box."""
MIN_SHARE = 0.05
"""Share of the scene's points in the box: on a walk through a room whose axes cross 0.01, around a chair 0.2."""


def subject_box(
    T_world_camera: FloatArray,
    cameras: Sequence[Intrinsics],
    xyz: NDArray[np.floating],
    R_gltf_world: FloatArray,
    turn_deg: float = 0.0,
) -> Box | None:
    """Box of what fits into an image at the place that most cameras look at; None where there is no such place.

    Args:
        T_world_camera: [N, 4, 4].
        cameras: N, with the principal point about in the middle.
        xyz: points [K, 3] of the scene.
        R_gltf_world, turn_deg: axes and turn, see `Box`.
    """
    slopes = np.array([max(camera.cx, camera.cy) / camera.fx for camera in cameras])
    centres, axes = T_world_camera[:, :3, 3], T_world_camera[:, :3, 2]
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    weight = np.ones(len(axes))
    for _ in range(10):  # distances of the axes settle within these
        # The point nearest to the axes in the least squares of Weiszfeld's algorithm: the median one.
        total = np.einsum("n,nij->ij", weight, across) / weight.sum()
        if np.linalg.eigvalsh(total)[0] < MIN_SPREAD:
            return None
        place = np.linalg.solve(total, np.einsum("n,nij,nj->i", weight, across, centres) / weight.sum())
        depth = np.einsum("ni,ni->n", place - centres, axes)
        aside = np.linalg.norm(place - centres - depth[:, None] * axes, axis=1)
        weight = 1 / np.maximum(aside, np.median(aside) / 10 + 1e-12)
    looking = (depth > 0) & (aside < CENTRAL * slopes * depth)
    if looking.mean() < MIN_LOOKING:
        return None
    radius = float(np.median((slopes * depth)[looking]))
    box = Box((0, 0, 0), (1, 1, 1), turn_deg)
    local = xyz[np.linalg.norm(xyz - place, axis=1) < radius] @ (box.R_box_gltf @ R_gltf_world).T
    if len(local) < max(MIN_SHARE * len(xyz), 1):
        return None
    (x0, y0, z0), (x1, y1, z1) = np.quantile(local, [OUTLIERS, 1 - OUTLIERS], axis=0).tolist()
    return Box((x0, y0, z0), (x1, y1, z1), turn_deg)
