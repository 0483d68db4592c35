"""Invariants of unprojection and rotations."""

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.geometry import (
    depth_edges,
    frame_points,
    invert_pose,
    project,
    quaternion_xyzw,
    rotation_angle_deg,
    rotation_matrix,
    transform_points,
)
from stream_recon.app.results import FrameResult, ImageTransform, Intrinsics
from stream_recon.configs.schema import PointsConfig

EVERYTHING = PointsConfig(confidence_quantile=0.0, voxel=0.01, edge_ratio=1e6)


def random_rotations(count: int, seed: int = 0) -> NDArray[np.float64]:
    q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(count, 3, 3)))
    q *= np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]
    q[:, :, 0] *= np.linalg.det(q)[:, None]
    return q


def random_poses(count: int, seed: int = 0) -> NDArray[np.float64]:
    poses = np.tile(np.eye(4), (count, 1, 1))
    poses[:, :3, :3] = random_rotations(count, seed)
    poses[:, :3, 3] = np.random.default_rng(seed + 1).normal(size=(count, 3))
    return poses


def make_result(depth: NDArray[np.float32], confidence: NDArray[np.float32] | None = None) -> FrameResult:
    h, w = depth.shape
    rng = np.random.default_rng(3)
    return FrameResult(
        index=0,
        timestamp=0.0,
        T_world_camera=np.eye(4),
        intrinsics=Intrinsics(2.1 * w, 1.7 * w, 0.9 * w, 1.1 * h),
        depth=depth,
        confidence=np.full(depth.shape, 2.0, np.float32) if confidence is None else confidence,
        rgb=rng.integers(0, 256, (h, w, 3), dtype=np.uint8),
        transform=ImageTransform((2 * w + 10, 2 * h), (10.0, 0.0, 2.0 * w, 2.0 * h), (w, h)),
        is_keyframe=True,
    )


def test_unprojected_pixels_project_back_onto_their_centres() -> None:
    depth = np.random.default_rng(0).uniform(0.5, 4.0, (21, 28)).astype(np.float32)
    result = make_result(depth)
    points = frame_points(result, EVERYTHING)
    k = result.network_intrinsics
    pixels = project(points.xyz, np.array([[k.fx, 0, k.cx], [0, k.fy, k.cy], [0, 0, 1]]))
    rows, columns = np.mgrid[:21, :28]
    np.testing.assert_allclose(pixels, np.stack([columns.ravel(), rows.ravel()], axis=1) + 0.5, atol=1e-4)
    np.testing.assert_array_equal(points.xyz[:, 2], depth.ravel())
    np.testing.assert_array_equal(points.rgb, result.rgb.reshape(-1, 3))


def test_source_intrinsics_and_crop_lead_to_the_same_rays() -> None:
    # A network pixel unprojected, then projected with the source's camera, is the source pixel it came from.
    result = make_result(np.full((14, 28), 3.0, np.float32))
    points = frame_points(result, EVERYTHING)
    k = result.intrinsics
    source = project(points.xyz, np.array([[k.fx, 0, k.cx], [0, k.fy, k.cy], [0, 0, 1]]))
    rows, columns = np.mgrid[:14, :28]
    expected = np.stack([(columns.ravel() + 0.5) * 2 + 10, (rows.ravel() + 0.5) * 2], axis=1)
    np.testing.assert_allclose(source, expected, atol=1e-3)


def test_pixels_without_depth_give_no_point() -> None:
    depth = np.full((14, 14), 2.0, np.float32)
    depth[0, :4] = [0.0, -1.0, np.nan, np.inf]
    points = frame_points(make_result(depth), EVERYTHING)
    assert len(points) == 14 * 14 - 4
    assert np.isfinite(points.xyz).all()
    assert len(frame_points(make_result(np.zeros((14, 14), np.float32)), EVERYTHING)) == 0


@pytest.mark.parametrize("share", [0.0, 0.25, 0.4, 0.9])
def test_the_least_confident_share_is_left_out(share: float) -> None:
    confidence = 1 + np.random.default_rng(1).permutation(1000).astype(np.float32).reshape(20, 50)
    points = frame_points(
        make_result(np.ones((20, 50), np.float32), confidence), PointsConfig(confidence_quantile=share)
    )
    assert len(points) == 1000 - round(share * 1000)
    assert points.confidence.min() == 1 + round(share * 1000)


def test_what_is_too_unsure_is_left_out_whatever_its_share() -> None:
    confidence = np.full((20, 50), 0.01, np.float32)
    confidence[:4] = 1.0
    result = make_result(np.ones((20, 50), np.float32), confidence)
    for share in (0.0, 0.4):
        points = frame_points(result, PointsConfig(confidence_quantile=share, min_confidence=0.05))
        assert len(points) == 4 * 50
        assert (points.confidence == 1.0).all()


def test_depth_edges_leave_both_sides_of_a_step_and_nothing_else() -> None:
    depth = np.full((10, 12), 1.0, np.float32)
    depth[:, 6:] = 1.09
    depth[4, 2] = np.nan
    edges = depth_edges(depth, 0.08)
    expected = np.zeros((10, 12), bool)
    expected[:, 5:7] = True
    np.testing.assert_array_equal(edges, expected)
    assert not depth_edges(depth, 0.1).any()
    np.testing.assert_array_equal(depth_edges(depth.T, 0.08), expected.T)


def test_edge_pixels_give_no_points() -> None:
    depth = np.full((10, 12), 1.0, np.float32)
    depth[3:6, 4:8] = 2.0
    points = frame_points(make_result(depth), PointsConfig(confidence_quantile=0.0, edge_ratio=0.5))
    # The 3x4 block keeps its 1x2 inside; the ring of its 14 neighbours goes too.
    assert np.count_nonzero(points.xyz[:, 2] == 2.0) == 2
    assert np.count_nonzero(points.xyz[:, 2] == 1.0) == 120 - 12 - 14


def test_poses_invert_and_move_points() -> None:
    poses = random_poses(50)
    np.testing.assert_allclose(poses @ invert_pose(poses), np.tile(np.eye(4), (50, 1, 1)), atol=1e-12)
    xyz = np.random.default_rng(5).normal(size=(100, 3)).astype(np.float32)
    moved = transform_points(poses[0], xyz)
    assert moved.dtype == np.float32
    np.testing.assert_allclose(transform_points(invert_pose(poses[0]), moved), xyz, atol=1e-5)
    np.testing.assert_allclose(transform_points(np.eye(4), xyz), xyz)


def test_quaternions_round_trip_also_at_half_turns() -> None:
    half_turns = np.stack([2 * np.outer(n, n) - np.eye(3) for n in random_rotations(20, 7)[:, 0]])
    axes = np.stack([np.diag([1, -1, -1]), np.diag([-1, 1, -1]), np.diag([-1, -1, 1]), np.eye(3)]).astype(float)
    rotations = np.concatenate([random_rotations(500), half_turns, axes])
    q = quaternion_xyzw(rotations)
    np.testing.assert_allclose(np.linalg.norm(q, axis=1), 1.0, atol=1e-12)
    assert (q[:, 3] >= 0).all()
    np.testing.assert_allclose(rotation_matrix(q), rotations, atol=1e-9)
    np.testing.assert_allclose(rotation_matrix(-3.0 * q), rotations, atol=1e-9)


def test_quaternion_signs_follow_the_right_hand_rule() -> None:
    quarter_about_z = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]], float)
    np.testing.assert_allclose(quaternion_xyzw(quarter_about_z), [0, 0, np.sqrt(0.5), np.sqrt(0.5)])
    quarter_about_x = np.array([[1, 0, 0], [0, 0, -1], [0, 1, 0]], float)
    np.testing.assert_allclose(quaternion_xyzw(quarter_about_x), [np.sqrt(0.5), 0, 0, np.sqrt(0.5)])
    quarter_about_y = np.array([[0, 0, 1], [0, 1, 0], [-1, 0, 0]], float)
    np.testing.assert_allclose(quaternion_xyzw(quarter_about_y), [0, np.sqrt(0.5), 0, np.sqrt(0.5)])


def test_quaternions_agree_with_scipy() -> None:
    transform = pytest.importorskip("scipy.spatial.transform")
    rotations = random_rotations(200, 11)
    expected = transform.Rotation.from_matrix(rotations).as_quat()
    expected *= np.where(expected[:, 3:] < 0, -1, 1)
    np.testing.assert_allclose(quaternion_xyzw(rotations), expected, atol=1e-9)


@pytest.mark.parametrize("degrees", [0.0, 1e-5, 1.0, 90.0, 179.99999, 180.0])
def test_rotation_angles_are_exact_at_both_ends(degrees: float) -> None:
    half = np.radians(degrees) / 2
    axis = np.array([0.36, 0.48, 0.8])
    R = rotation_matrix(np.array([*(np.sin(half) * axis), np.cos(half)]))
    assert float(rotation_angle_deg(R)) == pytest.approx(degrees, abs=1e-7)
