"""The scene as one GLB file: points, the keyframes' frusta, the path."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.ply import positions
from stream_recon.app.export.gltf import LINES, POINTS, Primitive, write_glb
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.points import some_points, spread_indices
from stream_recon.app.export.upright import gltf_axes, gltf_note
from stream_recon.app.export.view import PinholeView
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.run_record import PROGRAM

MOST_FRUSTA = 500
FRUSTUM_SHARE = 0.02
"""A frustum's depth, as a share of the diagonal of what lies within the middle nine tenths of the points."""
FRUSTUM_COLOUR, PATH_COLOUR = (0.12, 0.47, 0.86), (0.95, 0.45, 0.1)


def write_scene(job: ExportJob, path: Path) -> ExportReport:
    """Write the file. Raises StreamReconError, or OSError where the system refuses."""
    cameras = job.cameras("keyframes")
    vertices = some_points(job.result.folder, job.options.points)
    axes = gltf_axes(job.result.cameras, job.options.up)
    xyz = _turned(positions(vertices), axes)
    rgb = np.stack([vertices[channel] for channel in ("red", "green", "blue")], axis=1)
    poses = np.array([camera.T_world_camera for camera in job.result.cameras])
    shown = [cameras[k] for k in spread_indices(len(cameras), MOST_FRUSTA)]
    size = FRUSTUM_SHARE * _extent(xyz if len(xyz) else poses[:, :3, 3])
    parts = [
        Primitive("points", POINTS, xyz, rgb),
        Primitive("cameras", LINES, _turned(frusta(shown, job.view, size), axes), colour=FRUSTUM_COLOUR),
    ]
    if len(poses) > 1:
        line = _turned(poses[:, :3, 3], axes)
        parts.append(Primitive("path", LINES, np.repeat(line, 2, axis=0)[1:-1], colour=PATH_COLOUR))
    write_glb(path, parts, PROGRAM)
    return ExportReport(
        f"{len(vertices)} points, {len(shown)} camera frusta, the path of {len(poses)} frames.",
        [
            gltf_note(axes),
            "Nodes: points (colours at vertices), cameras (lines), path (a line through all frames).",
        ],
    )


def frusta(cameras: list[Camera], view: PinholeView, depth: float) -> NDArray[np.float32]:
    """Ends [N, 3] of lines, in pairs: from each camera to the corners of its image at ``depth``, and around them."""
    (width, height), k = view.size, view.intrinsics
    pixels = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
    corners = np.ones((4, 3))
    corners[:, :2] = (pixels - (k.cx, k.cy)) / (k.fx, k.fy)
    ends = np.concatenate([np.zeros((1, 3)), corners * depth])
    pairs = np.array([[0, 1], [0, 2], [0, 3], [0, 4], [1, 2], [2, 3], [3, 4], [4, 1]]).ravel()
    T = np.array([camera.T_world_camera for camera in cameras])
    world = np.einsum("nij,pj->npi", T[:, :3, :3], ends[pairs]) + T[:, None, :3, 3]
    return np.asarray(world.reshape(-1, 3), np.float32)


def _turned(xyz: NDArray[np.floating], axes: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.asarray(xyz @ axes.T, np.float32)


def _extent(xyz: NDArray[np.floating]) -> float:
    low, high = np.quantile(xyz, [0.05, 0.95], axis=0)
    return float(np.linalg.norm(high - low)) or 1.0
