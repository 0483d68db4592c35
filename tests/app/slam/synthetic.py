"""Synthetic scenes with ground truth: a camera that moves past points, and its observations."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.ba.problem import BAScene, Observations, RelativePoses

LENS = CameraModel(400.0, 320.0, 240.0)


@dataclass(frozen=True)
class World:
    truth: BAScene
    start: BAScene
    """Initial scene with small errors; the first camera is exact."""
    observations: Observations


def walk(
    cameras: int = 12,
    points: int = 300,
    views: int = 6,
    noise_px: float = 0.5,
    off: float = 1.0,
    k1: float = 0.0,
    focal_off: float = 1.05,
    seed: int = 0,
) -> World:
    """Points at depths of 1.5 to 5 seen by ``views`` cameras each, which are 0.1 apart and rotate.

    Errors of the start are about 0.01 rad, 0.02 and 3 %, times ``off``.
    """
    rng = np.random.default_rng(seed)
    n = np.arange(cameras)
    T = np.tile(np.eye(4), (cameras, 1, 1))
    T[:, :3, :3] = so3.exp(np.stack([0.05 * np.sin(0.2 * n), 0.1 * np.sin(0.1 * n), 0.02 * np.cos(0.3 * n)], axis=1))
    T[:, :3, 3] = np.stack([0.1 * n, 0.1 * np.sin(0.3 * n), 0.1 * np.cos(0.2 * n)], axis=1)
    first = rng.integers(0, max(cameras - views, 0) + 1, points)
    camera = (first[:, None] + np.arange(views)).reshape(-1)
    point = np.repeat(np.arange(points), views)
    middle = np.minimum(first + views // 2, cameras - 1)
    z = rng.uniform(1.5, 5, (points, 1))
    local = np.hstack([rng.uniform(-0.6, 0.6, (points, 2)) * (1, 0.75) * z, z])
    X = np.einsum("nij,nj->ni", T[middle, :3, :3], local) + T[middle, :3, 3]
    lens = replace(LENS, k1=k1)
    pixel, depth = projected(T, X, lens, camera, point)
    pixel += noise_px * rng.normal(size=pixel.shape)
    T_off = T.copy()
    T_off[1:, :3, :3] = T[1:, :3, :3] @ so3.exp(0.01 * off * rng.normal(size=(cameras - 1, 3)))
    T_off[1:, :3, 3] += 0.02 * off * rng.normal(size=(cameras - 1, 3))
    start = BAScene(T_off, X * (1 + 0.03 * off * rng.normal(size=(points, 1))), replace(LENS, focal=400.0 * focal_off))
    return World(BAScene(T, X, lens), start, Observations(camera, point, pixel, depth=depth))


def projected(
    T_world_camera: NDArray[np.float64],
    points: NDArray[np.float64],
    lens: CameraModel,
    camera: NDArray[np.intp],
    point: NDArray[np.intp],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pixels [O, 2] and depths [O], by OpenCV's formula."""
    xyz = np.einsum("nji,nj->ni", T_world_camera[camera, :3, :3], points[point] - T_world_camera[camera, :3, 3])
    plane = xyz[:, :2] / xyz[:, 2:]
    distorted = plane * (1 + lens.k1 * (plane**2).sum(axis=1, keepdims=True))
    return lens.focal * distorted + (lens.cx, lens.cy), xyz[:, 2].copy()


def steps(T_world_camera: NDArray[np.float64], hops: tuple[int, ...] = (1, 2)) -> RelativePoses:
    """Exact relative poses of cameras ``hops`` apart, with sigmas of 1 degree and 30 %."""
    count = len(T_world_camera)
    first = np.concatenate([np.arange(count - hop) for hop in hops])
    second = np.concatenate([np.arange(hop, count) for hop in hops])
    relative = np.linalg.inv(T_world_camera[first]) @ T_world_camera[second]
    sigmas = np.full(len(first), np.radians(1.0)), np.full(len(first), 0.3)
    return RelativePoses(first, second, relative, *sigmas)


def aligned_errors(estimate: NDArray[np.float64], truth: NDArray[np.float64]) -> tuple[float, float]:
    """RMSE of the centres and largest rotation (rad) of poses [N, 4, 4], after alignment by their centres."""
    A, B = estimate[:, :3, 3], truth[:, :3, 3]
    a, b = A - A.mean(axis=0), B - B.mean(axis=0)
    u, d, vt = np.linalg.svd(b.T @ a)
    flip = np.array([1.0, 1.0, np.sign(np.linalg.det(u @ vt))])
    R = (u * flip) @ vt
    scale = (d * flip).sum() / (a**2).sum()
    rotation = so3.log(np.swapaxes(truth[:, :3, :3], 1, 2) @ R @ estimate[:, :3, :3])
    rmse = np.sqrt((((scale * a @ R.T) - b) ** 2).sum(axis=1).mean())
    return float(rmse), float(np.linalg.norm(rotation, axis=1).max())
