"""Result of a wall with writing above a floor, with exact depth maps and images of several exposures."""

import json
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Certainty, FrameResult, ImageTransform, Intrinsics
from stream_recon.app.result.dense import DENSE_FOLDER, DenseMap, encoded_image
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.run_record import DENSE, REFINEMENT, RUN_NAME, RunSummary
from stream_recon.app.result.writer import ResultWriter
from tests.app.fake_engine import run_info
from tests.app.result_files import write_dense

SIZE = (96, 72)
"""Depth maps; images are three times as large."""
SCALE = 3
WALL, FLOOR = 2.0, 0.7
"""z of the wall and y of the floor, which points down."""
PER_UNIT = 100
"""Pixels of the wall's picture per unit."""


def picture() -> NDArray[np.uint8]:
    """The wall's picture: writing that is neither symmetric left to right nor upside down."""
    image = np.full((240, 400, 3), (205, 190, 160), np.uint8)
    cv2.putText(image, "FLAG", (40, 130), cv2.FONT_HERSHEY_SIMPLEX, 4.0, (30, 40, 120), 22)
    cv2.circle(image, (345, 45), 28, (210, 60, 40), -1)
    return image


def view(T: NDArray[np.float64], scale: int = 1, gain: float = 1.0) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Image [h, w, 3] and depth [h, w] of a camera, ``scale`` times as large as depth maps."""
    width, height = SIZE[0] * scale, SIZE[1] * scale
    k = intrinsics(scale)
    u, v = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    rays = np.stack([(u - k.cx) / k.fx, (v - k.cy) / k.fy, np.ones_like(u)], axis=-1) @ T[:3, :3].T
    with np.errstate(divide="ignore"):
        wall = (WALL - T[2, 3]) / rays[..., 2]
        floor = np.where(rays[..., 1] > 1e-6, (FLOOR - T[1, 3]) / rays[..., 1], np.inf)
    depth = np.minimum(wall, floor)
    hit = T[:3, 3] + depth[..., None] * rays
    painted = picture()
    xy = ((hit[..., :2] + (2.0, 1.2)) * PER_UNIT).astype(np.float32)
    image = cv2.remap(painted, xy[..., 0], xy[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    tiles = (np.floor(hit[..., 0] * 5) + np.floor(hit[..., 2] * 5)) % 2
    image = np.where((floor < wall)[..., None], (60 + 70 * tiles[..., None]) * np.array([0.6, 1.0, 0.7]), image)
    return (image * gain).clip(0, 255).astype(np.uint8), depth.astype(np.float32)


def intrinsics(scale: int = 1) -> Intrinsics:
    return Intrinsics(90.0 * scale, 90.0 * scale, SIZE[0] * scale / 2, SIZE[1] * scale / 2)


def poses(count: int) -> list[NDArray[np.float64]]:
    """Cameras that move sideways and turn a little."""
    found = []
    for t in np.linspace(-1, 1, count):
        T = np.eye(4)
        angle = -0.25 * t
        T[:3, :3] = [[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]]
        T[:3, 3] = [0.9 * t, 0.05 * np.cos(5 * t), 0.1 * t]
        found.append(T)
    return found


def write_wall(folder: Path, count: int = 7, gains: tuple[float, ...] = (1.0,), *, dense: bool = True) -> ResultFolder:
    """A refined result of ``count`` frames, whose images have the ``gains`` in turn."""
    writer = ResultWriter(folder, run_info())
    transform = ImageTransform((SIZE[0] * SCALE, SIZE[1] * SCALE), (0.0, 0.0, SIZE[0] * SCALE, SIZE[1] * SCALE), SIZE)
    maps = []
    for index, T in enumerate(poses(count)):
        image, depth = view(T, SCALE, gains[index % len(gains)])[0], view(T)[1]
        small = np.asarray(cv2.resize(image, SIZE, interpolation=cv2.INTER_AREA), np.uint8)
        confidence = np.ones_like(depth)
        result = FrameResult(index, index / 10, T, intrinsics(SCALE), depth, confidence, small, transform, True)
        writer.add(result)
        certainty = np.full(depth.shape, Certainty.CONFIRMED, np.uint8)
        maps.append(DenseMap(index, depth, certainty, encoded_image(image), transform))
    writer.finish(RunSummary(interrupted=False, frames_reconstructed=count))
    if dense:
        record = json.loads((folder / RUN_NAME).read_text())
        reports = {REFINEMENT: {"id": "abc1", "fallback_segments": []}, DENSE: {"refinement": "abc1"}}
        (folder / RUN_NAME).write_text(json.dumps({**record, **reports}))
        (folder / DENSE_FOLDER).mkdir()
        for dense_map in maps:
            write_dense(folder, dense_map, "abc1")
    result = read_result(folder)
    assert len(result.dense) == (count if dense else 0)
    return result
