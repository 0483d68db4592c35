"""Where the flying camera is at each moment: along the path, around the scene, or above it while it grows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter1d
from scipy.spatial.transform import Rotation, Slerp

from stream_recon.app.export.render.raster import RenderScene
from stream_recon.app.export.view import upright_axes, world_up

Route = Literal["path", "around", "above"]
ROUTES: tuple[Route, ...] = get_args(Route)
SMOOTH_SECONDS = 1.0
"""Standard deviation of the average that takes the shake of hands out of a path."""
BEHIND = 0.06
"""Of the scene's extent: how far behind the path the camera flies, so that it shows some of where it is."""
ELEVATION = np.radians(28)
AROUND_DISTANCE, ABOVE_DISTANCE = 0.9, 1.15
"""Of the scene's extent, at a field of view of 60 degrees."""


@dataclass(frozen=True)
class CameraKeypoint:
    """One frame of a flight."""

    T_world_camera: NDArray[np.float64]  # [4, 4]
    shown: int
    """How many of the cameras have brought their points."""


def fly(scene: RenderScene, route: Route, frames: int, fps: float) -> Iterator[CameraKeypoint]:
    """The moments of a flight, one or more."""
    if route == "path":
        return _along(scene, frames, fps)
    return _around(scene, frames) if route == "around" else _above(scene, frames)


def _along(scene: RenderScene, frames: int, fps: float) -> Iterator[CameraKeypoint]:
    """Through the scene as it was walked, more calmly, and from a little behind."""
    poses = np.array([camera.T_world_camera for camera in scene.cameras])
    times = np.array([camera.timestamp for camera in scene.cameras])
    if len(poses) == 1:
        poses, times = np.concatenate([poses, poses]), np.array([0.0, 1.0])
    times = np.maximum.accumulate(times + 1e-6 * np.arange(len(times)))
    at = np.linspace(times[0], times[-1], frames)
    sigma = SMOOTH_SECONDS * fps
    position = np.stack([np.interp(at, times, poses[:, axis, 3]) for axis in range(3)], axis=1)
    position = gaussian_filter1d(position, sigma, axis=0, mode="nearest")
    turned = Slerp(times, Rotation.from_matrix(poses[:, :3, :3]))(at).as_matrix()
    # Averages of rotations that are near each other, made rotations again.
    turned = gaussian_filter1d(turned.reshape(frames, 9), sigma, axis=0, mode="nearest").reshape(frames, 3, 3)
    u, _, vt = np.linalg.svd(turned)
    axes = u @ np.stack([np.eye(3)] * frames)
    axes[:, :, 2] *= np.linalg.det(u @ vt)[:, None]
    axes = axes @ vt
    for place, rotation in zip(position, axes, strict=True):
        yield CameraKeypoint(_pose(rotation, place - BEHIND * scene.extent * rotation[:, 2]), len(scene.cameras))


def _around(scene: RenderScene, frames: int) -> Iterator[CameraKeypoint]:
    """Once around the middle of the scene, looking down at it."""
    up = world_up(scene.cameras)
    level = upright_axes(up, scene.cameras[0].T_world_camera[:3, 2])
    for turn in np.arange(frames) / frames * 2 * np.pi:
        horizontal = np.sin(turn) * level[0] - np.cos(turn) * level[2]
        away = np.cos(ELEVATION) * horizontal + np.sin(ELEVATION) * up
        axes = _looking(-away, up)
        yield CameraKeypoint(_pose(axes, scene.centre + AROUND_DISTANCE * scene.extent * away), len(scene.cameras))


def _above(scene: RenderScene, frames: int) -> Iterator[CameraKeypoint]:
    """From above, north where the first camera looked, while frame after frame brings its points."""
    up = world_up(scene.cameras)
    level = upright_axes(up, scene.cameras[0].T_world_camera[:3, 2])
    axes = np.stack([level[0], -level[2], level[1]], axis=1)
    place = scene.centre + ABOVE_DISTANCE * scene.extent * up
    for number in range(frames):
        yield CameraKeypoint(_pose(axes, place), max(1, round((number + 1) / (0.9 * frames) * len(scene.cameras))))


def _looking(forward: NDArray[np.float64], up: NDArray[np.float64]) -> NDArray[np.float64]:
    """Camera axes as columns [3, 3], x level, for a look along the unit vector ``forward``."""
    right = np.cross(forward, up)
    right = right / np.linalg.norm(right)
    return np.stack([right, np.cross(forward, right), forward], axis=1)


def _pose(axes: NDArray[np.float64], place: NDArray[np.float64]) -> NDArray[np.float64]:
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = axes, place
    return T
