"""Keyframe selection for refinement: by image displacement, preferring sharp frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.frame_data import FrameData, reproject
from stream_recon.app.slam.rig_poses import RigFrames


@dataclass(frozen=True)
class KeyframeConfig:
    """Spacing and sharpness of keyframes."""

    step: float = 0.02
    """Image displacement between keyframes, as a share of the longer side."""
    max_gap: int = 15
    """Most frames between keyframes, even without motion, since the network's motion may be wrong."""
    early: float = 0.6
    """Share of a step from which a sharper frame is preferred."""
    blurred: float = 0.3
    """Sharpness relative to the median around, below which a frame is too blurred for a keyframe."""
    lost: float = 0.25
    """Displacement from which a blurred keyframe is better than none."""
    max_keyframes: int = 2500
    """Most keyframes; memory grows by half a megabyte of descriptors each."""


KEYFRAMES = KeyframeConfig()


def choose_keyframes(
    views: Sequence[FrameData], size: tuple[int, int], config: KeyframeConfig = KEYFRAMES
) -> list[int]:
    """Positions of keyframes in ``views``, ascending, with the first and last frame of each segment.

    ``size``: width and height of the working image.
    """
    starts = [0, *(k for k in range(1, len(views)) if views[k].segment != views[k - 1].segment), len(views)]
    chosen: list[int] = []
    for begin, end in pairwise(starts):
        count = max(config.max_keyframes * (end - begin) // max(len(views), 1), 2)
        chosen += [begin + k for k in _of_segment(views[begin:end], size, count, config)]
    return chosen


def choose_rig_keyframes(
    views: Sequence[FrameData], rig: RigFrames, size: tuple[int, int], most: int, config: KeyframeConfig = KEYFRAMES
) -> list[int]:
    """Positions of keyframes, ascending: all views at the frames of the view that needs most of them.

    ``most``: number of keyframes.
    """
    by_view = [np.flatnonzero(rig.view == view) for view in np.unique(rig.view)]
    count = max(most // len(rig.rig), 2)
    chosen = [own[_of_segment([views[int(k)] for k in own], size, count, config)] for own in by_view]
    return np.flatnonzero(np.isin(rig.body, rig.body[max(chosen, key=len)])).tolist()


def _of_segment(views: Sequence[FrameData], size: tuple[int, int], count: int, config: KeyframeConfig) -> list[int]:
    """At most ``count`` keyframes of a segment."""
    if len(views) < 3:
        return list(range(len(views)))
    moved = np.array([displacement(a, b, size) for a, b in pairwise(views)])
    is_sharp = _is_sharp(views, config)
    # For large steps the total displacement bounds the number, otherwise the threshold does.
    step, gap = config.step, config.max_gap
    while True:
        chosen = _choose(views, size, step, gap, is_sharp, config)
        if len(chosen) <= count:
            return chosen
        step, gap = max(step * 1.3, float(moved.sum()) / (4 * count)), max(gap, int(1.3 * len(views) / count) + 1)


def displacement(first: FrameData, second: FrameData, size: tuple[int, int]) -> float:
    """Median displacement of the first frame's points as seen from the second, as a share of the longer side.

    Points that leave the image count as infinitely far; 1 without points.
    """
    uv, z = first.grid.pixels()
    if not len(uv):
        return 1.0
    camera_model = CameraModel((first.focal + second.focal) / 2, size[0] / 2, size[1] / 2)
    projected, _ = reproject(camera_model, uv[::3], z[::3], invert_pose(second.T_world_camera) @ first.T_world_camera)
    moved = np.nan_to_num(np.linalg.norm(projected - uv[::3], axis=1), nan=np.inf)
    return min(float(np.median(moved)) / max(size), 1.0)


def _is_sharp(views: Sequence[FrameData], config: KeyframeConfig) -> NDArray[np.bool_]:
    values = np.array([view.sharpness for view in views])
    window = 30
    around = np.array([np.median(values[max(0, i - window) : i + window + 1]) for i in range(len(values))])
    return values >= config.blurred * around


def _choose(
    views: Sequence[FrameData],
    size: tuple[int, int],
    step: float,
    max_gap: int,
    is_sharp: NDArray[np.bool_],
    config: KeyframeConfig,
) -> list[int]:
    chosen = [0]
    candidates: list[int] = []
    for i in range(1, len(views)):
        moved = displacement(views[chosen[-1]], views[i], size)
        if moved >= config.early * step:
            candidates.append(i)
        usable = [c for c in candidates or [i] if is_sharp[c]]
        if i - chosen[-1] < max_gap and moved < (step if usable else max(step, config.lost)):
            continue
        chosen.append(_last_sharp(views, usable or [i]))
        candidates = []
    return chosen if chosen[-1] == len(views) - 1 else [*chosen, len(views) - 1]


def _last_sharp(views: Sequence[FrameData], candidates: Sequence[int]) -> int:
    """The last one of nearly the best sharpness: larger baselines give better points."""
    best = max(views[c].sharpness for c in candidates)
    return max(c for c in candidates if views[c].sharpness >= 0.8 * best)
