"""Held-out errors of poses and depth: by matches that nothing was fitted to, and by depth maps of neighbours.

Held-out matches are not verified by geometry, so that no candidate has selected them. Each part of the image has the
same weight: texture on a moving object counts for the area that it covers. Depth maps cover parts without texture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.evidence.depth_ratios import DepthMaps
from stream_recon.app.slam.frame_data import DepthGrid, reproject
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.matching import Matches

Pairs = Sequence[tuple[int, int]]
Agreement = tuple[FloatArray, FloatArray]
"""`depth_agreement` of the network and the map."""


@dataclass(frozen=True)
class HeldOutConfig:
    """How errors by held-out matches and depth maps are measured."""

    parts: int = 8
    """Parts of the image along its longer side."""
    epipolar_px: float = 1.5
    """Distance from the epipolar line with loss 1/2; the loss is bounded by 1."""
    reprojection: float = 1 / 60
    """Reprojection error with loss 1/2, as a share of the longer side, since it is mostly an error of depth."""
    min_cells: int = 20
    """Least number of common cells of two depth maps; with fewer, agreement is not significant."""
    min_matches: int = 5
    """Least number of matches of a pair; blurred keyframes have one or two by chance."""
    close: tuple[float, float] = (5.5, 11)
    """Depths agree if they differ by less than these multiples (mean over both) of the median difference under the
    network. Smaller ones would favour the network: its poses and depth come from one estimate, in which depth is fused
    over time."""


HELD_OUT = HeldOutConfig()


@dataclass(frozen=True)
class PoseCandidate:
    """Poses, intrinsics and depth scales to test."""

    T_world_camera: FloatArray  # [N, 4, 4]
    camera_model: CameraModel
    depth_scale: FloatArray  # [N]


@dataclass(frozen=True)
class HeldOutError:
    """Held-out errors of a candidate."""

    parts: Mapping[tuple[int, int], FloatArray]
    """For each pair, losses [P, 2] of the image's parts: by epipolar lines, and by depth and pose."""

    @cached_property
    def pairs(self) -> Mapping[tuple[int, int], FloatArray]:
        """For each pair, the means [2] over the parts."""
        return {pair: parts.mean(axis=0) for pair, parts in self.parts.items()}

    @property
    def mean(self) -> float:
        """Mean over pairs and both kinds; 1 without pairs."""
        return float(np.mean([share.mean() for share in self.pairs.values()])) if self.pairs else 1.0

    @property
    def by_lines(self) -> float:
        """Mean over pairs by epipolar lines alone; 1 without pairs."""
        return float(np.mean([share[0] for share in self.pairs.values()])) if self.pairs else 1.0

    @classmethod
    def measure(
        cls,
        side: PoseCandidate,
        features: Sequence[Features],
        held_out: Mapping[tuple[int, int], Matches],
        config: HeldOutConfig = HELD_OUT,
    ) -> "HeldOutError":
        """Errors of a candidate by held-out matches."""
        losses, camera_model = {}, side.camera_model
        part_px = camera_model.longer_side / config.parts
        reprojection_px = config.reprojection * camera_model.longer_side
        for (i, j), matches in held_out.items():
            a, b = features[i], features[j]
            T = invert_pose(side.T_world_camera[j]) @ side.T_world_camera[i]
            uv_a, uv_b = a.uv[matches[:, 0]], b.uv[matches[:, 1]]
            z = a.z[matches[:, 0]].astype(np.float64) * side.depth_scale[i]
            projected, _ = reproject(camera_model, uv_a, np.where(z > 0, z, np.nan), T)
            error = np.linalg.norm(projected - uv_b, axis=1)
            lines = epipolar_px(camera_model, uv_a, uv_b, T)
            part = np.unique(uv_a // part_px, axis=0, return_inverse=True)[1].reshape(-1)
            errors = np.stack([lines / config.epipolar_px, np.nan_to_num(error, nan=1e3) / reprojection_px])
            if len(matches) >= config.min_matches:
                medians = np.stack([medians_by(part, row) for row in errors], axis=1)
                losses[i, j] = medians**2 / (1 + medians**2)
        return cls(losses)


def image_parts(camera_model: CameraModel, config: HeldOutConfig = HELD_OUT) -> int:
    """Number of parts of an image, as in `HeldOutError.measure`."""
    size = (2 * camera_model.cx, 2 * camera_model.cy)
    return int(np.prod([np.ceil(config.parts * each / camera_model.longer_side) for each in size]))


def medians_by(part: NDArray[np.integer], values: FloatArray) -> FloatArray:
    """Medians [P] of values [N] by part; ``part`` [N] contains all numbers from 0 to P - 1."""
    order = np.lexsort((values, part))
    count = np.bincount(part)
    first = np.cumsum(count) - count
    sorted_values = values[order]
    return np.asarray(0.5 * (sorted_values[first + (count - 1) // 2] + sorted_values[first + count // 2]))


def depth_agreement(
    network: PoseCandidate,
    mapped: PoseCandidate,
    grids: Sequence[DepthGrid],
    pairs: Pairs,
    config: HeldOutConfig = HELD_OUT,
) -> Agreement:
    """Shares of the image on whose depth the keyframes of pairs [P] agree, [P] for each candidate; see `close`.

    Unlike matches, they cover parts without texture.
    """
    errors = []
    for side in (network, mapped):
        maps = DepthMaps.of(side.camera_model, grids, side.depth_scale)
        both_ways = [[(i, j) for i, j in pairs], [(j, i) for i, j in pairs]]
        forward, backward = (maps.common_log_ratios(side.camera_model, side.T_world_camera, some) for some in both_ways)
        errors.append([[np.abs(one) for one in both] for both in zip(forward, backward, strict=True)])
    differences = np.concatenate([one for both in errors[0] for one in both]) if pairs else np.zeros(0)
    close = np.array(config.close) * (float(np.median(differences)) if len(differences) else 0.0)

    def share(difference: FloatArray) -> float:
        return float(np.mean(difference <= close[:, None])) if len(difference) >= config.min_cells else 0.0

    before, after = (np.array([np.mean([share(one) for one in both]) for both in side]) for side in errors)
    return before, after


def epipolar_px(
    camera_model: CameraModel,
    uv_first: NDArray[np.floating],
    uv_second: NDArray[np.floating],
    T_second_first: FloatArray,
) -> FloatArray:
    """Distances [N] of points from their epipolar lines in the second image, in pixels."""
    x, y = camera_model.unproject(uv_first), camera_model.unproject(uv_second)
    t = T_second_first[:3, 3]
    length = np.linalg.norm(t)
    rotated = x @ T_second_first[:3, :3].T
    if length < 1e-9:
        return np.asarray(np.linalg.norm(rotated[:, :2] / rotated[:, 2:] - y[:, :2], axis=1) * camera_model.focal)
    line = np.cross(t / length, rotated)
    return np.asarray(
        np.abs((line * y).sum(axis=1)) / np.maximum(np.linalg.norm(line[:, :2], axis=1), 1e-12) * camera_model.focal
    )
