"""Distances measured on a page between known corners of the sample, and how often the stated error holds.

Corners are places of the sample's exact depth maps where the surface bends in two directions and the depth within some
pixels changes by less than `MAX_STEP`, so that a click has one meaning. Each is clicked in the view of its frame, a
pixel off.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.cli.view import offer_result, show_result, show_surfaces
from stream_recon.app.result.folder import read_result
from stream_recon.app.viewer.measure import MeasuredDistance, Pick, Unit, pick
from stream_recon.app.viewer.panel import PageOptions
from stream_recon.app.viewer.picking import PointingRay
from stream_recon.app.viewer.viewer import Viewer
from stream_recon.configs.errors import InputError

TRUTH = Path(__file__).parents[2] / "app" / "sample" / "walkthrough.truth.npz"
WINDOW_HEIGHT, FOV_DEG = 900, 75.0
MAX_STEP = 0.1
"""Largest relative change of depth around a corner."""
STRONGEST = 0.03
"""Share of the pixels that are candidates, by how much the surface bends."""
BORDER = 5
MIN_LENGTH = 0.3
"""Shortest distance in metres."""
TRIES = 5000


def corners(depth: NDArray[np.floating], focal: float, centre: NDArray[np.floating]) -> NDArray[np.intp]:
    """Rows and columns [n, 2] of corners in a depth map."""
    v, u = np.mgrid[0 : depth.shape[0], 0 : depth.shape[1]].astype(float)
    points = np.stack([(u - centre[0]) / focal * depth, (v - centre[1]) / focal * depth, depth], axis=-1)
    normal = np.cross(np.gradient(points, axis=1), np.gradient(points, axis=0))
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True) + 1e-12
    right, down = np.gradient(normal, axis=1), np.gradient(normal, axis=0)
    a, b, c = (
        cv2.GaussianBlur((p * q).sum(axis=-1), (0, 0), 1.2) for p, q in ((right, right), (right, down), (down, down))
    )
    bend = (a + c) / 2 - np.sqrt(((a - c) / 2) ** 2 + b**2)
    inner = np.zeros(depth.shape, bool)
    inner[BORDER:-BORDER, BORDER:-BORDER] = True
    window = np.ones((5, 5))
    smooth = cv2.dilate(depth, window) < (1 + MAX_STEP) * cv2.erode(depth, window)
    found = inner & smooth & (bend == cv2.dilate(bend, np.ones((9, 9)))) & (bend > np.quantile(bend, 1 - STRONGEST))
    return np.argwhere(found)


def measured(folder: Path) -> tuple[list[tuple[Pick, NDArray[np.float64]]], Unit]:
    """Clicked corners with their true places in metres. Raises InputError for a result that is not in metres."""
    result = read_result(folder)
    if result.metric_scale is None:
        raise InputError(f"{folder} is not in metres: stream-recon scale {folder} WHAT")
    with np.load(TRUTH) as file:
        truth: dict[str, Any] = {name: file[name] for name in file.files}
    stride, (fx, fy, cx, cy) = int(truth["depth_stride"]), truth["intrinsics"]
    random = np.random.default_rng(0)
    pixel = 2 * np.tan(np.radians(FOV_DEG) / 2) / WINDOW_HEIGHT
    found = []
    with Viewer(result.points, port=0) as viewer:
        show_result(viewer, result, print)
        viewer.finish()
        show_surfaces(viewer, result)
        offer_result(viewer, folder)
        viewer.flush()
        content = viewer.state.content
        path = content.timeline.path(len(content.timeline))
        for frame, half in zip(truth["depth_frames"].tolist(), truth["depth"], strict=True):
            ordinal, depth = content.timeline.ordinal(frame), half.astype(float)
            if ordinal is None:
                continue
            k, pose = content.timeline.intrinsics(ordinal), content.timeline.poses[ordinal]
            centre = np.array([(cx - 0.5) / stride, (cy - 0.5) / stride])
            for row, column in corners(depth, fx / stride, centre):
                u, v, z = column * stride + 0.5, row * stride + 0.5, depth[row, column]
                direction = np.array([(u - k.cx) / k.fx, (v - k.cy) / k.fy, 1.0])
                direction[:2] += pixel * random.standard_normal(2)
                ahead = pose[:3, :3] @ direction
                ray = PointingRay(pose[:3, 3].copy(), ahead / np.linalg.norm(ahead), pixel, np.zeros((0, 4)))
                hit = content.hit(ray, PageOptions())
                if hit is not None:
                    T = truth["T_world_camera"][frame]
                    known = T[:3, :3] @ np.array([(u - cx) / fx * z, (v - cy) / fy * z, z]) + T[:3, 3]
                    found.append((pick(ray, hit, path), known))
    return found, Unit("metre", result.metric_scale.error)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="a result of the sample in metres")
    parser.add_argument("--json", type=Path)


def run(options: Namespace) -> None:
    found, unit = measured(options.folder)
    random = np.random.default_rng(1)
    rows = []
    for _ in range(TRIES):
        (a, first), (b, second) = (found[k] for k in random.choice(len(found), 2, replace=False))
        length = float(np.linalg.norm(first - second))
        if length >= MIN_LENGTH:
            distance = MeasuredDistance(a, b, unit)
            rows.append((length, abs(distance.length - length), distance.error))
    length, error, stated = np.array(rows).T
    print("| corners | distances | within the stated error | median length, error, stated error |")
    print("|---|---|---|---|")
    middle = ", ".join(f"{np.median(values):.3f} m" for values in (length, error, stated))
    print(f"| {len(found)} | {len(rows)} | {np.mean(error <= stated):.1%} | {middle} |")
    if options.json:
        options.json.write_text(json.dumps([list(row) for row in rows]))
