"""Which pairs of keyframes are matched, and in which order."""

import numpy as np

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.frame_data import DepthGrid, FrameData
from stream_recon.app.slam.matching.config import MatchingConfig, PairConfig
from stream_recon.app.slam.matching.covisibility import CandidatePair, match_pairs
from stream_recon.app.slam.matching.features import Features

LENS = CameraModel(300.0, 160.0, 120.0)
FAILING = MatchingConfig(pairs=PairConfig(max_failed=2))
GRID = DepthGrid(np.arange(6, 320, 12, np.float32), np.arange(6, 240, 12, np.float32), np.ones((20, 27), np.float32))


def features(seed: int, count: int = 60) -> Features:
    random = np.random.default_rng(seed)
    descriptors = np.square(random.standard_normal((count, 128))).astype(np.float32)
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    uv = random.uniform((0, 0), (320, 240), (count, 2)).astype(np.float32)
    return Features(uv, descriptors, np.ones(count, np.float32))


def covisible(first: int, second: int, overlap: float) -> CandidatePair:
    return CandidatePair(first, second, "covisible", guided=True, overlap=overlap)


def test_covisible_keyframes_are_tried_by_overlap_until_some_fail() -> None:
    views = [FrameData(k, np.eye(4), LENS.focal, GRID, 1.0) for k in range(10)]
    seen = [features(k) for k in range(10)]
    seen[4] = seen[9]  # the only one that shows the same
    pairs = [covisible(k, 9, overlap) for k, overlap in ((0, 0.5), (1, 0.9), (2, 0.3), (3, 0.4), (4, 0.8))]
    found = match_pairs(views, seen, LENS, [*pairs, CandidatePair(8, 9, "near", guided=True)], config=FAILING)
    # 1, 4 and 0 by overlap, of which two fail, and the neighbour.
    assert found.tried == 4
    assert set(found.matches) == {(4, 9)} and set(found.held_out) == {(8, 9)}


def test_other_keyframes_have_their_own_attempts() -> None:
    views = [FrameData(k, np.eye(4), LENS.focal, GRID, 1.0) for k in range(8)]
    seen = [features(k) for k in range(8)]
    pairs = [covisible(first, second, 0.5) for second in (6, 7) for first in range(4)]
    assert match_pairs(views, seen, LENS, pairs, config=FAILING).tried == 4
