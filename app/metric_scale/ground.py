"""Height of the camera above the ground plane, in the scale of the reconstruction."""

from dataclasses import dataclass

import numpy as np

from stream_recon.app.core.transforms import FloatArray
from stream_recon.configs.errors import InputError

MAX_SLOPE_DEG = 15.0
"""Largest angle between the ground's normal and the cameras' up direction."""
SAMPLES = 400
"""Random triples of points (RANSAC): a plane with a fifth of the points is found in 96 of 100 cases."""
THICKNESS = 0.03
"""Largest distance of an inlier from the plane, as a share of the camera's height."""
MIN_SHARE = 0.4
"""Least size of the ground as a share of the largest level plane: a table top may show more points than the floor."""
MAX_POINTS = 100_000
"""Most points that planes are fitted to: more take longer, without a better plane."""
MIN_POINTS = 200
"""Fewest inliers of the ground."""


@dataclass(frozen=True)
class GroundHeight:
    """Median height of the cameras above the ground, in the scale of the reconstruction."""

    height: float
    error: float
    """Variation of the cameras' heights, relative to the height."""
    points: int
    """Number of ground points."""


def camera_height(xyz: FloatArray, cameras: FloatArray, up: FloatArray, given: str) -> GroundHeight:
    """Median height of cameras [N, 3] above the ground: the lowest large level plane of points [M, 3].

    Raises InputError: there is no such plane below the cameras.
    """
    height = xyz @ up
    eye = cameras @ up
    below = xyz[height < np.median(eye)]
    below = below[:: max(1, len(below) // MAX_POINTS)]
    planes = _level_planes(below, cameras, up)
    if not planes:
        raise InputError(f"--scale-from {given}: there is no ground below the camera in the point cloud")
    normal, offset = max(planes, key=lambda plane: float(np.median(cameras @ plane[0] - plane[1])))
    thickness = THICKNESS * float(np.median(cameras @ normal - offset))
    ground = below
    for _ in range(10):
        distance = np.abs(below @ normal - offset)
        ground = below[distance < thickness]
        if len(ground) < MIN_POINTS:
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
        raise InputError(f"--scale-from {given}: there is no ground below the camera in the point cloud")
    variation = 1.4826 * float(np.median(np.abs(heights - median))) / median
    return GroundHeight(median, max(variation, THICKNESS / 3), len(ground))


def _level_planes(points: FloatArray, cameras: FloatArray, up: FloatArray) -> list[tuple[FloatArray, float]]:
    """Level planes (normal, offset) below the cameras, none of which shares points with a larger one.

    They have at least `MIN_SHARE` of the largest one's points: a plane tilted across floor and wall has some of both.
    """
    candidates: list[tuple[FloatArray, float, float]] = []
    rng = np.random.default_rng(0)
    for _ in range(SAMPLES if len(points) >= MIN_POINTS else 0):
        a, b, c = points[rng.choice(len(points), 3, replace=False)]
        normal = np.cross(b - a, c - a)
        length = np.linalg.norm(normal)
        if not length > 0:
            continue
        normal = normal / length * (1 if normal @ up > 0 else -1)
        far = float(np.median((cameras - a) @ normal))
        if normal @ up >= np.cos(np.radians(MAX_SLOPE_DEG)) and far > 0:
            candidates.append((normal, float(normal @ a), THICKNESS * far))
    found: list[tuple[FloatArray, float]] = []
    largest, left = 0, points
    while candidates and len(left) >= MIN_POINTS:
        counts = [int((np.abs(left @ normal - offset) < thick).sum()) for normal, offset, thick in candidates]
        best = int(np.argmax(counts))
        largest = max(largest, counts[best])
        if counts[best] < max(MIN_POINTS, MIN_SHARE * largest):
            break
        normal, offset, thick = candidates[best]
        found.append((normal, offset))
        left = left[np.abs(left @ normal - offset) >= thick]
    return found
