"""What has changed between two results of one place: surfaces in space that the other one saw free."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.consistency import DepthView, choose_neighbours, compare
from stream_recon.app.core.ply import header, vertices_of
from stream_recon.app.core.transforms import transform_points
from stream_recon.app.core.types import FrameResult
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.files import replace_file
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.run_record import CHANGES_NAME
from stream_recon.configs.errors import OutputError

ADDED_RGB, GONE_RGB = (40, 200, 90), (220, 60, 60)
"""Colours of points that are new, and of points that are no longer there."""
VIEWS = 6
"""Views of the other result that a frame is compared with."""
KEPT_VIEWS = 8 * VIEWS
"""Views that stay in memory."""
WITNESSES = 2
"""Views that have to see through a point; single ones are wrong at edges."""
MIN_AREA = 0.003
"""Least area of a change, as a share of the image: smaller ones are errors of depth."""
STEP = 2
"""Every n-th row and column is compared."""
MAX_POINTS = 4000
"""Points of a frame that are written."""


@dataclass(frozen=True)
class FrameChange:
    """Change that one frame shows."""

    frame: int
    """Index of the frame in its result."""
    share: float
    """Share of its image."""


@dataclass(frozen=True)
class Changes:
    """Frames of a result that show something new, and frames of the other one that show what is gone."""

    added: list[FrameChange]
    gone: list[FrameChange]


def find_changes(
    result: ResultFolder, earlier: ResultFolder, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> Changes:
    """Compare a result with an earlier one in the same world, and write the points of changes to ``changes.ply``.

    Raises OutputError where a file cannot be read or written.
    """
    total = len(result.surface_cameras) + len(earlier.surface_cameras)
    points: list[NDArray[np.float32]] = []
    colours: list[NDArray[np.uint8]] = []
    found: list[list[FrameChange]] = []
    done = 0
    for mine, other, colour in ((result, earlier, ADDED_RGB), (earlier, result, GONE_RGB)):
        frames = []
        for camera, share, xyz in changed_frames(mine, other):
            done += 1
            on_progress(done, total)
            if share:
                frames.append(FrameChange(camera.index, round(share, 4)))
                points.append(xyz)
                colours.append(np.tile(np.array(colour, np.uint8), (len(xyz), 1)))
        found.append(frames)
    everything = np.concatenate([np.zeros((0, 3), np.float32), *points])
    vertices = vertices_of(everything, np.concatenate([np.zeros((0, 3), np.uint8), *colours]))
    content = header(len(vertices)) + vertices.tobytes()
    replace_file(result.folder / CHANGES_NAME, lambda file: file.write(content))
    return Changes(found[0], found[1])


def changed_frames(mine: ResultFolder, other: ResultFolder) -> Iterator[tuple[FrameCamera, float, NDArray[np.float32]]]:
    """Each frame, the share of its image that stands in free space of the other result, and its points [N, 3]."""
    config = mine.points
    others = other.surface_cameras
    places = [(c.T_world_camera, c.intrinsics, c.source_size or (1, 1)) for c in others]

    @lru_cache(KEPT_VIEWS)
    def view(number: int) -> DepthView:
        return DepthView.from_result(other.surface_of(others[number]), other.points)

    for camera in mine.surface_cameras:
        try:
            frame = mine.surface_of(camera)
        except OutputError:
            continue
        own = DepthView.from_result(frame, config)
        mask = changed_pixels(frame, own, [view(number) for number in choose_neighbours(own, places, VIEWS)])
        yield camera, float(mask.mean()), _world_points(frame, mask)


def changed_pixels(frame: FrameResult, own: DepthView, others: Sequence[DepthView]) -> NDArray[np.bool_]:
    """Mask [h / STEP, w / STEP] of the pixels whose points stand in space that the other views saw free."""
    if len(others) < WITNESSES:
        return np.zeros(own.depth[::STEP, ::STEP].shape, bool)
    votes = compare(frame, own, others, STEP)
    free = ((votes.through >= WITNESSES) & (votes.agree == 0)).astype(np.uint8)
    free = cv2.morphologyEx(free, cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
    count, label, stats, _ = cv2.connectedComponentsWithStats(free)
    large = np.zeros(count, bool)
    large[1:] = stats[1:, cv2.CC_STAT_AREA] >= MIN_AREA * free.size
    return np.asarray(large[label])


def _world_points(frame: FrameResult, mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    local = frame.camera_points[::STEP, ::STEP][mask]
    local = local[:: max(len(local) // MAX_POINTS, 1)]
    return transform_points(frame.T_world_camera, local)
