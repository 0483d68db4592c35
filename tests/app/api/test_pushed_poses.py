"""Poses that are known as images come: the network's unit by them, and what does not fit."""

from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.api.pushed_poses import MAX_HELD, PushedPoses, checked_pose
from stream_recon.app.core import so3
from stream_recon.app.core.transforms import FloatArray, Similarity, invert_pose
from stream_recon.app.core.types import FrameResult
from stream_recon.configs.errors import InputError
from tests.app.slam.room import FOCAL, network_result, walk

TRUTH = walk(40)
S = Similarity(3.0, TRUTH[9][:3, :3], np.array([5.0, -2.0, 1.0]))
KNOWN = S.move_pose(TRUTH)
"""The same walk in another world and unit."""
GREY, DEPTH = np.full((240, 320, 3), 90, np.uint8), np.full((240, 320), 2.0)


def results(poses: FloatArray, scale: float = 1.0) -> list[FrameResult]:
    return [network_result(index, T, FOCAL, GREY, scale * DEPTH) for index, T in enumerate(poses)]


def placed(own: list[FrameResult], known: dict[int, FloatArray]) -> list[FrameResult]:
    poses, ready = PushedPoses(), list[FrameResult]()
    for result in own:
        if result.index in known:
            poses.note(result.index, known[result.index])
        ready += poses.place([result])
    return ready + poses.place([], is_end=True)


def test_results_come_in_the_world_and_unit_of_the_poses() -> None:
    ready = placed(results(TRUTH), dict(enumerate(KNOWN)))
    assert [each.index for each in ready] == list(range(40))
    np.testing.assert_allclose([each.T_world_camera for each in ready], KNOWN)
    np.testing.assert_allclose([each.depth.mean() for each in ready], 6, rtol=1e-5)


def test_the_unit_is_the_latest_ones_and_jitter_does_not_bias_it() -> None:
    drift = np.linspace(1, 1.15, 400)[:, None]
    own, random = walk(400), np.random.default_rng(0)
    known = own.copy()
    own[:, :3, 3] = np.concatenate([own[:1, :3, 3], np.diff(own[:, :3, 3], axis=0) / drift[1:]]).cumsum(axis=0)
    known[:, :3, 3] += random.normal(0, 0.01, (400, 3))
    ready = placed(results(own), dict(enumerate(known)))
    assert ready[-1].depth.mean() == pytest.approx(2 * 1.15, rel=0.03)


def test_frames_without_a_pose_follow_the_networks_motion() -> None:
    known = {index: T for index, T in enumerate(KNOWN) if index > 1 and index % 4}
    np.testing.assert_allclose([each.T_world_camera for each in placed(results(TRUTH), known)], KNOWN, atol=1e-9)


def test_after_a_cut_the_unit_is_measured_again() -> None:
    other = Similarity(0.5, np.eye(3), np.zeros(3)).move_pose(TRUTH[20:])
    later = [replace(each, index=20 + each.index, segment=1) for each in results(other, 0.5)]
    ready = placed(results(TRUTH[:20]) + later, dict(enumerate(KNOWN)))
    np.testing.assert_allclose([each.T_world_camera for each in ready], KNOWN)
    assert ready[20].depth.mean() == pytest.approx(3, rel=1e-5), "of the unit before"
    assert ready[-1].depth.mean() == pytest.approx(6, rel=1e-5)


@pytest.mark.parametrize(
    ("known", "what"),
    [
        (KNOWN @ np.diag([1.0, -1, -1, 1]), "OpenGL's"),
        (invert_pose(KNOWN), "inverted"),
        (np.diag([1.0, 1, -1, 1]) @ KNOWN @ np.diag([1.0, 1, -1, 1]), "mirrored"),
        (KNOWN[np.random.default_rng(0).permutation(40)], "does not fit the camera's path"),
        (np.tile(np.eye(4), (40, 1, 1)), "do not move"),
    ],
)
def test_poses_that_do_not_fit_are_refused_with_what_was_found(known: FloatArray, what: str) -> None:
    with pytest.raises(InputError, match=what):
        placed(results(TRUTH), dict(enumerate(known)))


def test_poses_that_turn_against_the_path_later_are_refused() -> None:
    bent = KNOWN.copy()
    bent[20:, :3, 3] = 2 * KNOWN[20, :3, 3] - KNOWN[20:, :3, 3]
    with pytest.raises(InputError, match="fit the camera's path"):
        placed(results(TRUTH), dict(enumerate(bent)))


def test_a_camera_that_rests_is_refused_at_the_end_or_when_too_many_wait() -> None:
    (one,) = results(TRUTH[:1])
    still = [replace(one, index=index) for index in range(MAX_HELD + 1)]
    for count in (3, MAX_HELD + 1):
        with pytest.raises(InputError, match="do not move enough"):
            placed(still[:count], dict.fromkeys(range(count), KNOWN[0]))


@pytest.mark.parametrize(
    "pose",
    [
        "here",
        np.eye(3),
        np.eye(4, dtype=bool),
        np.diag([1, 1, -1, 1]),
        2 * np.eye(4),
        np.full((3, 4), np.nan),
        KNOWN[5].T,
        None,
    ],
)
def test_what_is_no_pose_is_refused(pose: object) -> None:
    with pytest.raises(InputError, match="a pose is"):
        checked_pose(pose)


def test_a_rounded_pose_of_three_rows_is_exact() -> None:
    R = so3.exp(np.array([0.3, -0.2, 1.0]))
    T = checked_pose(np.column_stack([R.round(4), (1, 2, 3)]).astype(np.float32).tolist())
    np.testing.assert_allclose(T[:3, :3].T @ T[:3, :3], np.eye(3), atol=1e-12)
    np.testing.assert_allclose(T, [*np.column_stack([R, (1, 2, 3)]), (0, 0, 0, 1)], atol=1e-4)
