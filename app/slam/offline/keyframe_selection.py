"""Keyframe selection for refinement: by image displacement, preferring sharp frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.frame_data import FrameData, reproject


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
    return [
        begin + k
        for begin, end in pairwise(starts)
        for k in _of_segment(
            views[begin:end], size, max(config.max_keyframes * (end - begin) // max(len(views), 1), 2), config=config
        )
    ]


def _of_segment(views: Sequence[FrameData], size: tuple[int, int], most: int, config: KeyframeConfig) -> list[int]:
    if len(views) < 3:
        return list(range(len(views)))
    moved = np.array([displacement(a, b, size) for a, b in pairwise(views)])
    # For large steps the total displacement bounds the number, otherwise the threshold does.
    step, gap = config.step, config.max_gap
    while True:
        chosen = _choose(views, size, step, gap, sharp=_sharp(views, config=config), config=config)
        if len(chosen) <= most:
            return chosen
        step, gap = max(step * 1.3, float(moved.sum()) / (4 * most)), max(gap, int(1.3 * len(views) / most) + 1)


def displacement(first: FrameData, second: FrameData, size: tuple[int, int]) -> float:
    """Median displacement of the first frame's points as seen from the second, as a share of the longer side.

    Points that leave the image count as infinitely far; 1 without points.
    """
    uv, z = first.grid.pixels()
    if not len(uv):
        return 1.0
    camera_model = CameraModel((first.focal + second.focal) / 2, size[0] / 2, size[1] / 2)
    there, _ = reproject(camera_model, uv[::3], z[::3], invert_pose(second.T_world_camera) @ first.T_world_camera)
    moved = np.nan_to_num(np.linalg.norm(there - uv[::3], axis=1), nan=np.inf)
    return min(float(np.median(moved)) / max(size), 1.0)


def _sharp(views: Sequence[FrameData], config: KeyframeConfig) -> NDArray[np.bool_]:
    values = np.array([view.sharpness for view in views])
    window = 30
    around = np.array([np.median(values[max(0, i - window) : i + window + 1]) for i in range(len(values))])
    return values >= config.blurred * around


def _choose(
    views: Sequence[FrameData],
    size: tuple[int, int],
    step: float,
    longest: int,
    sharp: NDArray[np.bool_],
    config: KeyframeConfig,
) -> list[int]:
    chosen = [0]
    candidates: list[int] = []
    for i in range(1, len(views)):
        moved = displacement(views[chosen[-1]], views[i], size)
        if moved >= config.early * step:
            candidates.append(i)
        if moved < step and i - chosen[-1] < longest:
            continue
        usable = [c for c in candidates or [i] if sharp[c]]
        if not usable and moved < config.lost and i - chosen[-1] < longest:
            continue
        # The last one of nearly the best sharpness: larger baselines give better points.
        pool = usable or [i]
        best = max(views[c].sharpness for c in pool)
        chosen.append(max(c for c in pool if views[c].sharpness >= 0.8 * best))
        candidates = []
    if chosen[-1] != len(views) - 1:
        chosen.append(len(views) - 1)
    return chosen
