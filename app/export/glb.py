"""Export of points, camera frusta and trajectory as binary glTF."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.gltf import LINES, POINTS, Primitive, write_glb
from stream_recon.app.core.ply import colours, positions, subsample, uniform_indices
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.view import PinholeView, gltf_axes, gltf_note
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.run_record import PROGRAM

MAX_FRUSTA = 500
"""Most frusta: more hide the points."""
FRUSTUM_SHARE = 0.02
"""Depth of a frustum as a share of the scene's extent (diagonal of the 5 % to 95 % quantiles of the points)."""
FRUSTUM_COLOUR, PATH_COLOUR = (0.12, 0.47, 0.86), (0.95, 0.45, 0.1)
"""Colours of frusta (blue) and trajectory (orange), sRGB from 0 to 1."""


def write_scene(job: ExportJob, path: Path) -> ExportReport:
    """Write points, frusta and trajectory. Raises StreamReconError, or OSError for system errors."""
    cameras = job.cameras("keyframes")
    axes = gltf_axes(job.result, job.options.up)
    vertices = subsample(job.cloud(), job.options.points)
    points = Primitive(_rotated(positions(vertices), axes), rgb=colours(vertices), name="points", mode=POINTS)
    poses = np.array([camera.T_world_camera for camera in job.result.cameras])
    shown = [cameras[k] for k in uniform_indices(len(cameras), MAX_FRUSTA)]
    size = FRUSTUM_SHARE * _extent(points.xyz if len(points.xyz) else poses[:, :3, 3])
    parts = [
        points,
        Primitive(_rotated(frusta(shown, job.view, size), axes), name="cameras", mode=LINES, colour=FRUSTUM_COLOUR),
    ]
    if len(poses) > 1:
        line = _rotated(poses[:, :3, 3], axes)
        ends = np.repeat(line, 2, axis=0)[1:-1]
        parts.append(Primitive(ends, name="path", mode=LINES, colour=PATH_COLOUR))
    write_glb(path, parts, PROGRAM)
    return ExportReport(
        f"{len(vertices)} points, {len(shown)} camera frusta, the trajectory of {len(poses)} frames; "
        "--format mesh makes triangles.",
        [gltf_note(axes), "Nodes: points (colours at vertices), cameras (lines), path (a line through all frames)."],
    )


def frusta(cameras: list[FrameCamera], view: PinholeView, depth: float) -> NDArray[np.float32]:
    """Line segments [N, 3], pairs of ends: from each camera to its image corners at ``depth``, and between these."""
    (width, height), k = view.size, view.intrinsics
    pixels = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
    corners = np.ones((4, 3))
    corners[:, :2] = (pixels - (k.cx, k.cy)) / (k.fx, k.fy)
    ends = np.concatenate([np.zeros((1, 3)), corners * depth])
    pairs = np.array([[0, 1], [0, 2], [0, 3], [0, 4], [1, 2], [2, 3], [3, 4], [4, 1]]).ravel()
    T = np.array([camera.T_world_camera for camera in cameras])
    world = np.einsum("nij,pj->npi", T[:, :3, :3], ends[pairs]) + T[:, None, :3, 3]
    return np.asarray(world.reshape(-1, 3), np.float32)


def _rotated(xyz: NDArray[np.floating], axes: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.asarray(xyz @ axes.T, np.float32)


def _extent(xyz: NDArray[np.floating]) -> float:
    low, high = np.quantile(xyz, [0.05, 0.95], axis=0)
    return float(np.linalg.norm(high - low)) or 1.0
