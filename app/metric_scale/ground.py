"""The scale by the camera's height above the ground."""

from dataclasses import dataclass

import numpy as np

from stream_recon.app.core.transforms import FloatArray
from stream_recon.configs.errors import InputError

STEEPEST = 15.0
"""Degrees by which the ground may slope against the cameras' up."""
DRAWS = 400
THICKNESS = 0.03
"""Of the height: points so near to the plane are of it."""
AS_LARGE = 0.4
"""Share of the largest level surface that a lower one needs for being the ground: a table is smaller than the floor."""
MOST_POINTS = 100_000
LEAST_POINTS = 200


@dataclass(frozen=True)
class GroundHeight:
    """Of the cameras above the ground, in the world's unit."""

    height: float
    error: float
    """How much the cameras' heights vary, as a share."""
    points: int


def camera_height(xyz: FloatArray, cameras: FloatArray, up: FloatArray, given: str) -> GroundHeight:
    """The cameras' [N, 3] median height above the ground, the lowest of the large level surfaces among points [M, 3].

    Raises:
        InputError: there is no such surface below the cameras.
    """
    height = xyz @ up
    eye = cameras @ up
    below = xyz[height < np.median(eye)]
    below = below[:: max(1, len(below) // MOST_POINTS)]
    found: list[tuple[float, int, FloatArray, float]] = []
    draw = np.random.default_rng(0)
    for _ in range(DRAWS if len(below) >= LEAST_POINTS else 0):
        a, b, c = below[draw.choice(len(below), 3, replace=False)]
        normal = np.cross(b - a, c - a)
        length = np.linalg.norm(normal)
        if not length > 0:
            continue
        normal = normal / length * (1 if normal @ up > 0 else -1)
        far = float(np.median((cameras - a) @ normal))
        if normal @ up < np.cos(np.radians(STEEPEST)) or far <= 0:
            continue
        count = int((np.abs((below - a) @ normal) < THICKNESS * far).sum())
        found.append((far, count, normal, float(normal @ a)))
    large = max((count for _, count, _, _ in found), default=0)
    if large < LEAST_POINTS:
        raise InputError(f"--scale-from {given}: no ground is seen below the camera")
    normal, place = max((entry for entry in found if entry[1] >= AS_LARGE * large), key=lambda e: e[0])[2:]
    thickness = THICKNESS * float(np.median(cameras @ normal - place))
    ground = below
    for _ in range(10):
        off = np.abs(below @ normal - place)
        ground = below[off < thickness]
        if len(ground) < LEAST_POINTS:
            break
        # As thin as the ground is: feet of walls and furniture would tip it.
        thin = 2.5 * 1.4826 * float(np.median(off[off < thickness]))
        thickness = min(thickness, max(thin, 0.1 * thickness))
        middle = ground.mean(axis=0)
        turned = np.linalg.eigh(np.cov((ground - middle).T))[1][:, 0]
        normal = turned * (1 if turned @ up > 0 else -1)
        place = float(normal @ middle)
    heights = cameras @ normal - place
    middle_height = float(np.median(heights))
    if not middle_height > 0:
        raise InputError(f"--scale-from {given}: no ground is seen below the camera")
    spread = 1.4826 * float(np.median(np.abs(heights - middle_height))) / middle_height
    return GroundHeight(middle_height, max(spread, THICKNESS / 3), len(ground))
