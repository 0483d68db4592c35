"""Views of a rig: brought into one world, made consistent, and refined together."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.rig import VIEW_STRIDE, Rig
from stream_recon.app.core.transforms import Similarity, rotation_angle_deg
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.slam.offline.refine import RefineOptions, refine
from stream_recon.app.slam.rig_poses import RigFrames
from tests.app.slam.room import FOCAL, Video, drifting, walk

FloatArray = NDArray[np.float64]
RIG = Rig.of_turns(("front", "right", "back"), so3.exp(np.array([[0, 0, 0], [0, 2, 0], [0.1, 4, -0.1]])))


def views_of(T_world_body: FloatArray) -> tuple[RigFrames, FloatArray]:
    """The frames of the rig, and their true poses."""
    count = len(T_world_body)
    frames = RigFrames.of(
        RIG, [v * VIEW_STRIDE + 5 * k for v in range(len(RIG)) for k in range(count)], np.repeat(range(len(RIG)), count)
    )
    T = T_world_body[frames.body].copy()
    T[:, :3, :3] = T[:, :3, :3] @ RIG.T_body_view[frames.view, :3, :3]
    return frames, T


def in_own_worlds(frames: RigFrames, T: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Poses with each view's in a world of its own, and the scale [V] of view 0's lengths in it."""
    random = np.random.default_rng(3)
    scale = np.array([1.0, 0.3, 2.5])
    moved = T.copy()
    for view in range(1, len(RIG)):
        S = Similarity(scale[view], so3.exp(random.normal(size=3)), random.normal(size=3))
        own = frames.view == view
        moved[own] = [S.move_pose(pose) for pose in T[own]]
    return moved, scale


def test_views_in_worlds_of_their_own_are_brought_into_that_of_the_first() -> None:
    frames, T = views_of(walk(9))
    moved, scale = in_own_worlds(frames, T)
    kept = [k for k in range(len(T)) if k not in (11, 20)]  # views may lack frames
    aligned, factor = frames.take(kept).aligned(moved[kept])
    np.testing.assert_allclose(aligned, T[kept], atol=1e-9)
    np.testing.assert_allclose(factor, 1 / scale[frames.view[kept]], rtol=1e-9)


@pytest.mark.parametrize("cut", [[0, 2], [1, 1], [0, 1]], ids=["first", "other", "both"])
def test_parts_of_views_between_cuts_are_brought_together_by_the_other_views(cut: list[int]) -> None:
    frames, T = views_of(walk(12))
    moved, scale = in_own_worlds(frames, T)
    part, factor = frames.part.copy(), 1 / scale[frames.view]
    for number, view in enumerate(cut):
        own = np.flatnonzero(frames.view == view)[5 + 2 * number :]
        S = Similarity(1.5 + number, so3.exp(np.array([0.5, -1, 2])), np.array([1.0, 2, 3 + number]))
        moved[own], part[own] = [S.move_pose(pose) for pose in moved[own]], 3 + number
        factor[own] /= S.scale
    aligned, found = replace(frames, part=part).aligned(moved)
    longest = np.flatnonzero((frames.view == 0) & (part == np.bincount(part[frames.view == 0]).argmax()))[0]
    world = T[longest] @ np.linalg.inv(aligned[longest])  # of the longest part of view 0
    unit = found[0 if longest < 5 else longest] / factor[longest]
    S = Similarity(1 / unit, world[:3, :3], T[longest, :3, 3] - world[:3, :3] @ aligned[longest, :3, 3] / unit)
    np.testing.assert_allclose([S.move_pose(pose) for pose in aligned], T, atol=1e-8)
    np.testing.assert_allclose(found, factor * unit, rtol=1e-8)


def test_cameras_that_are_apart_are_brought_together_by_known_scales() -> None:
    S = RIG.T_body_view.copy()
    S[1:, :3, 3] = [[0.3, 0.1, 0], [-0.2, 0, 0.4]]
    frames, _ = views_of(walk(9))
    frames = replace(frames, rig=Rig(RIG.names, S))
    T = walk(9)[frames.body] @ S[frames.view]
    moved, scale = in_own_worlds(frames, T)
    aligned, factor = frames.aligned(moved, (1 / scale).tolist())
    np.testing.assert_allclose(aligned, T, atol=1e-9)
    np.testing.assert_allclose(factor, 1 / scale[frames.view], rtol=1e-9)
    ties = frames.ties(0.01)
    assert ties.is_in_scene_unit.all(), "a rig's lengths are those of the scene"
    expected = np.linalg.inv(T[ties.first]) @ T[ties.second]
    np.testing.assert_allclose(ties.T_first_second, expected, atol=1e-9)


def test_a_rig_that_does_not_move_keeps_each_views_scale() -> None:
    frames, T = views_of(np.tile(walk(1), (4, 1, 1)))
    aligned, factor = frames.aligned(in_own_worlds(frames, T)[0])
    np.testing.assert_allclose(aligned, T, atol=1e-9)
    assert (factor == 1).all()


def test_the_mean_of_views_is_consistent_and_follows_those_that_agree() -> None:
    frames, T = views_of(walk(30))
    random, off = np.random.default_rng(0), T.copy()
    size = np.where(frames.view == 1, 0.3, 0.01)[:, None]
    off[:, :3, 3] += size * random.normal(size=(len(T), 3))
    off[:, :3, :3] = off[:, :3, :3] @ so3.exp(size * random.normal(size=(len(T), 3)))
    mean = frames.consistent(off)
    np.testing.assert_allclose(frames.consistent(mean), mean, atol=1e-9)
    for view in range(1, len(RIG)):
        own = mean[frames.view == view]
        np.testing.assert_allclose(own[:, :3, 3], mean[frames.view == 0][:, :3, 3])
    assert np.linalg.norm(mean[:, :3, 3] - T[:, :3, 3], axis=1).mean() < 0.03
    assert np.mean([rotation_angle_deg(a[:3, :3].T @ b[:3, :3]) for a, b in zip(mean, T, strict=True)]) < 2


def test_ties_are_the_relative_poses_of_a_frames_views() -> None:
    frames, T = views_of(walk(4))
    ties = frames.take([0, 1, 5, 8, 9]).ties(0.01)  # bodies 0, 1, 1, 0, 1
    assert sorted(zip(ties.first.tolist(), ties.second.tolist(), strict=True)) == [(0, 3), (1, 2), (1, 4)]
    chosen = T[[0, 1, 5, 8, 9]]
    np.testing.assert_allclose(ties.T_first_second, np.linalg.inv(chosen[ties.first]) @ chosen[ties.second], atol=1e-9)


@pytest.mark.slow
def test_a_refined_rig_keeps_together_and_beats_one_of_its_views() -> None:
    frames, T = views_of(walk(12))
    guess = np.concatenate([drifting(T[frames.view == view], 0.8, 0.1, seed=view) for view in range(len(RIG))])
    guess, _ = in_own_worlds(frames, guess)
    video = Video(T, guess, FOCAL)
    options = RefineOptions(known_intrinsics=True)
    found = refine(video.views(), video, video.scale, replace(options, rig=frames))
    assert found.report.reprojection_px is not None and not found.report.fallback_segments
    np.testing.assert_allclose(frames.consistent(found.T_world_camera), found.T_world_camera, atol=1e-9)
    first = Video(T[:12], guess[:12], FOCAL)
    alone = refine(first.views(), first, first.scale, options)

    def error(poses: FloatArray) -> float:
        ate = pose_errors(poses[:12], T[:12], np.ones(11, bool)).ate_m
        assert ate is not None
        return ate

    assert error(found.T_world_camera) < error(alone.T_world_camera) < error(guess)


@pytest.mark.parametrize("diagonals", [[[1, 1, 1, 1]], [[1, 1, 1, 1], [1, 1, 2, 1]], [[1, -1, -1, 1], [1, 1, 1, 1]]])
def test_a_damaged_rig_is_refused(diagonals: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="rig"):
        Rig.from_json([{"name": "a", "T_body_view": np.diag(each).tolist()} for each in diagonals])
    again = Rig.from_json(RIG.to_json())
    assert again.names == RIG.names and np.allclose(again.T_body_view, RIG.T_body_view)
