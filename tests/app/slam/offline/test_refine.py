"""Refinement of videos of a synthetic room with ground truth."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core import cores
from stream_recon.app.core.transforms import Similarity, rotation_matrix
from stream_recon.app.evaluation.metrics import PoseErrors, pose_errors
from stream_recon.app.slam.matching.features import detect
from stream_recon.app.slam.offline.config import REFINE
from stream_recon.app.slam.offline.refine import RefineOptions, refine
from stream_recon.app.slam.offline.report import InitialPoses, IntermediateState, Refinement, WarmStart
from tests.app.slam.room import FOCAL, Video, drifting, look_down, walk

FloatArray = NDArray[np.float64]

KNOWN_LENS = RefineOptions(known_intrinsics=True)
"""Half of the time, where the lens is not what is tested."""


def errors(poses: FloatArray, truth: FloatArray) -> PoseErrors:
    return pose_errors(poses, truth, np.ones(len(truth) - 1, bool))


@dataclass
class Walk:
    """A drifting walk and its refinement."""

    truth: FloatArray
    guess: FloatArray
    video: Video
    refined: Refinement
    states: list[IntermediateState]


@pytest.fixture(scope="module")
def drifted() -> Walk:
    truth = walk(16)
    guess = drifting(truth, turn_deg=0.8, move=0.1)
    video, states = Video(truth, guess), list[IntermediateState]()
    found = refine(video.views(), video, video.scale, RefineOptions(on_state=states.append))
    return Walk(truth, guess, video, found, states)


def test_a_drifting_walk_is_put_right(drifted: Walk) -> None:
    found = drifted.refined
    before, after = errors(drifted.guess, drifted.truth), errors(found.T_world_camera, drifted.truth)
    assert before.ate_m is not None and after.ate_m is not None
    assert after.ate_m < 0.2 * before.ate_m
    assert before.rpe_rot_deg is not None and after.rpe_rot_deg is not None
    assert after.rpe_rot_deg < 0.3 * before.rpe_rot_deg
    assert abs(found.camera_model.focal / FOCAL - 1) < 0.02
    assert abs(found.camera_model.k1) < 0.01, "the lens is straight"
    report = found.report
    assert report.start == "network" and not report.fallback_segments
    assert report.reprojection_px is not None and report.reprojection_px < 0.5
    assert report.disagreement is not None and report.disagreement_before is not None
    assert report.disagreement < report.disagreement_before
    assert len(drifted.states) == 2
    for state in drifted.states:
        error = errors(state.T_world_camera, drifted.truth).ate_m
        assert error is not None and error < 0.3 * before.ate_m
        assert len(state.points) and state.depth_scale.shape == (16,)
    kept = found.keyframes
    assert np.allclose(drifted.states[-1].T_world_camera[kept], found.T_world_camera[kept])


@pytest.mark.parametrize("lens", [1.0, pytest.param(0.6, marks=pytest.mark.slow)])
def test_another_process_changes_no_digit(lens: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # The lens stays, or is another one, and what was computed meanwhile is of no use.
    monkeypatch.setattr(cores, "all_cores", lambda: 2)
    truth = walk(12)
    video = Video(truth, drifting(truth, turn_deg=3.0, move=0.3), focal=lens * FOCAL)
    alone, helped = (
        refine(video.views(), video, video.scale, None, replace(REFINE, companion_frames=frames)) for frames in (99, 1)
    )
    assert np.array_equal(helped.T_world_camera, alone.T_world_camera)
    assert helped.camera_model == alone.camera_model


@pytest.mark.slow
def test_a_known_lens_is_kept() -> None:
    truth = walk(12)
    video = Video(truth, drifting(truth, turn_deg=0.8, move=0.1))
    views = [replace(view, focal=1.05 * view.focal) for view in video.views()]
    kept = refine(views, video, video.scale, KNOWN_LENS)
    assert (kept.camera_model.focal, kept.camera_model.k1) == (views[0].focal, 0.0)


@pytest.mark.slow
def test_a_focal_length_far_from_the_networks_is_found() -> None:
    truth = walk(12)
    guess = drifting(truth, turn_deg=3.0, move=0.3)
    video = Video(truth, guess, focal=0.6 * FOCAL)
    found = refine(video.views(), video, video.scale)
    before, after = errors(guess, truth), errors(found.T_world_camera, truth)
    assert before.ate_m is not None and after.ate_m is not None
    assert after.ate_m < 0.1 * before.ate_m
    assert abs(found.camera_model.focal / FOCAL - 1) < 0.01


@pytest.mark.slow
def test_depth_maps_get_one_unit() -> None:
    truth = walk(12)
    video = Video(truth, truth, scale_noise=0.1)
    found = refine(video.views(), video, video.scale)
    true = np.array([np.median(v.grid.z[v.grid.z > 0]) for v in video.views()]) * found.depth_scale
    exact = np.array([np.median(v.grid.z[v.grid.z > 0]) for v in Video(truth, truth, scale_noise=0.0).views()])
    assert np.std(np.log(true / exact)) < 0.02


@pytest.mark.slow
def test_frames_between_keyframes_follow() -> None:
    truth = walk(120)[:40]
    guess = drifting(truth, turn_deg=0.3, move=0.1)
    video = Video(truth, guess)
    found = refine(video.views(), video, video.scale)
    assert len(found.keyframes) < len(truth)
    rest = np.setdiff1d(np.arange(len(truth)), found.keyframes)
    steps = np.diff(rest) == 1
    off = pose_errors(found.T_world_camera[rest], truth[rest], steps)
    before = pose_errors(guess[rest], truth[rest], steps)
    assert off.ate_m is not None and before.ate_m is not None and off.ate_m < 0.3 * before.ate_m


@pytest.mark.slow
def test_matches_replace_the_networks_motion_where_it_fails() -> None:
    truth = look_down(16)
    random = np.random.default_rng(8)
    guess = drifting(truth, turn_deg=1.0, move=0.1)
    for k in range(len(guess)):
        # The network misses all image rotations.
        guess[k, :3, :3] = guess[0, :3, :3]
        guess[k, :3, 3] += random.normal(0, 0.1, 3)
    video = Video(truth, guess, focal=FOCAL)
    found = refine(video.views(), video, video.scale, KNOWN_LENS)
    before, after = errors(guess, truth), errors(found.T_world_camera, truth)
    assert before.ate_m is not None and after.ate_m is not None and after.ate_m < 0.3 * before.ate_m


@pytest.mark.slow
def test_photographs_need_no_order() -> None:
    truth = walk(14)[np.random.default_rng(3).permutation(14)]
    # The network takes them for a film with turns that it does not see.
    guess = drifting(truth, turn_deg=15.0, move=0.5)
    video = Video(truth, guess, focal=1.3 * FOCAL)
    video.cut(7, Similarity.identity())
    found = refine(video.views(), video, video.scale)
    after = errors(found.T_world_camera, truth)
    assert after.ate_over_path is not None and after.ate_over_path < 0.01
    assert abs(found.camera_model.focal / FOCAL - 1) < 0.05
    report = found.report
    assert report.segments == 1 and not report.fallback_segments


@pytest.mark.slow
def test_radial_distortion_is_found() -> None:
    truth = walk(14)
    video = Video(truth, drifting(truth, turn_deg=0.5, move=0.1), focal=0.93 * FOCAL)
    video.distort(-0.2)
    found = refine(video.views(), video, video.scale)
    assert found.report.start == "network" and found.report.lens in ("SIMPLE_RADIAL", "RADIAL")
    assert abs(found.camera_model.k1 + 0.2) < 0.03
    assert abs(found.camera_model.focal / FOCAL - 1) < 0.03


@pytest.mark.slow
def test_a_moving_object_does_not_win() -> None:
    truth = walk(14)
    guess = drifting(truth, turn_deg=0.3, move=0.05)
    video = Video(truth, guess, focal=FOCAL)
    video.cover(range(14))
    found = refine(video.views(), video, video.scale)
    before, after = errors(guess, truth), errors(found.T_world_camera, truth)
    assert before.ate_m is not None and after.ate_m is not None and after.ate_m <= 1.1 * before.ate_m


@pytest.mark.slow
def test_a_segment_where_the_map_is_wrong_falls_back() -> None:
    """With this draw of the noise the moving object looks like radial distortion."""
    truth = walk(40)
    guess = drifting(truth, turn_deg=0.8, move=0.2)
    video = Video(truth, guess, focal=FOCAL, draw=15)
    video.cover(range(16, 24), share=0.8)
    found = refine(video.views(), video, video.scale)
    before, after = errors(guess, truth), errors(found.T_world_camera, truth)
    assert before.ate_m is not None and after.ate_m is not None and after.ate_m < 0.7 * before.ate_m
    (segment,) = found.report.fallback_segments
    assert segment["first"] in range(12, 18) and segment["last"] in range(22, 28)


def test_blank_images_keep_the_networks_poses() -> None:
    truth = walk(8)
    guess = drifting(truth, turn_deg=0.5, move=0.1)
    video = Video(truth, guess)
    video.blank()
    found = refine(video.views(), video, video.scale)
    assert np.array_equal(found.T_world_camera, guess)
    assert (found.depth_scale == 1).all() and found.fit is None
    assert found.report.fallback_segments


@pytest.mark.slow
def test_the_world_is_the_networks() -> None:
    """Where the network is right, poses stay where they were."""
    truth = walk(8)
    video = Video(truth, truth, focal=FOCAL, scale_noise=0.0)
    found = refine(video.views(), video, video.scale, KNOWN_LENS)
    assert np.abs(found.T_world_camera - truth).max() < 0.02


def test_one_or_two_frames_are_left_alone() -> None:
    for count in (1, 2):
        truth = walk(4)[:count]
        video = Video(truth, truth)
        assert np.array_equal(refine(video.views(), video, video.scale).T_world_camera, truth)


def test_a_failing_adjustment_keeps_the_networks_poses(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr("stream_recon.app.slam.ba.robust_ba.adjust", fail)
    truth = walk(6)
    video = Video(truth, truth)
    found = refine(video.views(), video, video.scale)
    assert np.array_equal(found.T_world_camera, truth) and found.fit is None
    assert "singular" in str(found.report.fallback_segments[0]["why"])


@pytest.mark.slow
def test_features_that_are_known_are_not_looked_for(drifted: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    video, alone = drifted.video, drifted.refined
    features = [detect(grey, depth()) for _, grey, depth in video.read(alone.keyframes)]
    monkeypatch.setattr("stream_recon.app.slam.offline.keyframe_matching.detect", None)
    again = refine(video.views(), video, video.scale, RefineOptions(known=WarmStart(alone.keyframes, features)))
    assert np.abs(again.T_world_camera - alone.T_world_camera).max() < 1e-6


@pytest.mark.slow
def test_it_starts_from_online_poses_with_smaller_errors(drifted: Walk) -> None:
    truth, video, network = drifted.truth, drifted.video, drifted.refined
    elsewhere = Similarity(3.0, rotation_matrix(np.array([0.1, 0.5, 0.2, 0.8])), np.array([2.0, 1.0, -1.0]))
    near = elsewhere.move_pose(drifting(truth, turn_deg=0.1, move=0.01))
    found = refine(
        video.views(), video, video.scale, RefineOptions(initial_poses=InitialPoses(near, np.full(16, 3.0), FOCAL))
    )
    assert (network.report.start, found.report.start) == ("network", "stream")
    assert found.report.reprojection_px_before == network.report.reprojection_px_before
    assert np.allclose(found.T_world_camera[0], video.views()[0].T_world_camera, atol=1e-3)
    before, after = (errors(run.T_world_camera, truth).ate_m for run in (network, found))
    assert before is not None and after is not None and after < max(1.2 * before, 0.005)
    far = InitialPoses(elsewhere.move_pose(drifting(truth, turn_deg=5.0, move=0.5)), np.full(16, 3.0), FOCAL)
    other = refine(video.views(), video, video.scale, RefineOptions(initial_poses=far))
    assert other.report.start == "network"
    assert np.array_equal(other.T_world_camera, network.T_world_camera), "the same video gives the same map"


def test_few_photographs_get_more_features_and_many_no_more_in_all() -> None:
    counts = [REFINE.feature_count(number, unordered=True) for number in (1, 10, 40, 200)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]
    assert REFINE.feature_count(400, unordered=True) == counts[-1]
