"""Less weight for stereo's measurements of reflections.

A glossy surface without texture shows things that are in front of it as if they were behind it. Stereo measures such
depth consistently in all views, but only at the few pixels where the reflection has texture. Holes and windows are
behind their surroundings, too, but have many pixels that agree, or the network's depth is bad there.
"""

from stream_recon.app.slam.dense.arrays import Array, Arrays
from stream_recon.app.slam.dense.fusion import Measured

RADIUS = 6
"""Half the side in pixels of the square in which other pixels have to agree."""
AGREEMENT = 0.05
"""Difference of log ratios from their mean in the square up to which pixels agree."""
FULL_SHARE = 0.9
"""Share of agreeing pixels of the square from which a measurement keeps its weight."""
BEHIND = (0.05, 0.15)
"""Log ratios to the prior between which a measurement loses its weight."""
PRIOR_VARIANCE = 8e-3
"""Variance of measured log depth about the prior, up to which measurements lose weight; the less, the larger it is."""


def without_reflections(arrays: Arrays, measured: Measured) -> Array:
    """Weights [..., h, w] of measured log ratios: less for those that are behind the prior and alone."""

    ratio, weight = measured.ratio, measured.weight
    certain = arrays.minimum(weight, 1.0)
    mean = arrays.box(certain * ratio, RADIUS) / arrays.maximum(arrays.box(certain, RADIUS), 1e-9)
    share = arrays.box(arrays.where(abs(ratio - mean) < AGREEMENT, certain, 0.0), RADIUS)
    alone = 1 - arrays.minimum(share * (1 / FULL_SHARE), 1.0)
    behind = arrays.minimum(arrays.maximum((ratio - BEHIND[0]) * (1 / (BEHIND[1] - BEHIND[0])), 0.0), 1.0)
    variance = arrays.total(weight * ratio * ratio) / arrays.maximum(arrays.total(weight), 1e-9)
    trust = arrays.minimum(PRIOR_VARIANCE / arrays.maximum(variance, 1e-9), 1.0)
    return weight * (1 - alone * behind * (trust * trust))
