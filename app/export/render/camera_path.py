"""Camera path of a rendered video: along the trajectory, in orbit around the scene, or top-down while it grows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter1d
from scipy.spatial.transform import Rotation, Slerp

from stream_recon.app.core.transforms import upright_axes
from stream_recon.app.export.render.raster import RenderScene

CameraPath = Literal["trajectory", "orbit", "top-down"]
CAMERA_PATHS: tuple[CameraPath, ...] = get_args(CameraPath)
SMOOTH_SECONDS = 1.0
"""Standard deviation of the filter that removes hand shake from a trajectory."""
BEHIND = 0.06
"""Distance of the camera behind the trajectory as a share of the scene's extent, so that its surroundings show."""
ELEVATION = np.radians(28)
"""Elevation of an orbit: high enough to look over walls of rooms, low enough to see facades."""
ORBIT_DISTANCE, TOP_DISTANCE = 0.9, 1.15
"""Distance from the centre in extents of the scene, which then fills an image of 60 degrees."""


@dataclass(frozen=True)
class CameraKeypoint:
    """Camera and state of the scene in one frame of a video."""

    T_world_camera: NDArray[np.float64]  # [4, 4]
    shown: int
    """Number of the scene's cameras whose points are drawn."""


def camera_keypoints(scene: RenderScene, path: CameraPath, frames: int, fps: float) -> Iterator[CameraKeypoint]:
    """The keypoints of a video of one frame or more."""
    if path == "trajectory":
        return _trajectory(scene, frames, fps)
    return _orbit(scene, frames) if path == "orbit" else _top_down(scene, frames)


def _trajectory(scene: RenderScene, frames: int, fps: float) -> Iterator[CameraKeypoint]:
    """Along the scene's trajectory, smoothed, from a little behind."""
    poses = np.array([camera.T_world_camera for camera in scene.cameras])
    times = np.array([camera.timestamp for camera in scene.cameras])
    if len(poses) == 1:
        poses, times = np.concatenate([poses, poses]), np.array([0.0, 1.0])
    times = np.maximum.accumulate(times + 1e-6 * np.arange(len(times)))
    sampled = np.linspace(times[0], times[-1], frames)
    sigma = SMOOTH_SECONDS * fps
    position = np.stack([np.interp(sampled, times, poses[:, axis, 3]) for axis in range(3)], axis=1)
    position = gaussian_filter1d(position, sigma, axis=0, mode="nearest")
    rotation = Slerp(times, Rotation.from_matrix(poses[:, :3, :3]))(sampled).as_matrix()
    # Chordal mean: averages of matrices, projected to rotations.
    rotation = gaussian_filter1d(rotation.reshape(frames, 9), sigma, axis=0, mode="nearest").reshape(frames, 3, 3)
    u, _, vt = np.linalg.svd(rotation)
    axes = u @ np.stack([np.eye(3)] * frames)
    axes[:, :, 2] *= np.linalg.det(u @ vt)[:, None]
    axes = axes @ vt
    for centre, R in zip(position, axes, strict=True):
        yield CameraKeypoint(_pose(R, centre - BEHIND * scene.extent * R[:, 2]), len(scene.cameras))


def _orbit(scene: RenderScene, frames: int) -> Iterator[CameraKeypoint]:
    """Once around the centre of the scene, looking down at it."""
    up = scene.up
    level = upright_axes(up, scene.cameras[0].T_world_camera[:3, 2])
    for angle in np.arange(frames) / frames * 2 * np.pi:
        horizontal = np.sin(angle) * level[0] - np.cos(angle) * level[2]
        away = np.cos(ELEVATION) * horizontal + np.sin(ELEVATION) * up
        axes = _look_along(-away, up)
        yield CameraKeypoint(_pose(axes, scene.centre + ORBIT_DISTANCE * scene.extent * away), len(scene.cameras))


def _top_down(scene: RenderScene, frames: int) -> Iterator[CameraKeypoint]:
    """From above with the first camera's heading at the top, while frames add their points."""
    up = scene.up
    level = upright_axes(up, scene.cameras[0].T_world_camera[:3, 2])
    axes = np.stack([level[0], -level[2], level[1]], axis=1)
    position = scene.centre + TOP_DISTANCE * scene.extent * up
    for number in range(frames):
        yield CameraKeypoint(_pose(axes, position), max(1, round((number + 1) / (0.9 * frames) * len(scene.cameras))))


def _look_along(forward: NDArray[np.float64], up: NDArray[np.float64]) -> NDArray[np.float64]:
    """Camera axes as columns [3, 3] for a view along the unit vector ``forward``, with a level x axis."""
    right = np.cross(forward, up)
    right = right / np.linalg.norm(right)
    return np.stack([right, np.cross(forward, right), forward], axis=1)


def _pose(axes: NDArray[np.float64], position: NDArray[np.float64]) -> NDArray[np.float64]:
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = axes, position
    return T
