"""Refinement with learned matches, by a stand-in that matches what SIFT finds in the images."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.slam.frame_data import DepthReader
from stream_recon.app.slam.matching.features import Features, detect
from stream_recon.app.slam.matching.learned import LearnedPoints
from stream_recon.app.slam.matching.matching import Matches, match
from stream_recon.app.slam.offline.keyframe_matching import VideoData, with_learned_features
from stream_recon.app.slam.offline.refine import RefineOptions, refine
from stream_recon.app.slam.offline.report import WarmStart
from tests.app.slam.room import FOCAL, Video, drifting, walk


@dataclass
class StandIn:
    """Detects and matches as the library does."""

    asked: int = 0

    def detect(self, grey: NDArray[np.uint8]) -> LearnedPoints:
        found = detect(grey, None, 600)
        return LearnedPoints(found.uv, found.descriptors, (grey.shape[1], grey.shape[0]))

    def match(self, first: LearnedPoints, second: LearnedPoints) -> Matches:
        self.asked += 1
        a, b = (Features(each.uv, each.descriptors, np.zeros(len(each.uv), np.float32)) for each in (first, second))
        return match(a, b)


@pytest.fixture(scope="module")
def video() -> Video:
    truth = walk(12)
    return Video(truth, drifting(truth, turn_deg=2.0, move=0.3), focal=FOCAL)


def described(video: Video, count: int) -> WarmStart:
    """All frames as keyframes, with few or many features of SIFT."""
    features = [detect(grey, depth(), count) for _, grey, depth in video.read(range(12))]
    return WarmStart(list(range(12)), features)


def ate(T: NDArray[np.float64], video: Video) -> float:
    found = pose_errors(T, video.truth, np.ones(11, bool)).ate_m
    assert found is not None
    return found


def test_learned_matches_tie_keyframes_that_sift_hardly_ties(video: Video) -> None:
    known, matcher = described(video, 30), StandIn()
    options = RefineOptions(known_intrinsics=True, known=known)
    alone = refine(video.views(), video, video.scale, options)
    network = ate(np.array([result.T_world_camera for result in video.results]), video)
    assert alone.report.learned_matches is False
    refined = refine(video.views(), video, video.scale, replace(options, learned=lambda: matcher))
    assert refined.report.learned_matches is True and matcher.asked
    assert not refined.report.fallback_segments
    assert ate(refined.T_world_camera, video) < min(0.3 * network, 0.6 * ate(alone.T_world_camera, video))
    # The place is recognized by SIFT.
    assert all(
        len(f) == len(f.descriptors) == len(own) for f, own in zip(refined.features, known.features, strict=True)
    )


def test_photographs_in_no_order_are_matched_so_too(video: Video) -> None:
    matcher, options = StandIn(), RefineOptions(known_intrinsics=True, known=described(video, 30), unordered=True)
    alone = refine(video.views(), video, video.scale, options)
    refined = refine(video.views(), video, video.scale, replace(options, learned=lambda: matcher))
    assert alone.report.learned_matches is False and refined.report.learned_matches is True
    assert not refined.report.fallback_segments and matcher.asked
    assert ate(refined.T_world_camera, video) < 0.5 * ate(alone.T_world_camera, video)


def test_where_sift_ties_keyframes_no_matcher_is_asked(video: Video) -> None:
    def matcher() -> None:
        pytest.fail("not needed")

    options = RefineOptions(known_intrinsics=True, known=described(video, 600))
    usual = refine(video.views(), video, video.scale, options)
    other = refine(video.views(), video, video.scale, replace(options, learned=matcher))
    assert other.report.learned_matches is None
    assert np.array_equal(usual.T_world_camera, other.T_world_camera)


def test_masked_parts_have_no_learned_features(video: Video) -> None:
    reader = DepthReader.from_result(video.results[0], video.scale)
    left = np.zeros(reader.depth.shape, bool)
    left[:, : reader.depth.shape[1] // 2] = True
    grey = video.scale.grey(video.pictures[0])

    class Half:
        def read(self, positions: list[int]) -> list[object]:
            return [(0, grey, partial(replace, reader, masked=left))]

    own = described(video, 40).features[0]
    data = VideoData(video.views(), [0], [own], np.ones(12))
    with_learned = with_learned_features(data, Half(), StandIn())  # type: ignore[arg-type]
    features = with_learned.features[0]
    assert np.array_equal(features.described.uv, own.uv) and len(features) > len(own) + 50
    assert features.uv[len(own) :, 0].min() > 0.45 * video.scale.size[0]
    assert with_learned.learned is not None and len(with_learned.learned.points[0].uv) == len(features) - len(own)
