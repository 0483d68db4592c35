"""Tests of the initial candidates of a refinement."""

import numpy as np

from stream_recon.app.slam.ba.problem import Observations
from stream_recon.app.slam.offline.initialization import tied_by_points


def test_keyframes_are_tied_by_points_one_after_the_other() -> None:
    # Keyframe 1 sees points of 0, keyframe 2 those of 1 alone; 3 and 4 see only points of each other.
    seen = [range(10), range(6, 16), range(12, 20), range(30, 40), range(30, 40)]
    camera = np.concatenate([np.full(len(points), k) for k, points in enumerate(seen)])
    observations = Observations(camera, np.concatenate([*map(np.array, seen)]), np.zeros((len(camera), 2)))
    tied = np.arange(5) == 0
    assert np.flatnonzero(tied_by_points(observations, tied, 4)).tolist() == [0, 1, 2]
    assert np.flatnonzero(tied_by_points(observations, tied, 5)).tolist() == [0]
