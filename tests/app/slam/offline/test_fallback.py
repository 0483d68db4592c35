"""What a map does not cover keeps the best poses that there are: the stream's, or the network's."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.transforms import Similarity, rotation_matrix
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.offline.all_frames import PoseInterpolator, interpolate_poses
from stream_recon.app.slam.offline.config import REFINE
from stream_recon.app.slam.offline.keyframe_matching import VideoData
from stream_recon.app.slam.offline.refine import RefineOptions, refine
from stream_recon.app.slam.offline.report import InitialPoses, keeps_stream
from tests.app.slam.room import FOCAL, Video, drifting, walk

COUNT = 10
NO_MAP = replace(REFINE, judge=replace(REFINE.judge, better=1e6))
"""No map is ever better than the network by so much."""
ELSEWHERE = Similarity(3.0, rotation_matrix(np.array([0.1, 0.5, 0.2, 0.8])), np.array([2.0, 1.0, -1.0]))


def error(T: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    return pose_errors(T, truth, np.ones(len(truth) - 1, bool)).ate_over_path or 0.0


def stream(truth: NDArray[np.float64], turn_deg: float, move: float, seed: int = 3) -> InitialPoses:
    """Online poses in a world and scale of their own."""
    poses = ELSEWHERE.move_pose(drifting(truth, turn_deg, move, seed))
    return InitialPoses(poses, np.full(len(truth), ELSEWHERE.scale), FOCAL)


@pytest.mark.parametrize(("turn_deg", "move", "kept"), [(0.05, 0.005, "stream"), (6.0, 0.5, "network")])
def test_without_a_map_the_better_poses_are_kept(turn_deg: float, move: float, kept: str) -> None:
    truth = walk(COUNT)
    video = Video(truth, drifting(truth, turn_deg=1.0, move=0.15), focal=FOCAL)
    online = stream(truth, turn_deg, move)
    found = refine(
        video.views(), video, video.scale, RefineOptions(known_intrinsics=True, initial_poses=online), NO_MAP
    )
    (segment,) = found.report.fallback_segments
    assert found.fit is None and segment["kept"] == kept
    assert found.report.path_difference is not None and found.report.path_difference > 0.003
    assert keeps_stream(vars(found.report)) == (kept == "stream")
    ends = {"stream": online.T_world_camera, "network": np.array([view.T_world_camera for view in video.views()])}
    assert np.array_equal(found.T_world_camera, ends[kept])
    assert error(found.T_world_camera, truth) <= 1.05 * min(error(T, truth) for T in ends.values())
    assert (found.depth_scale == ELSEWHERE.scale).all() == (kept == "stream")


def test_a_gap_of_a_walk_with_turns_follows_the_stream() -> None:
    truth = walk(40)
    network, online = drifting(truth, 1.0, 0.2), stream(truth, 0.05, 0.005)
    fallback = np.zeros(40, bool)
    fallback[12:30] = True
    fit: Any = SimpleNamespace(scene=SimpleNamespace(T_world_camera=truth))
    data: Any = SimpleNamespace(
        keyframes=[*range(40)], views=[None] * 40, T_network=network, segment=np.zeros(40, np.int64)
    )

    def placed(mask: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        given = cast(VideoData, data), cast(BAState, fit), fallback, online, np.ones(40)
        return interpolate_poses(*given, stream=mask)

    by_network, by_stream = placed(np.zeros(40, bool)), placed(fallback)
    assert np.allclose(by_stream[0][~fallback], truth[~fallback])
    assert error(by_stream[0], truth) < 0.1 * error(by_network[0], truth)
    assert error(by_stream[0], truth) <= error(online.T_world_camera, truth)
    assert np.allclose(by_stream[1], 1.0), "depths of the stream are in the map's unit"


def test_a_frame_between_segments_follows_the_keyframe_of_its_own() -> None:
    T_network, T_mapped = walk(5), walk(5)
    T_network[3:] = ELSEWHERE.move_pose(T_network[3:])
    segment = np.array([0, 0, 0, 1, 1])
    ends = np.array([0, 4])
    between = PoseInterpolator(ends, T_network, T_mapped[ends], np.array([1.0, 1 / ELSEWHERE.scale]), segment)
    for frame in range(5):
        assert np.allclose(between.pose(frame), T_mapped[frame]), frame
