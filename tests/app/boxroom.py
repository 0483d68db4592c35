"""Renderer of a textured box room in closed form, with exact depth and poses."""

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult, ImageTransform, Intrinsics

HALF = np.array([3.0, 1.5, 4.0])
"""Half sizes of the room, centred on the origin; y points down."""


def walk_pose(t: float) -> NDArray[np.float64]:
    """T_world_camera [4, 4] at ``t`` seconds: a slow circle with rotation."""
    yaw = 0.5 * t
    T = np.eye(4)
    T[:3, :3] = [[np.cos(yaw), 0, np.sin(yaw)], [0, 1, 0], [-np.sin(yaw), 0, np.cos(yaw)]]
    T[:3, 3] = [np.sin(0.2 * t), 0.1 * np.sin(t), 1 - np.cos(0.2 * t)]
    return T


def room_result(
    index: int,
    T_world_camera: NDArray[np.float64] | None = None,
    size: tuple[int, int] = (56, 42),
    fps: float = 10.0,
    keyframe: bool = True,
) -> FrameResult:
    """Result of one camera in the room. Confidence falls with distance."""
    T = walk_pose(index / fps) if T_world_camera is None else T_world_camera
    width, height = size
    focal = 0.8 * width
    u, v = np.meshgrid(np.arange(width) + 0.5 - width / 2, np.arange(height) + 0.5 - height / 2)
    rays = np.stack([u / focal, v / focal, np.ones_like(u)], axis=-1) @ T[:3, :3].T
    rays = np.where(np.abs(rays) < 1e-9, 1e-9, rays)  # rays parallel to a wall
    walls = np.where(rays > 0, HALF - T[:3, 3], -HALF - T[:3, 3]) / rays  # [h, w, 3]
    depth = walls.min(axis=-1)
    hit = T[:3, 3] + depth[..., None] * rays
    checks = (np.floor(1.999 * hit).astype(int).sum(axis=-1) % 2)[..., None]
    hue = np.array([[230, 70, 60], [70, 200, 90], [70, 110, 240]])[walls.argmin(axis=-1)]
    return FrameResult(
        index=index,
        timestamp=index / fps,
        T_world_camera=T,
        intrinsics=Intrinsics(2 * focal, 2 * focal, width, height),
        depth=depth.astype(np.float32),
        confidence=(1 + 4 / depth).astype(np.float32),
        rgb=(hue * (0.55 + 0.45 * checks)).astype(np.uint8),
        transform=ImageTransform((2 * width, 2 * height), (0.0, 0.0, 2.0 * width, 2.0 * height), size),
        is_keyframe=keyframe,
    )
