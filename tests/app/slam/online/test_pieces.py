"""Parts of the online back end."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.slam.ba.robust_ba import SolveOptions
from stream_recon.app.slam.online.config import DEFAULT_ONLINE, KNOWN_POSES, MapConfig
from stream_recon.app.slam.online.keyframe import NO_TRACKS, AttachedFrame, Keyframe, TrackedPoints, common_rows
from stream_recon.app.slam.online.local_ba import BAResult, adjust_window
from stream_recon.app.slam.online.map import Map
from stream_recon.app.slam.online.resectioning import combined_pose
from tests.app.slam.room import pose

FloatArray = NDArray[np.float64]
LENS = CameraModel(260.0, 160.0, 120.0)
CLOUD = np.random.default_rng(0).uniform((-2, -1.5, 3), (2, 1.5, 6), (400, 3))


def keyframe(number: int, T: FloatArray, T_network: FloatArray | None = None, scale: float = 1.0) -> Keyframe:
    """Sees the cloud exactly; the network has its depths times ``scale``."""
    xyz = (CLOUD - T[:3, 3]) @ T[:3, :3]
    return Keyframe(
        number,
        T if T_network is None else T_network,
        LENS.focal,
        T.copy(),
        0.0,
        np.arange(len(CLOUD)),
        LENS.project(xyz).astype(np.float32),
        (scale * xyz[:, 2]).astype(np.float32),
        xyz[:, 2].copy(),
        np.ones(len(CLOUD), np.bool_),
        attached=[AttachedFrame(number, np.eye(4), 0.0)],
    )


def test_points_and_attached_frames_follow_their_keyframe() -> None:
    one = keyframe(0, pose((0.1, 0, 0), 0.1))
    one.attached.append(AttachedFrame(1, pose((0.2, 0, 0), 0.0), 0.0))
    before, T = one.points(LENS), pose((3, 1, 0), 0.5)
    assert np.allclose(before, CLOUD, atol=1e-3)
    one.set_pose(T, np.log(2))
    local = (CLOUD - (0.1, 0, 0)) @ pose((0, 0, 0), 0.1)[:3, :3]
    assert np.allclose(one.points(LENS), 2 * local @ T[:3, :3].T + T[:3, 3], atol=1e-2)
    assert np.allclose(one.pose_of(one.attached[0]), T)
    assert np.allclose(one.pose_of(one.attached[1]), T @ pose((0.4, 0, 0), 0.0))


def test_shared_tracks() -> None:
    first, second = keyframe(0, pose((0, 0, 0), 0)), keyframe(1, pose((0.2, 0, 0), 0))
    second.drop_tracks()
    second.add_tracks(np.array([7, 3, 1000]), np.zeros((3, 2), np.float32), np.zeros(3, np.float32))
    assert common_rows(first, second).tolist() == [[3, 1], [7, 0]]
    assert second.median_depth == first.median_depth, "known although the tracks are forgotten"


def test_an_adjustment_keeps_the_scale_of_output_poses() -> None:
    frames = [keyframe(k, pose((0.3 * k, 0, 0), 0)) for k in range(5)]
    twice = np.array([pose((0.3 * 1.2 * k, 0, 0), 0) for k in range(5)])
    found = BAResult(twice, np.zeros(5), [1.2 * k.z for k in frames], LENS, 400, 0.1).aligned(frames)
    assert np.allclose(found.T_world_camera[:, 0, 3], 0.3 * np.arange(5), atol=0.01)
    assert np.allclose(found.log_scale, np.log(1 / 1.2), atol=0.01)
    still = [keyframe(k, pose((0, 0, 0), 0.1 * k)) for k in range(5)]
    found = BAResult(np.array([k.T_world_camera for k in still]), np.zeros(5), [k.z for k in still], LENS, 1, 0.1)
    assert np.allclose(found.aligned(still).log_scale, 0)


def test_the_scale_is_that_of_output_poses_not_of_revised_ones() -> None:
    frames = [keyframe(k, pose((0.3 * k, 0, 0), 0)) for k in range(5)]
    for k, one in enumerate(frames):
        one.T_output = pose((0.33 * k, 0, 0), 0)
    same = np.array([one.T_world_camera for one in frames])
    found = BAResult(same, np.zeros(5), [one.z for one in frames], LENS, 400, 0.1).aligned(frames)
    assert np.allclose(found.T_world_camera[:, 0, 3], 0.33 * np.arange(5), atol=0.01)


def test_later_poses_are_in_the_world_of_earlier_output() -> None:
    frames = [keyframe(k, pose((0.3 * k, 0.1 * k**2, 0), 0.1 * k)) for k in range(6)]
    before = np.array([one.T_world_camera for one in frames])
    turned = pose((1, -2, 0.5), 0.4) @ before
    turned[:, :3, 3] *= 0.9
    found = BAResult(turned, np.zeros(6), [one.z for one in frames], LENS, 400, 0.1).aligned(frames)
    assert np.allclose(found.T_world_camera, before, atol=0.02)
    still = [keyframe(k, pose((0, 0, 0), 0.1 * k)) for k in range(6)]
    before = np.array([one.T_world_camera for one in still])
    found = BAResult(pose((0, 0, 0), 0.2) @ before, np.zeros(6), [k.z for k in still], LENS, 400, 0.1).aligned(still)
    assert np.allclose(found.T_world_camera, before, atol=1e-6), "turns alone say how the world lies"


def test_known_poses_give_world_and_unit_but_for_wrong_ones() -> None:
    random = np.random.default_rng(0)
    T = np.array([pose((0.3 * k, 0.1 * np.sin(k), 0.02 * k), 0.02 * k) for k in range(12)])
    S = Similarity(1.2, pose((0, 0, 0), 0.7)[:3, :3], np.array([3.0, -1, 2]))
    known = S.move_pose(T)
    known[:, :3, 3] += random.normal(0, 0.005, (12, 3))
    known[5, :3, 3] += 4
    window = [keyframe(k, each, other) for k, (each, other) in enumerate(zip(T, known, strict=True))]
    own = BAResult(T, np.zeros(12), [k.z for k in window], LENS, 0, 0.0)
    assert np.allclose(own.aligned(window).T_world_camera, T), "the poses that were output"
    aligned = own.aligned(window, KNOWN_POSES.window)
    assert np.allclose(aligned.T_world_camera, S.move_pose(T), atol=0.02)
    assert np.exp(aligned.log_scale) == pytest.approx(1.2, rel=5e-3)
    assert np.allclose(aligned.z[3], window[3].z * np.exp(aligned.log_scale[3]))


def test_drift_of_the_networks_scale_does_not_distort_the_path() -> None:
    drift = np.linspace(0, 0.6, 12)
    frames = []
    for k, log_scale in enumerate(drift):
        one = keyframe(k, pose((0.3 * k, 0, 0), 0), scale=float(np.exp(-log_scale)))
        one.log_scale = float(log_scale)
        frames.append(one)
    for before, one in pairwise(frames):
        T = np.eye(4)
        T[0, 3] = 0.3 * float(np.exp(-0.5 * (before.log_scale + one.log_scale)))
        one.T_network = before.T_network @ T
    found = adjust_window(frames, LENS, DEFAULT_ONLINE.global_ba.rounds, SolveOptions(free_focal=False))
    assert found is not None
    assert np.allclose(found.T_world_camera[:, 0, 3], 0.3 * np.arange(12), rtol=0.005)
    assert np.allclose(found.log_scale, drift, atol=0.02)


def test_attached_frames_are_refined_by_their_keyframes_points() -> None:
    T, off, noise = pose((0.1, 0.05, 0), 0.02), pose((0.13, 0.03, 0.02), 0.03), np.random.default_rng(0)
    xyz = (CLOUD - T[:3, 3]) @ T[:3, :3]
    row = np.arange(0, len(CLOUD), 2)
    uv = LENS.project(xyz[row]).astype(np.float32)
    wrong = noise.uniform((0, 0), (320, 240), (len(row), 2)).astype(np.float32)
    given = [TrackedPoints(row, uv, pose((0.12, 0.05, 0), 0.02)), TrackedPoints(row, wrong, T), None]
    given += [TrackedPoints(row[:n], uv[:n], T) for n in (0, 1, 3)]
    map_, one = Map(LENS), keyframe(0, np.eye(4))
    map_.append(one)
    one.attached += [AttachedFrame(k, off.copy(), 0.0, tracked=tracked) for k, tracked in enumerate(given, 1)]
    one.set_pose(np.eye(4), np.log(2))
    T[:3, 3], off[:3, 3] = 2 * T[:3, 3], 2 * off[:3, 3]
    map_.refine_attached([one])
    assert np.allclose(one.pose_of(one.attached[1]), T, atol=0.01) and map_.changed == {0}
    assert all(np.allclose(one.pose_of(frame), off) for frame in one.attached[2:])


@pytest.mark.parametrize("firm", [True, False])
def test_fusion_weights_poses_by_information(firm: bool) -> None:
    T, guess = pose((0, 0, 0), 0), pose((0.1, 0, 0), 0.01)
    found = combined_pose(T, np.eye(6) * (1e8 if firm else 1e-3), guess, np.eye(6))
    assert np.allclose(found, T if firm else guess, atol=1e-3)


def test_both_ends_of_a_loop_keep_the_same_tracks_up_to_a_limit() -> None:
    first, second = keyframe(0, pose((0, 0, 0), 0)), keyframe(1, pose((0.2, 0, 0), 0))
    first.loop_tracks, second.loop_tracks = np.arange(0, 300), np.arange(100, 400)
    for one in (first, second):
        one.config = MapConfig(max_loop_tracks=60)
        one.drop_tracks()
        assert len(one.track) == 60 and np.array_equal(np.sort(one.track), one.loop_tracks)
    assert len(common_rows(first, second)) > 20
    first.loop_tracks = NO_TRACKS
    first.drop_tracks()
    assert not len(first.track) and first.median_depth > 0
