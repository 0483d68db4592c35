"""Result folders of the box room, with their source images."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.splats import Splats, splats_bytes
from stream_recon.app.core.types import FrameResult
from stream_recon.app.export.formats import FORMATS
from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import SPLATS_NAME, read_result, revision_of
from stream_recon.app.result.run_record import RUN_NAME, SPLATS, RunSummary
from stream_recon.app.result.writer import ResultWriter
from tests.app.boxroom import HALF, room_result
from tests.app.fake_engine import run_info

SIZE = (112, 84)
"""Size of the network's images; the source's are twice as large."""
LIBRARIES = {"rrd": "rerun", "mcap": "foxglove"}
FORMATS_HERE = [name for name in FORMATS if name not in LIBRARIES or find_spec(LIBRARIES[name]) is not None]
"""Formats whose library is installed: tests do not require all, of which some are large."""


def room_frames(count: int) -> list[FrameResult]:
    return [room_result(index, size=SIZE, keyframe=index % 2 == 0) for index in range(count)]


def write_source(folder: Path, count: int) -> Path:
    """The images that a camera in the room would have taken."""
    folder.mkdir(parents=True)
    for index in range(count):
        rgb = room_result(index, size=(2 * SIZE[0], 2 * SIZE[1])).rgb
        assert cv2.imwrite(str(folder / f"{index:03d}.png"), cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))
    return folder


def write_room(
    folder: Path, count: int = 8, *, source: bool = True, finish: bool = True, tilt: float = 0.0
) -> list[FrameResult]:
    """A result, and its source next to it. ``tilt``: rotation of the world about z, in radians."""
    images = folder.with_name(folder.name + "-source")
    if source:
        write_source(images, count)
    info = replace(run_info(), options={"source": str(images), "stride": 1})
    writer = ResultWriter(folder, info)
    slant = np.eye(4)
    slant[:2, :2] = [[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]]
    results = [replace(result, T_world_camera=slant @ result.T_world_camera) for result in room_frames(count)]
    for result in results:
        writer.add(result)
    if finish:
        writer.finish(RunSummary(interrupted=False, frames_reconstructed=count))
    return results


def write_splats(folder: Path) -> None:
    """Gaussian splats of a result: a few at its walls."""
    sides = np.concatenate([np.eye(3), -np.eye(3)]).astype(np.float32)
    count = len(sides)
    quats, scales = np.tile(np.array([1, 0, 0, 0], np.float32), (count, 1)), np.full((count, 3), -3, np.float32)
    splats = Splats(HALF * sides, scales, quats, np.full(count, 2, np.float32), np.zeros((count, 1, 3), np.float32))
    (folder / SPLATS_NAME).write_bytes(splats_bytes(splats))
    result = read_result(folder)
    replace_json(folder / RUN_NAME, {**result.run, SPLATS: {"revision": revision_of(result)}})


def off_the_walls(xyz: NDArray[np.floating]) -> NDArray[np.float64]:
    """Distances [N] of points [N, 3] from the room's walls."""
    return np.abs((np.abs(np.asarray(xyz, np.float64)) - HALF).max(axis=1))


def pixel_grid(width: int, height: int) -> NDArray[np.float64]:
    """Pixel centres [height, width, 2]."""
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    return np.stack([x, y], axis=-1)
