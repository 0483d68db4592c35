"""Motions of the camera that the user knows, as priors with errors measured against a map.

Between keyframes that are 1, 2, 4, .. apart, each distance has errors of its own: those of single poses are as large
over short distances as over long ones, drift grows with them.
"""

import numpy as np

from stream_recon.app.core import so3
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.problem import FloatArray, Mask, RelativePoses
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.offline.held_out_test import HeldOutTest
from stream_recon.app.slam.offline.initialization import InitialCandidate, Initializer
from stream_recon.app.slam.offline.motion_errors import MEDIAN_OF_SQUARES

MIN_EDGES = 6
"""Fewest motions of one distance that tell their errors."""
NO_LENGTH = 1e-9
"""Length from which on the priors' lengths are as they are: their errors do not grow with them."""
MAP_PX = 1.0
"""Standard deviation of observations, in pixels, that known motions are weighed against: errors of lens and matches
that keyframes have in common do not show in their residuals. On the sample, 0.5 and 2 were less accurate."""


def known_motions(known: FloatArray, is_known: Mask, fit: BAState) -> RelativePoses | None:
    """Known motions between the keyframes of a map; None where too few tell their errors.

    Args:
        known: poses [K, 4, 4] of the keyframes in any world, and nearly in the map's unit.
        is_known: [K], those whose pose is known.
    """
    T, rows = fit.scene.T_world_camera, np.flatnonzero(is_known)
    spans = [2**power for power in range(16) if len(rows) - 2**power >= MIN_EDGES]
    if not spans:
        return None
    first = np.concatenate([rows[:-span] for span in spans])
    second = np.concatenate([rows[span:] for span in spans])
    group = np.repeat(np.arange(len(spans)), [len(rows) - span for span in spans])
    relative, mapped = (invert_pose(poses[first]) @ poses[second] for poses in (known, T))
    length, own = (np.linalg.norm(each[:, :3, 3], axis=1) for each in (relative, mapped))
    far = group == group[-1]
    unit = float(np.median(own[far]) / max(float(np.median(length[far])), 1e-12))
    turn = so3.log(np.swapaxes(relative[:, :3, :3], 1, 2) @ mapped[:, :3, :3])
    away = relative[:, :3, 3] - mapped[:, :3, 3] / unit
    # All distances tell of the same poses: each of them has its share of the information.
    sigmas = [
        np.array([np.sqrt(len(spans) * np.median(square[group == g]) / MEDIAN_OF_SQUARES) for g in range(len(spans))])
        for square in (np.square(turn).sum(axis=1), np.square(away).sum(axis=1))
    ]
    rotation, translation = (np.maximum(sigma, 1e-6)[group] for sigma in sigmas)
    translation = translation / np.maximum(length, NO_LENGTH)
    every = np.ones(len(first), bool)
    return RelativePoses(first, second, relative, rotation, translation, NO_LENGTH, every)


def with_known_motions(
    mapped: InitialCandidate, initializer: Initializer, test: HeldOutTest, is_known: Mask
) -> InitialCandidate:
    """The map that weighs known motions by their errors, or the one without them where held-out matches prefer it."""
    motions = known_motions(initializer.T_network, is_known, mapped.fit)
    if motions is None:
        return mapped
    other = initializer.with_motions(mapped, motions, MAP_PX)
    return mapped if test.is_better(mapped.fit, other.fit, test.config.sure) else other
