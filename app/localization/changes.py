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
from stream_recon.app.localization.config import DEFAULT_LOCALIZATION, ChangeConfig
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.files import replace_file
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.run_record import CHANGES_NAME
from stream_recon.configs.errors import OutputError

ADDED_RGB, GONE_RGB = (40, 200, 90), (220, 60, 60)
"""Colours of points that are new, and of points that are no longer there."""


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
    result: ResultFolder,
    earlier: ResultFolder,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    config: ChangeConfig = DEFAULT_LOCALIZATION.changes,
) -> Changes:
    """Compare a result with an earlier one in the same world, and write the points of changes to ``changes.ply``.

    Raises OutputError where a file cannot be read or written.
    """
    total = len(result.surface_cameras) + len(earlier.surface_cameras)
    points: list[NDArray[np.float32]] = []
    colours: list[NDArray[np.uint8]] = []
    changes: list[list[FrameChange]] = []
    done = 0
    for mine, other, colour in ((result, earlier, ADDED_RGB), (earlier, result, GONE_RGB)):
        frames = []
        for camera, share, xyz in changed_frames(mine, other, config):
            done += 1
            on_progress(done, total)
            if share:
                frames.append(FrameChange(camera.index, round(share, 4)))
                points.append(xyz)
                colours.append(np.tile(np.array(colour, np.uint8), (len(xyz), 1)))
        changes.append(frames)
    everything = np.concatenate([np.zeros((0, 3), np.float32), *points])
    vertices = vertices_of(everything, np.concatenate([np.zeros((0, 3), np.uint8), *colours]))
    content = header(len(vertices)) + vertices.tobytes()
    replace_file(result.folder / CHANGES_NAME, lambda file: file.write(content))
    return Changes(*changes)


def changed_frames(
    mine: ResultFolder, other: ResultFolder, config: ChangeConfig = DEFAULT_LOCALIZATION.changes
) -> Iterator[tuple[FrameCamera, float, NDArray[np.float32]]]:
    """Each frame, the share of its image that stands in free space of the other result, and its points [N, 3]."""
    others = other.surface_cameras
    poses = [(c.T_world_camera, c.intrinsics, c.source_size) for c in others]

    @lru_cache(config.cached_views)
    def view(number: int) -> DepthView:
        return DepthView.from_result(other.surface_of(others[number]), other.points)

    for camera in mine.surface_cameras:
        try:
            frame = mine.surface_of(camera)
        except OutputError:
            continue
        own = DepthView.from_result(frame, mine.points)
        views = [view(number) for number in choose_neighbours(own, poses, config.views)]
        mask = changed_pixels(frame, own, views, config)
        yield camera, float(mask.mean()), _world_points(frame, mask, config)


def changed_pixels(
    frame: FrameResult, own: DepthView, others: Sequence[DepthView], config: ChangeConfig
) -> NDArray[np.bool_]:
    """Mask [h / step, w / step] of the pixels whose points stand in space that the other views saw free."""
    if len(others) < config.witnesses:
        return np.zeros(own.depth[:: config.step, :: config.step].shape, bool)
    votes = compare(frame, own, others, config.step)
    free = ((votes.through >= config.witnesses) & (votes.agree == 0)).astype(np.uint8)
    free = cv2.morphologyEx(free, cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
    count, label, stats, _ = cv2.connectedComponentsWithStats(free)
    large = np.zeros(count, bool)
    large[1:] = stats[1:, cv2.CC_STAT_AREA] >= config.min_area * free.size
    return np.asarray(large[label])


def _world_points(frame: FrameResult, mask: NDArray[np.bool_], config: ChangeConfig) -> NDArray[np.float32]:
    local = frame.camera_points[:: config.step, :: config.step][mask]
    local = local[:: max(len(local) // config.max_points, 1)]
    return transform_points(frame.T_world_camera, local)
