"""Whether the map or the network is nearer to what the images show, by matches that neither was fitted to.

Held-out matches are not verified by geometry, so that neither side has picked them, and each part of the image has one
voice: texture on something that moves by itself counts for the part that it fills.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.mapping.features import Features
from stream_recon.app.mapping.matching import Matches
from stream_recon.app.mapping.problem import Lens
from stream_recon.app.mapping.views import carried, rays
from stream_recon.app.transforms import invert_pose

FloatArray = NDArray[np.float64]

PARTS = 8
"""Of the image, along its longer side."""
EPIPOLAR_PX = 1.5
CARRIED_PX = 8.0
"""Errors of this size count half; larger ones at most whole. The second one has the depth's error in it."""
MARGIN = 0.02
"""By so much the map has to be worse before the network is preferred."""
SHORTEST = 3
"""Keyframes in a stretch that is left to the network."""


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    T_world_camera: FloatArray  # [N, 4, 4]
    lens: Lens
    depth_scale: FloatArray  # [N]


def disagreement(
    side: Side, features: Sequence[Features], held_out: Mapping[tuple[int, int], Matches]
) -> dict[tuple[int, int], FloatArray]:
    """For each pair the share of the image that contradicts a side, [2]: by epipolar lines, and by depth and pose."""
    found = {}
    for (i, j), matches in held_out.items():
        a, b = features[i], features[j]
        T = invert_pose(side.T_world_camera[j]) @ side.T_world_camera[i]
        uv_a, uv_b = a.uv[matches[:, 0]], b.uv[matches[:, 1]]
        z = a.z[matches[:, 0]].astype(np.float64) * side.depth_scale[i]
        there, _ = carried(side.lens, uv_a, np.where(z > 0, z, np.nan), T)
        missed = np.linalg.norm(there - uv_b, axis=1)
        lines = epipolar_px(side.lens, uv_a, uv_b, T)
        part = np.unique(uv_a // (2 * max(side.lens.cx, side.lens.cy) / PARTS), axis=0, return_inverse=True)[1]
        part = np.asarray(part).reshape(-1)
        errors = np.stack([lines / EPIPOLAR_PX, np.nan_to_num(missed, nan=1e3) / CARRIED_PX])
        if len(matches):
            medians = np.array([np.median(errors[:, part == p], axis=1) for p in range(part.max() + 1)])
            found[i, j] = np.mean(medians**2 / (1 + medians**2), axis=0)
    return found


def epipolar_px(
    lens: Lens, uv_first: NDArray[np.floating], uv_second: NDArray[np.floating], T_second_first: FloatArray
) -> FloatArray:
    """Distances [N] of points from their epipolar lines in the second image, in pixels."""
    x, y = rays(lens, uv_first), rays(lens, uv_second)
    t = T_second_first[:3, 3]
    length = np.linalg.norm(t)
    turned = x @ T_second_first[:3, :3].T
    if length < 1e-9:
        return np.asarray(np.linalg.norm(turned[:, :2] / turned[:, 2:] - y[:, :2], axis=1) * lens.focal)
    line = np.cross(t / length, turned)
    return np.asarray(
        np.abs((line * y).sum(axis=1)) / np.maximum(np.linalg.norm(line[:, :2], axis=1), 1e-12) * lens.focal
    )


def worse_keyframes(
    mapped: Mapping[tuple[int, int], FloatArray], network: Mapping[tuple[int, int], FloatArray], count: int
) -> NDArray[np.bool_]:
    """[count] keyframes at which the map is worse than the network, in stretches of at least `SHORTEST`."""
    total, weight = np.zeros(count), np.zeros(count)
    for (i, j), error in mapped.items():
        for k in (i, j):
            total[k] += float((error - network[i, j]).sum()) / (j - i)
            weight[k] += 1 / (j - i)
    # Over neighbours, since a single pair says little.
    kernel = np.ones(SHORTEST)
    mean = np.convolve(total, kernel, "same") / np.maximum(np.convolve(weight, kernel, "same"), 1e-9)
    worse = mean > MARGIN
    for start, end in _runs(worse):
        if end - start < min(SHORTEST, count):
            worse[start:end] = False
    return worse


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
