"""Maps from two disjoint halves of the tracks, whose difference tells the random error of the map from all tracks.

This is a delete-half jackknife (Shao and Wu, Annals of Statistics 1989): the halves, with half of the priors'
information, differ by twice that error.
"""

from dataclasses import dataclass, replace

import numpy as np

from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.ba.problem import Priors, RelativePoses
from stream_recon.app.slam.ba.robust_ba import BARound, BAState, SolveOptions
from stream_recon.app.slam.offline import hierarchical_ba
from stream_recon.app.slam.offline.hierarchical_ba import HIERARCHY, HierarchyConfig
from stream_recon.app.slam.offline.initialization import InitialCandidate

ROUNDS = (BARound(2, 6, 6, free_k1=True, tolerance=1e-2), BARound(1, 3, 8, free_k1=True, tolerance=1e-2))


@dataclass(frozen=True)
class HalvesConfig:
    """How maps from halves of the tracks are adjusted."""

    rounds: tuple[BARound, ...] = ROUNDS
    """Rounds of a half: the errors are within an eighth of those after convergence."""
    max_keyframes: int = 150
    """Keyframes that are adjusted; bounds the time."""
    hierarchy: HierarchyConfig = HIERARCHY


HALVES = HalvesConfig()

HALF = float(np.sqrt(2))
"""Factor of the sigmas of priors that leaves half of their information."""


def half_maps(
    start: BAState,
    candidate: InitialCandidate,
    motions: RelativePoses | None,
    split: int = 0,
    config: HalvesConfig = HALVES,
) -> tuple[BAState, BAState]:
    """Maps from two halves of the tracks of ``start``. Raises SingularError or LinAlgError.

    Args:
        candidate: the map; its priors are those of the halves, with half of their information.
        motions: priors of motions, with all of their information.
        split: number of the division into halves.
    """
    side, wide = start.observations.point >> split & 1, _with_half_information(candidate.priors)
    if motions is not None:
        rotation, translation = HALF * motions.rotation_sigma, HALF * motions.translation_sigma
        motions = replace(motions, rotation_sigma=rotation, translation_sigma=translation)
    options = SolveOptions(free_focal=candidate.free_focal)
    every = np.arange(len(start.scene.T_world_camera))
    one, two = (
        robust_ba.solve(hierarchical_ba.subset(start, every, side == half), motions, config.rounds, wide, options)
        for half in (0, 1)
    )
    return one, two


def _with_half_information(priors: Priors) -> Priors:
    """Wider priors of what the halves share; those of depths halve with the observations."""
    return replace(
        priors,
        log_depth_scale_sigma=HALF * priors.log_depth_scale_sigma,
        log_focal_sigma=HALF * priors.log_focal_sigma,
        k1_sigma=HALF * priors.k1_sigma,
        k2_sigma=None if priors.k2_sigma is None else HALF * priors.k2_sigma,
    )
