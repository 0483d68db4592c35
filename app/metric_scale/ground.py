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
    found: list[tuple[float, int, FloatArray, float]] = []
    rng = np.random.default_rng(0)
    for _ in range(SAMPLES if len(below) >= MIN_POINTS else 0):
        a, b, c = below[rng.choice(len(below), 3, replace=False)]
        normal = np.cross(b - a, c - a)
        length = np.linalg.norm(normal)
        if not length > 0:
            continue
        normal = normal / length * (1 if normal @ up > 0 else -1)
        far = float(np.median((cameras - a) @ normal))
        if normal @ up < np.cos(np.radians(MAX_SLOPE_DEG)) or far <= 0:
            continue
        count = int((np.abs((below - a) @ normal) < THICKNESS * far).sum())
        found.append((far, count, normal, float(normal @ a)))
    large = max((count for _, count, _, _ in found), default=0)
    if large < MIN_POINTS:
        raise InputError(f"--scale-from {given}: there is no ground below the camera in the point cloud")
    normal, offset = max((entry for entry in found if entry[1] >= MIN_SHARE * large), key=lambda e: e[0])[2:]
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
