"""Height of the camera above the ground plane, in the scale of the reconstruction."""

from dataclasses import dataclass

import numpy as np

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.metric_scale.config import GroundConfig
from stream_recon.configs.errors import InputError


@dataclass(frozen=True)
class GroundHeight:
    """Median height of the cameras above the ground, in the scale of the reconstruction."""

    height: float
    error: float
    """Variation of the cameras' heights, relative to the height."""
    points: int
    """Number of ground points."""


def camera_height(
    xyz: FloatArray, cameras: FloatArray, up: FloatArray, text: str, config: GroundConfig
) -> GroundHeight:
    """Median height of cameras [N, 3] above the ground: the lowest large level plane of points [M, 3].

    Raises InputError: there is no such plane below the cameras.
    """
    height = xyz @ up
    eye = cameras @ up
    below = xyz[height < np.median(eye)]
    below = below[:: max(1, len(below) // config.max_points)]
    planes = _level_planes(below, cameras, up, config)
    if not planes:
        raise InputError(f"--scale-from {text}: there is no ground below the camera in the point cloud")
    normal, offset = max(planes, key=lambda plane: float(np.median(cameras @ plane[0] - plane[1])))
    thickness = config.thickness * float(np.median(cameras @ normal - offset))
    ground = below
    for _ in range(10):
        distance = np.abs(below @ normal - offset)
        ground = below[distance < thickness]
        if len(ground) < config.min_points:
            break
        # The threshold follows the noise of the ground: feet of walls and furniture would tilt the plane.
        noise = 2.5 * 1.4826 * float(np.median(distance[distance < thickness]))
        thickness = min(thickness, max(noise, 0.1 * thickness))
        centre = ground.mean(axis=0)
        axis = np.linalg.eigh(np.cov((ground - centre).T))[1][:, 0]
        normal = axis * (1 if axis @ up > 0 else -1)
        offset = float(normal @ centre)
    heights = cameras @ normal - offset
    median = float(np.median(heights))
    if not median > 0:
        raise InputError(f"--scale-from {text}: there is no ground below the camera in the point cloud")
    variation = 1.4826 * float(np.median(np.abs(heights - median))) / median
    return GroundHeight(median, max(variation, config.thickness / 3), len(ground))


def _level_planes(
    points: FloatArray, cameras: FloatArray, up: FloatArray, config: GroundConfig
) -> list[tuple[FloatArray, float]]:
    """Level planes (normal, offset) below the cameras, none of which shares points with a larger one.

    They have at least ``min_share`` of the largest one's points: a plane tilted across floor and wall has some of both.
    """
    candidates: list[tuple[FloatArray, float, float]] = []
    rng = np.random.default_rng(0)
    for _ in range(config.samples if len(points) >= config.min_points else 0):
        a, b, c = points[rng.choice(len(points), 3, replace=False)]
        normal = np.cross(b - a, c - a)
        length = np.linalg.norm(normal)
        if not length > 0:
            continue
        normal = normal / length * (1 if normal @ up > 0 else -1)
        far = float(np.median((cameras - a) @ normal))
        if normal @ up >= np.cos(np.radians(config.max_slope_deg)) and far > 0:
            candidates.append((normal, float(normal @ a), config.thickness * far))
    planes: list[tuple[FloatArray, float]] = []
    largest, remaining = 0, points
    while candidates and len(remaining) >= config.min_points:
        counts = [int((np.abs(remaining @ normal - offset) < thick).sum()) for normal, offset, thick in candidates]
        best = int(np.argmax(counts))
        largest = max(largest, counts[best])
        if counts[best] < max(config.min_points, config.min_share * largest):
            break
        normal, offset, thick = candidates[best]
        planes.append((normal, offset))
        remaining = remaining[np.abs(remaining @ normal - offset) >= thick]
    return planes
