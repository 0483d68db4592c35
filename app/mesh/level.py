"""The up direction of a scene, from its surfaces and cameras."""

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray, upright_axes
from stream_recon.app.mesh.config import LevelConfig
from stream_recon.app.mesh.surface import Mesh


def level_up(mesh: Mesh, R_world_camera: NDArray[np.floating], up: FloatArray, config: LevelConfig) -> FloatArray:
    """Up direction of the world as a unit vector [3], near ``up`` from rotations [n, 3, 3] of the cameras.

    Floors and ceilings are level, other surfaces stand plumb, and people hold cameras without much roll. Where these
    differ, as on a slope, it is the direction that agrees with them best.
    """
    corners = mesh.xyz[mesh.faces].astype(np.float64)
    crossed = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    area = np.linalg.norm(crossed, axis=1)
    if not area.sum() > 0:
        return up
    # Each sample stands for the same area.
    at = (np.arange(config.samples) + 0.5) / config.samples * area.sum()
    chosen = np.searchsorted(np.cumsum(area), at).clip(max=len(area) - 1)
    normals = crossed[chosen] / np.maximum(area[chosen], 1e-30)[:, None]
    sideways = np.asarray(R_world_camera, np.float64)[:, :, 0]
    for count, angle in zip(config.directions, (config.max_turn_deg, config.near_deg), strict=True):
        tried = _directions(up, angle, count)
        tilt = np.degrees(np.arccos(np.abs(tried @ normals.T).clip(max=1)))
        level, plumb = (np.exp(-0.5 * np.square((tilt - x) / config.spread_deg)).mean(axis=1) for x in (0.0, 90.0))
        roll = np.degrees(np.sqrt(np.square(tried @ sideways.T).mean(axis=1))) / config.roll_deg
        up = tried[np.argmax(level + config.plumb * plumb - config.roll_cost * np.square(roll))]
    return up


def _directions(middle: FloatArray, angle_deg: float, count: int) -> FloatArray:
    """``middle`` and unit vectors [count, 3] spread evenly around it, on a spiral of the golden angle."""
    height = np.append(1.0, 1 - (1 - np.cos(np.radians(angle_deg))) * (np.arange(count - 1) + 0.5) / (count - 1))
    turn, radius = np.pi * (3 - np.sqrt(5)) * np.arange(count), np.sqrt(1 - np.square(height))
    spiral = np.stack([radius * np.cos(turn), -height, radius * np.sin(turn)], axis=1)
    return np.asarray(spiral @ upright_axes(middle, np.eye(3)[np.argmin(np.abs(middle))]))
