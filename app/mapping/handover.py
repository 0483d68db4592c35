"""What a stream has found out by the time its video ends: a refinement goes on from there."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.mapping.features import Features
from stream_recon.app.mapping.matching import Matches


@dataclass(frozen=True)
class Known:
    """Keyframes with their features and matches: none of it is done again."""

    keyframes: list[int]
    """Positions among all frames, ascending."""
    features: list[Features]
    """Of the keyframes, in pixels of the refinement's working images."""
    matches: Mapping[tuple[int, int], Matches] = field(default_factory=dict)
    """Verified ones, by pairs of keyframes (numbers among these, the earlier first); empty for pairs that were tried
    and have none."""
    held_out: Mapping[tuple[int, int], Matches] = field(default_factory=dict)
    """See `pairs.PairMatches.held_out`; of neighbours."""
    T_world_camera: NDArray[np.float64] | None = None
    """Poses [keyframes, 4, 4] to start from, in the network's world and about its unit; None: the network's."""
