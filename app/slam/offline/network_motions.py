"""Maps that weigh the network's motions by their errors."""

import logging

import numpy as np

from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.offline.held_out_test import HeldOutTest
from stream_recon.app.slam.offline.initialization import InitialCandidate, Initializer
from stream_recon.app.slam.offline.motion_errors import MOTIONS, MotionConfig, motion_errors

logger = logging.getLogger(__name__)


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
                is_kept = test.is_better(other.fit, candidate.fit, -sure if errors.is_relevant else sure)
            if is_kept:
                candidate, turn_deg = other, float(np.degrees(np.sqrt(3) * errors.motions.rotation_sigma[0]))
            if not (is_kept and has_turned):
                break
    except (SingularError, np.linalg.LinAlgError):
        logger.exception("the network's motions have not been weighed")
        return mapped, 0.0
    return candidate, turn_deg
