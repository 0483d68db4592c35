"""Errors of the network's motions, as variance components of a map (Foerstner, Z. Vermessungswesen 1979).

The map's motions differ from the network's by the errors of both. Of that difference the map's random error is known by
`half_maps`; what is left is the network's. An adjustment that knows it takes from the network what matches tell less
well, where they are few or noisy, and follows matches where they are many.
"""

import logging
from dataclasses import dataclass, replace

import numpy as np

from stream_recon.app.core import so3
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.ba.problem import FloatArray, RelativePoses
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.offline import hierarchical_ba
from stream_recon.app.slam.offline.half_maps import HALVES, HalvesConfig, half_maps
from stream_recon.app.slam.offline.held_out_test import HeldOutTest
from stream_recon.app.slam.offline.initialization import InitialCandidate, Initializer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MotionConfig:
    """When errors of the network's motions are known, and relevant."""

    min_share: float = 0.2
    """Least share of the squared difference that is the network's: two estimates from 20 motions are no surer."""
    relevant: float = 0.02
    """Share of the map's variance from which the network's motions are relevant: with 0.03 and more, paths that weigh
    them were more accurate by up to nine tenths, with less than 0.015 often less accurate."""
    min_motions: int = 6
    """Least number of motions that tell their errors."""
    max_adjustments: int = 2
    """Adjustments that turn away from what moves; errors of the network's motions are known better after the first
    one."""
    min_turned: float = 0.5
    """Least ratio of the observations that are explained after and before: 0.7 and more where a map followed an object
    for a while, 0.3 where the network is blind."""
    halves: HalvesConfig = HALVES


MOTIONS = MotionConfig()

MEDIAN_OF_SQUARES = 2.366
"""Median of the sum of the squares of three standard normal variables."""


@dataclass(frozen=True)
class MotionErrors:
    """The network's motions with their errors."""

    motions: RelativePoses
    share: float
    """Variance of the map's rotations from keyframe to keyframe, as a share of that of both."""
    is_relevant: bool
    """Whether the network's motions tell more than the map does already."""


def motion_errors(
    start: BAState, candidate: InitialCandidate, weak: RelativePoses, config: MotionConfig = MOTIONS
) -> MotionErrors | None:
    """Errors of the network's motions, by a map; None where too few tell them.

    Args:
        start: the map with all observations, also those that it does not explain.
        candidate: the map.
        weak: the network's motions with wide sigmas.
    """
    first = np.arange(min(len(start.scene.T_world_camera), config.halves.max_keyframes))
    motions = hierarchical_ba.composed(weak, first, config.halves.hierarchy)
    if motions is None or len(motions.first) < config.min_motions:
        return None
    part = hierarchical_ba.subset(start, first)
    try:
        one, two = half_maps(part, candidate, motions if candidate.motions else None, 0, config.halves)
    except (SingularError, np.linalg.LinAlgError):
        return None
    T = motions.T_first_second
    network, mapped = (T[:, :3, :3], T[:, :3, 3]), _motions(start, motions)
    length = np.maximum(np.linalg.norm(T[:, :3, 3], axis=1), motions.still * float(np.median(start.depth)))
    between = _variances(_motions(one, motions), _motions(two, motions), length)
    total = _variances(network, mapped, length)
    sigmas = [np.sqrt(max(both - own / 4, config.min_share * both)) for both, own in zip(total, between, strict=True)]
    every = np.ones(len(weak.first))
    known = replace(weak, rotation_sigma=sigmas[0] * every, translation_sigma=sigmas[1] * every)
    share = between[0] / 4 / max(total[0], 1e-18)
    return MotionErrors(known, share, share > config.relevant)


def with_network_motions(
    mapped: InitialCandidate, initializer: Initializer, test: HeldOutTest, config: MotionConfig = MOTIONS
) -> tuple[InitialCandidate, float]:
    """The map, or one that weighs the network's motions by their errors, and the network's error of a turn in degrees.

    Where both follow two motions, one of them is that of an object: the scene is the one on whose motion the network
    agrees. Else the result has to fit no worse.
    """
    candidate, turn_deg, sure = mapped, 0.0, test.config.sure
    try:
        for _ in range(config.max_adjustments):
            start = initializer.state_of(candidate.fit.scene)
            errors = motion_errors(start, candidate, initializer.network_motions(), config)
            if errors is None:
                break
            # The larger the map's own errors, the less its matches agree than their residuals say.
            other = initializer.with_motions(candidate, errors.motions, float(np.sqrt(errors.share)))
            has_turned = test.follow_two_motions(other.fit, candidate.fit)
            if has_turned:
                # Where the network is blind, little agrees with it.
                is_kept = other.share >= config.min_turned * candidate.share or test.loses(candidate.fit)
            else:
                least = -sure if errors.is_relevant else sure
                is_kept = test.is_better(other.fit, candidate.fit, least, by_depth=False)
            if is_kept:
                candidate, turn_deg = other, float(np.degrees(np.sqrt(3) * errors.motions.rotation_sigma[0]))
            if not (is_kept and has_turned):
                break
    except (SingularError, np.linalg.LinAlgError):
        logger.exception("the network's motions have not been weighed")
        return mapped, 0.0
    return candidate, turn_deg


_Motions = tuple[FloatArray, FloatArray]
"""Rotations [E, 3, 3] and translations [E, 3] in the unit of the network's depth."""


def _motions(fit: BAState, motions: RelativePoses) -> _Motions:
    scene = fit.scene
    assert scene.log_depth_scale is not None
    relative = invert_pose(scene.T_world_camera[motions.first]) @ scene.T_world_camera[motions.second]
    log_scale = 0.5 * (scene.log_depth_scale[motions.first] + scene.log_depth_scale[motions.second])
    return relative[:, :3, :3], relative[:, :3, 3] * np.exp(-log_scale)[:, None]


def _variances(one: _Motions, two: _Motions, length: FloatArray) -> tuple[float, float]:
    """Variances of the differences of rotations in rad, and of translations relative to ``length`` [E]; robust."""
    turn = so3.log(np.swapaxes(one[0], 1, 2) @ two[0])
    away = (one[1] - two[1]) / length[:, None]
    rotation, translation = (float(np.median(np.square(each).sum(axis=1))) for each in (turn, away))
    return rotation / MEDIAN_OF_SQUARES, translation / MEDIAN_OF_SQUARES
