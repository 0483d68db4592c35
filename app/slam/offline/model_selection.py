"""Whether the map or the network is nearer to what the images show, by matches that neither was fitted to.

Held-out matches are not verified by geometry, so that neither side has picked them, and each part of the image has one
voice: texture on something that moves by itself counts for the part that it fills.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.frame_data import DepthGrid, reproject, unproject
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.matching import Matches

FloatArray = NDArray[np.float64]

PARTS = 8
"""Of the image, along its longer side."""
EPIPOLAR_PX = 1.5
CARRIED_PX = 8.0
"""Errors of this size count half; larger ones at most whole. The second one has the depth's error in it."""
MIN_CELLS = 20
FEWEST = 5
"""Matches of a pair; of blurred keyframes there are one or two by chance."""
CLOSE = (5.5, 11)
"""Depths agree if they differ by at most so many times what half of them differ by under the network; the mean over
these. Closer, the network is good at agreeing with itself, since its poses and depth come from one guess, and depth is
drawn towards that of the frame before by the network's own motion; what follows something that moves by itself is off
by more."""
COST, REST_COST = 0.1, 0.05
"""Depth may agree less than under the network: for each percent by which held-out matches contradict less, by so many
percent. The second one: beside stretches that are left to the network."""
SPOILT, MOST_SPOILT = 0.3, 0.05
"""A part of the image is spoilt where it contradicts the map by so much more than the network. Of maps that were right
at most .035 was, of those that followed a patch moving through the image .055 and more in all but two of eleven."""
WHY = "what neither was fitted to agrees better with the network"
MARGIN = 0.02
"""By so much the map has to be worse before the network is preferred."""
CHANCE = 0.1
"""Depth of a few keyframes may agree less by so much as a share, without its meaning anything."""
BROKEN, BROKEN_DEPTH = 0.15, 0.5
"""A step is broken where so much more of the image contradicts the map, or where keyframes were matched across it, and
depth agrees on so much less of it than under the network."""
TIED, MIN_TIES = 0.8, 30
"""Parts on either side of a break belong together where the map explains so many of their matches, and such a share of
what is usual of such pairs: chance alone lets a pair's matches fit more than half."""
SHORTEST = 3
"""Keyframes in a stretch that is left to the network."""


@dataclass(frozen=True)
class PoseCandidate:
    """One of the two that are compared."""

    T_world_camera: FloatArray  # [N, 4, 4]
    lens: CameraModel
    depth_scale: FloatArray  # [N]


@dataclass(frozen=True)
class HeldOutError:
    """Against a side."""

    parts: Mapping[tuple[int, int], FloatArray]
    """For each pair how far each part of the image contradicts it, [P, 2]: by epipolar lines, and by depth and pose."""

    @cached_property
    def pairs(self) -> Mapping[tuple[int, int], FloatArray]:
        """For each pair the share of the image that contradicts it, [2], likewise."""
        return {pair: parts.mean(axis=0) for pair, parts in self.parts.items()}

    @property
    def mean(self) -> float:
        """Over pairs and kinds; 1 where there is nothing to go by."""
        return float(np.mean([share.mean() for share in self.pairs.values()])) if self.pairs else 1.0

    def among(self, keyframes: NDArray[np.bool_]) -> "HeldOutError":
        """Of pairs of these keyframes alone; ``keyframes``: [N]."""
        return HeldOutError({(i, j): parts for (i, j), parts in self.parts.items() if keyframes[i] and keyframes[j]})

    @classmethod
    def of(
        cls, side: PoseCandidate, features: Sequence[Features], held_out: Mapping[tuple[int, int], Matches]
    ) -> "HeldOutError":
        """By matches of features that no side has seen."""
        found = {}
        for (i, j), matches in held_out.items():
            a, b = features[i], features[j]
            T = invert_pose(side.T_world_camera[j]) @ side.T_world_camera[i]
            uv_a, uv_b = a.uv[matches[:, 0]], b.uv[matches[:, 1]]
            z = a.z[matches[:, 0]].astype(np.float64) * side.depth_scale[i]
            there, _ = reproject(side.lens, uv_a, np.where(z > 0, z, np.nan), T)
            missed = np.linalg.norm(there - uv_b, axis=1)
            lines = epipolar_px(side.lens, uv_a, uv_b, T)
            part = np.unique(uv_a // (2 * max(side.lens.cx, side.lens.cy) / PARTS), axis=0, return_inverse=True)[1]
            part = np.asarray(part).reshape(-1)
            errors = np.stack([lines / EPIPOLAR_PX, np.nan_to_num(missed, nan=1e3) / CARRIED_PX])
            if len(matches) >= FEWEST:
                medians = np.stack([medians_by(part, row) for row in errors], axis=1)
                found[i, j] = medians**2 / (1 + medians**2)
        return cls(found)


def medians_by(part: NDArray[np.integer], values: FloatArray) -> FloatArray:
    """Medians [P] of the values [N] of each part; ``part`` [N] has all numbers from 0 to P - 1."""
    order = np.lexsort((values, part))
    count = np.bincount(part)
    first = np.cumsum(count) - count
    sorted_values = values[order]
    return np.asarray(0.5 * (sorted_values[first + (count - 1) // 2] + sorted_values[first + count // 2]))


def depth_agreement(
    network: PoseCandidate, mapped: PoseCandidate, grids: Sequence[DepthGrid]
) -> tuple[FloatArray, FloatArray]:
    """For each side and each keyframe but the last [N - 1] the share of what it and the next see on whose depth they
    agree, also where there is no texture; see `CLOSE`."""
    errors = []
    for side in (network, mapped):
        pairs = [(i, i + 1) for i in range(len(grids) - 1)]
        errors.append([[_depth_errors(side, grids, a, b), _depth_errors(side, grids, b, a)] for a, b in pairs])
    every = np.concatenate([off for both in errors[0] for off in both]) if len(grids) > 1 else np.zeros(0)
    close = np.array(CLOSE) * (float(np.median(every)) if len(every) else 0.0)

    def share(off: FloatArray) -> float:
        return float(np.mean(off <= close[:, None])) if len(off) >= MIN_CELLS else 0.0

    before, after = (np.array([np.mean([share(off) for off in both]) for both in side]) for side in errors)
    return before, after


def spoilt(network: HeldOutError, mapped: HeldOutError) -> float:
    """Share of the image that the network's poses and depth explain and the map's do not."""
    if not mapped.parts:
        return 0.0
    worse = [ours[:, 1] - network.parts[pair][:, 1] > SPOILT for pair, ours in mapped.parts.items()]
    return float(np.concatenate(worse).mean())


def is_better(held_out: tuple[float, float], agreement: tuple[float, float], cost: float = COST) -> bool:
    """Whether the map is nearer to the images than the network.

    Matches lie where texture is, and something that moves by itself may have more of it than all else; depth says what
    becomes of the rest of the image. So each has a say.

    Args:
        held_out: how much of the image contradicts the network and the map, see `HeldOutError.mean`.
        agreement: of depth under the network and the map, see `depth_agreement`.
        cost: see `COST`.
    """
    gain = 1 - held_out[1] / max(held_out[0], 1e-9)
    loss = 1 - agreement[1] / max(agreement[0], 1e-9)
    return gain >= 0 and loss <= cost * gain


def fallback_segments(
    mapped: HeldOutError,
    network: HeldOutError,
    agreement: tuple[FloatArray, FloatArray],
    explained: Mapping[tuple[int, int], tuple[int, int]],
) -> NDArray[np.bool_]:
    """[N] keyframes whose map is not believed: none, some stretches, or all. Arguments as for `worse_keyframes`.

    What remains beside such stretches has to be better by stricter rules: a map that is right is right everywhere,
    while one that follows what moves spoils the rest.
    """
    count = len(agreement[0]) + 1
    every = np.ones(count, bool)
    if not is_better((network.mean, mapped.mean), _means(agreement, every)):
        return every
    left = worse_keyframes(mapped, network, agreement, explained)
    rest = network.among(~left), mapped.among(~left)
    fine = is_better((rest[0].mean, rest[1].mean), _means(agreement, ~left), REST_COST)
    return left if fine and spoilt(*rest) <= MOST_SPOILT else every


def _means(agreement: tuple[FloatArray, FloatArray], among: NDArray[np.bool_]) -> tuple[float, float]:
    steps = among[:-1] & among[1:]
    before, after = (float(side[steps].mean()) if steps.any() else 0.0 for side in agreement)
    return before, after


def _depth_errors(side: PoseCandidate, grids: Sequence[DepthGrid], a: int, b: int) -> FloatArray:
    """Of the log of a keyframe's depths as another one has them."""
    uv, z = grids[a].pixels()
    T = invert_pose(side.T_world_camera[b]) @ side.T_world_camera[a]
    there, depth = reproject(side.lens, uv, z * side.depth_scale[a], T)
    seen = grids[b].at(np.nan_to_num(there, nan=-1e6)) * side.depth_scale[b]
    both = (seen > 0) & (depth > 0)
    return np.asarray(np.abs(np.log(depth[both] / seen[both])))


def epipolar_px(
    lens: CameraModel, uv_first: NDArray[np.floating], uv_second: NDArray[np.floating], T_second_first: FloatArray
) -> FloatArray:
    """Distances [N] of points from their epipolar lines in the second image, in pixels."""
    x, y = unproject(lens, uv_first), unproject(lens, uv_second)
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
    mapped: HeldOutError,
    network: HeldOutError,
    agreement: tuple[FloatArray, FloatArray],
    explained: Mapping[tuple[int, int], tuple[int, int]],
) -> NDArray[np.bool_]:
    """[N] keyframes at which the map is worse than the network, in stretches of at least `SHORTEST`.

    Args:
        agreement: of depth under the network and the map, see `depth_agreement`.
        explained: of each matched pair how many matches the map explains, and of how many that it was fitted to.
    """
    before, after = agreement
    count = len(before) + 1
    held, weight = np.zeros((2, count)), np.zeros(count)
    for (i, j), error in mapped.pairs.items():
        for k in (i, j):
            held[:, k] += np.array([network.pairs[i, j].mean(), error.mean()]) / (j - i)
            weight[k] += 1 / (j - i)
    # Over neighbours, since a single pair says little.
    kernel = np.ones(min(SHORTEST, count))
    total = np.maximum(np.convolve(weight, kernel, "same"), 1e-9)
    theirs, ours = (np.convolve(side, kernel, "same") / total for side in held)
    agreed, agree = (np.convolve(np.append(side, side[-1:]), kernel, "same") for side in (before, after))
    gain, loss = 1 - ours / np.maximum(theirs, 1e-9), 1 - agree / np.maximum(agreed, 1e-9)
    worse = (ours - theirs > MARGIN) | (loss > COST * np.maximum(gain, 0) + CHANCE)
    for start, end in runs(worse):
        if end - start < min(SHORTEST, count):
            worse[start:end] = False
    return np.asarray(worse | _cut_off(mapped, network, agreement, explained))


def _cut_off(
    mapped: HeldOutError,
    network: HeldOutError,
    agreement: tuple[FloatArray, FloatArray],
    explained: Mapping[tuple[int, int], tuple[int, int]],
) -> NDArray[np.bool_]:
    """[N] keyframes beyond a step at which the map breaks, all but the largest part with what is tied to it.

    What carried a stretch away may agree with the map all along it; it shows where the stretch begins and ends. What
    comes before and after it may see the same.
    """
    before, after = agreement
    across = np.zeros(len(after) + 1, np.int64)
    for i, j in explained:
        across[i] += 1
        across[j] -= 1
    breaks = (np.cumsum(across)[:-1] > 0) & (after < BROKEN_DEPTH * before)
    for k in range(len(after)):
        if (k, k + 1) in mapped.pairs:
            breaks[k] |= mapped.pairs[k, k + 1].mean() - network.pairs[k, k + 1].mean() > BROKEN
    part = np.concatenate([[0], np.cumsum(breaks)])
    # By kind of pair: of keyframes far apart fewer matches are usually explained than of neighbours.
    near = max((j - i for i, j in mapped.pairs), default=1)
    fits, of = np.zeros((2, 2, part[-1] + 1, part[-1] + 1))
    for (i, j), (kept, every) in explained.items():
        kind = int(j - i <= near)
        fits[kind, part[i], part[j]] += kept
        of[kind, part[i], part[j]] += every
    found, usual = fits.sum(axis=0), fits.sum() / max(of.sum(), 1.0)
    expected = sum(_usual(kept, every, usual) * every for kept, every in zip(fits, of, strict=True))
    tied = (found >= MIN_TIES) & (found >= TIED * expected)
    _, label = connected_components(tied, directed=False)
    group = label[part]
    return np.asarray(group != np.bincount(group).argmax())


def _usual(kept: FloatArray, every: FloatArray, otherwise: float) -> float:
    """Share of the matches [P, P] of parts that is explained within parts; ``otherwise``: where these have too few."""
    inside = float(np.trace(every))
    return float(np.trace(kept)) / inside if inside >= MIN_TIES else otherwise


def runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where a mask is true: from each first to behind each last."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
