"""Structure from motion of photographs of a room in no order."""

from dataclasses import replace
from functools import cache

import numpy as np

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import align_poses, rotation_angle_deg
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.slam.matching.features import NO_FEATURES, Features
from stream_recon.app.slam.matching.matching import Matches
from stream_recon.app.slam.matching.relative_poses import estimate_relative_poses
from stream_recon.app.slam.matching.two_view import relative_pose, rotation_errors_deg
from stream_recon.app.slam.offline.incremental_sfm import reconstruct
from stream_recon.app.slam.offline.initialization import depth_aligned
from stream_recon.app.slam.offline.keyframe_matching import VideoData, match_unordered
from tests.app.slam.room import FOCAL, SIZE, Video, walk
from tests.app.slam.test_pieces import detected

COUNT = 12
LENS = CameraModel(FOCAL, SIZE[0] / 2, SIZE[1] / 2)
GUESS = CameraModel(1.4 * FOCAL, SIZE[0] / 2, SIZE[1] / 2)


@cache
def photographs() -> tuple[Video, list[Features], dict[tuple[int, int], Matches]]:
    truth = walk(COUNT)[np.random.default_rng(3).permutation(COUNT)]
    video = Video(truth, np.tile(np.eye(4), (COUNT, 1, 1)), scale_noise=0.2)
    features = detected(video)
    data = VideoData(video.views(), list(range(COUNT)), features, np.ones(COUNT))
    return video, features, match_unordered(data, GUESS, 1, lambda share: None).matches


def test_neither_poses_nor_focal_length_need_be_known() -> None:
    video, features, matches = photographs()
    found = reconstruct(features, matches, GUESS)
    assert found is not None and found.registered.all()
    assert abs(found.camera_model.focal / FOCAL - 1) < 0.03
    errors = pose_errors(found.T_world_camera, video.truth, np.ones(COUNT - 1, bool))
    assert errors.ate_over_path is not None and errors.ate_over_path < 0.005
    assert errors.rpe_rot_deg is not None and errors.rpe_rot_deg < 0.5


def test_a_known_focal_length_stays() -> None:
    _, features, matches = photographs()
    found = reconstruct(features, matches, LENS, known_intrinsics=True)
    assert found is not None and found.camera_model == LENS


def test_a_photograph_of_something_else_is_left_out() -> None:
    _, features, matches = photographs()
    found = reconstruct([*features, NO_FEATURES], matches, GUESS)
    assert found is not None and found.registered.tolist() == [True] * COUNT + [False]


def test_without_matches_there_is_no_reconstruction() -> None:
    _, features, _ = photographs()
    assert reconstruct(features, {}, LENS) is None


def test_depth_maps_give_the_unit() -> None:
    video, features, matches = photographs()
    found = reconstruct(features, matches, GUESS)
    assert found is not None
    placed = depth_aligned(found, features, {}, video.truth)
    assert np.allclose(placed.T_world_camera[0], video.truth[0])
    moved = align_poses(placed.T_world_camera, video.truth, 1.0)
    assert np.allclose(moved.move_pose(placed.T_world_camera)[:, :3, 3], video.truth[:, :3, 3], atol=0.15)
    exact = np.array(
        [np.median(view.grid.z[view.grid.z > 0]) for view in Video(video.truth, video.truth, scale_noise=0.0).views()]
    )
    wrong = np.array([np.median(view.grid.z[view.grid.z > 0]) for view in video.views()])
    assert np.std(np.log(placed.depth_scale * wrong / exact)) < 0.03


def test_turns_that_matches_contradict_are_noticed() -> None:
    video, features, matches = photographs()
    right = rotation_errors_deg(video.truth, features, LENS, matches)
    wrong = rotation_errors_deg(np.tile(np.eye(4), (COUNT, 1, 1)), features, LENS, matches)
    assert np.median(right) < 1 < 10 < np.median(wrong)


def test_few_matches_have_no_pose() -> None:
    assert relative_pose(LENS, np.zeros((5, 2)), np.ones((5, 2))) is None


def test_a_keyframe_that_is_not_registered_follows_matches_and_depth() -> None:
    _, features, matches = photographs()
    found = reconstruct(features, matches, GUESS)
    assert found is not None
    lost = 5
    registered = found.registered.copy()
    registered[lost] = False
    edges = estimate_relative_poses(
        features, found.camera_model, {pair: m for pair, m in matches.items() if lost in pair}
    )
    whole, partly = (
        depth_aligned(each, features, edges, np.tile(np.eye(4), (COUNT, 1, 1)))
        for each in (found, replace(found, registered=registered))
    )
    apart = np.linalg.inv(whole.T_world_camera[lost]) @ partly.T_world_camera[lost]
    assert rotation_angle_deg(apart[:3, :3]) < 2 and np.linalg.norm(apart[:3, 3]) < 0.1
    assert abs(np.log(partly.depth_scale[lost] / whole.depth_scale[lost])) < 0.1
