"""Solutions for keyframes against the network, by matches that they were not fitted to."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.matching.covisibility import PairMatches
from stream_recon.app.slam.matching.features import NO_DESCRIPTORS, Features
from stream_recon.app.slam.offline.held_out_test import HeldOutTest
from tests.app.slam.offline.test_scale_consistency import COUNT, LENS, parted
from tests.app.slam.room import drifting


def test_epipolar_lines_decide_where_the_network_turned_and_not_where_it_is_right() -> None:
    state, grids, truth = parted(1.0)
    seen = state.observations
    of_keyframe = [np.flatnonzero(seen.camera == k) for k in range(COUNT)]
    pixels = [seen.pixel[rows].astype(np.float32) for rows in of_keyframe]
    features = [Features(uv, NO_DESCRIPTORS, np.zeros(len(uv), np.float32)) for uv in pixels]
    held_out = {}
    for k in range(COUNT - 1):
        both = np.intersect1d(seen.point[of_keyframe[k]], seen.point[of_keyframe[k + 1]], return_indices=True)
        held_out[k, k + 1] = np.stack(both[1:], axis=1)

    def test(T_network: NDArray[np.float64], matches: dict[tuple[int, int], NDArray[np.intp]]) -> HeldOutTest:
        data: Any = SimpleNamespace(features=features, T_keyframes=T_network, keyframes=range(COUNT))
        data.keyframe_grids, data.keyframe_segment = grids, np.zeros(COUNT, np.intp)
        return HeldOutTest(data, LENS, PairMatches(held_out=matches))

    drifted = drifting(truth, turn_deg=3.0, move=0.1)
    assert test(drifted, held_out).is_certain(state) is True
    assert test(truth, held_out).is_certain(state) is False
    # Without matches, depth alone prefers the right path.
    wrong, without = replace(state, scene=replace(state.scene, T_world_camera=drifted)), test(truth, {})
    assert without.is_better(state, wrong, 0.0) is True
    assert without.is_better(state, wrong, 0.0, by_depth=False) is False
