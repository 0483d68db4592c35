"""The axioms of the group over random elements, and what its elements do to points, cameras and quaternions."""

from itertools import product

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from stream_recon.app.core.transforms import (
    FloatArray,
    Similarity,
    align,
    align_poses,
    invert_pose,
    is_rigid,
    mean_rotation,
    quaternion_xyzw,
    rotation_angle_deg,
    rotation_matrix,
    transform_points,
)


def random_rotations(count: int, seed: int = 0) -> FloatArray:
    q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(count, 3, 3)))
    q *= np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]
    q[:, :, 0] *= np.linalg.det(q)[:, None]
    return q


def random_poses(count: int, seed: int = 0) -> FloatArray:
    poses = np.tile(np.eye(4), (count, 1, 1))
    poses[:, :3, :3] = random_rotations(count, seed)
    poses[:, :3, 3] = np.random.default_rng(seed + 1).normal(size=(count, 3))
    return poses


def random_similarities(count: int, seed: int = 0) -> list[Similarity]:
    """Scales from 1/50 to 50, any turn, shifts up to some hundred."""
    rng = np.random.default_rng(seed)
    scales = np.exp(rng.uniform(-np.log(50), np.log(50), count))
    shifts = rng.normal(size=(count, 3)) * 10.0 ** rng.uniform(-2, 2, (count, 1))
    return [Similarity(float(s), R, t) for s, R, t in zip(scales, random_rotations(count, seed), shifts, strict=True)]


def random_rigid(count: int, seed: int = 0) -> list[Similarity]:
    return [rigid(T) for T in random_poses(count, seed)]


def rigid(T: FloatArray) -> Similarity:
    return Similarity(1.0, T[:3, :3], T[:3, 3])


ELEMENTS = [Similarity.identity(), *random_rigid(6, seed=3), *random_similarities(12, seed=4)]


def assert_same(a: Similarity, b: Similarity) -> None:
    assert a.scale == pytest.approx(b.scale, rel=1e-12)
    np.testing.assert_allclose(a.rotation, b.rotation, atol=1e-12)
    extent = 1 + np.abs(b.translation).max()
    np.testing.assert_allclose(a.translation, b.translation, atol=1e-10 * extent)


def test_composition_is_closed() -> None:
    for a, b in product(ELEMENTS, ELEMENTS):
        both = a @ b
        assert both.scale > 0
        assert is_rigid(Similarity(1.0, both.rotation, both.translation).matrix, tolerance=1e-12)


def test_composition_is_associative() -> None:
    for a, b, c in product(ELEMENTS[::2], repeat=3):
        assert_same((a @ b) @ c, a @ (b @ c))


def test_the_identity_changes_nothing_on_either_side() -> None:
    for a in ELEMENTS:
        assert_same(a @ Similarity.identity(), a)
        assert_same(Similarity.identity() @ a, a)


def test_an_element_and_its_inverse_give_the_identity_on_either_side() -> None:
    for a in ELEMENTS:
        # A shift that was divided by a small scale and comes back keeps the rounding of its larger self.
        size = max(1.0, float(np.abs(a.inverse().translation).max() * a.scale))
        for product_ in (a @ a.inverse(), a.inverse() @ a):
            assert product_.scale == pytest.approx(1, rel=1e-12)
            np.testing.assert_allclose(product_.rotation, np.eye(3), atol=1e-12)
            np.testing.assert_allclose(product_.translation, 0, atol=1e-11 * size / min(a.scale, 1))
        assert_same(a.inverse().inverse(), a)


def test_the_inverse_of_a_product_is_the_product_of_inverses_in_reverse() -> None:
    for a, b in product(ELEMENTS, ELEMENTS):
        assert_same((a @ b).inverse(), b.inverse() @ a.inverse())


def test_the_group_acts_on_points() -> None:
    points = np.random.default_rng(5).normal(size=(40, 3))
    np.testing.assert_array_equal(Similarity.identity().apply(points), points)
    for a, b in product(ELEMENTS, ELEMENTS):
        expected = a.apply(b.apply(points))
        np.testing.assert_allclose((a @ b).apply(points), expected, atol=1e-11 * (1 + np.abs(expected).max()))
    for a in ELEMENTS:
        np.testing.assert_allclose(a.inverse().apply(a.apply(points)), points, atol=1e-9)


def test_distances_grow_by_the_scale_and_angles_stay() -> None:
    first, second = np.random.default_rng(6).normal(size=(2, 40, 3))
    for a in ELEMENTS:
        before, after = second - first, a.apply(second) - a.apply(first)
        lengths = np.linalg.norm(before, axis=1)
        np.testing.assert_allclose(np.linalg.norm(after, axis=1), a.scale * lengths, rtol=1e-9)
        np.testing.assert_allclose(after @ after.T, a.scale**2 * before @ before.T, atol=1e-9 * a.scale**2)


def test_rigid_motions_are_a_subgroup() -> None:
    rigid = random_rigid(8)
    for a, b in product(rigid, rigid):
        assert (a @ b).scale == 1.0 and a.inverse().scale == 1.0
        assert is_rigid((a @ b.inverse()).matrix)


def test_matrices_multiply_and_invert_as_their_elements_do() -> None:
    for a, b in product(ELEMENTS, ELEMENTS):
        np.testing.assert_allclose((a @ b).matrix, a.matrix @ b.matrix, rtol=1e-9, atol=1e-9)
    for a in ELEMENTS:
        np.testing.assert_allclose(a.matrix @ a.inverse().matrix, np.eye(4), atol=1e-9)
        assert_same(Similarity.of_matrix(a.matrix), a)
        assert_same(Similarity(a.scale, rotation_matrix(quaternion_xyzw(a.rotation)), a.translation), a)


def test_a_pose_is_inverted_and_composed_as_the_rigid_motion_it_is() -> None:
    poses = random_poses(10)
    for T, other in zip(poses, poses[::-1], strict=True):
        np.testing.assert_allclose(rigid(T).inverse().matrix, invert_pose(T), atol=1e-12)
        np.testing.assert_allclose((rigid(T) @ rigid(other)).matrix, T @ other, atol=1e-12)


def test_what_is_no_motion_of_its_kind_is_refused() -> None:
    for matrix in (np.diag([1.0, 1.0, -1.0, 1.0]), np.diag([1.0, 1.0, 0.0, 1.0]), np.diag([1.0, 2.0, 3.0, 1.0])):
        with pytest.raises(ValueError, match="not a similarity"):
            Similarity.of_matrix(matrix)
    assert is_rigid(random_poses(20))
    assert is_rigid(random_poses(20).astype(np.float32))
    assert not is_rigid(np.stack([*random_poses(3), random_similarities(1, seed=9)[0].matrix]))
    assert not is_rigid(np.full((4, 4), np.nan))


def test_cameras_move_with_the_points_that_they_see() -> None:
    """What a camera sees at p, it sees at scale * p once both are in the other world, where it still is rigid."""
    poses, seen = random_poses(30, 12), np.random.default_rng(13).normal(size=(30, 3))
    in_world = np.einsum("nij,nj->ni", poses[:, :3, :3], seen) + poses[:, :3, 3]
    for a in ELEMENTS:
        moved = a.move_pose(poses)
        assert is_rigid(moved, tolerance=1e-9)
        np.testing.assert_allclose(moved[4], a.move_pose(poses[4]), atol=1e-10)
        inverse = invert_pose(moved)
        there = np.einsum("nij,nj->ni", inverse[:, :3, :3], a.apply(in_world)) + inverse[:, :3, 3]
        np.testing.assert_allclose(there, a.scale * seen, rtol=1e-9, atol=1e-9 * (1 + np.abs(a.translation).max()))


def test_moving_cameras_is_an_action_of_the_group() -> None:
    poses = random_poses(5, 2)
    for a, b in product(ELEMENTS, ELEMENTS):
        expected = a.move_pose(b.move_pose(poses))
        np.testing.assert_allclose((a @ b).move_pose(poses), expected, atol=1e-11 * (1 + np.abs(expected).max()))


def test_alignment_recovers_a_similarity_and_never_mirrors() -> None:
    source = np.random.default_rng(1).normal(size=(30, 3))
    for a in ELEMENTS:
        assert_same(align(source, a.apply(source)), a)
    mirrored = align(source, source * np.array([-1.0, 1.0, 1.0]))
    assert np.linalg.det(mirrored.rotation) == pytest.approx(1)


def test_no_other_similarity_is_nearer_than_the_alignment() -> None:
    rng = np.random.default_rng(2)
    source, target = rng.normal(size=(2, 25, 3))
    best = align(source, target)

    def error(similarity: Similarity) -> float:
        return float(np.square(similarity.apply(source) - target).sum())

    for seed in range(50):
        turn = Rotation.from_rotvec(1e-3 * np.random.default_rng(seed).normal(size=3)).as_matrix()
        near = Similarity(best.scale * (1 + 1e-3 * rng.normal()), turn @ best.rotation, best.translation)
        assert error(best) <= error(near)


def test_points_in_one_place_have_no_scale() -> None:
    assert align(np.full((5, 3), 1e3), np.random.default_rng(0).normal(size=(5, 3))).scale == 0.0


def test_poses_align_even_where_the_camera_stands_still() -> None:
    for a in ELEMENTS:
        poses = random_poses(9, 5)
        poses[:, :3, 3] = poses[0, :3, 3]
        assert_same(align_poses(poses, a.move_pose(poses), a.scale), a)


def test_the_mean_rotation_is_where_deviations_cancel() -> None:
    middle = random_rotations(1, 8)[0]
    turns = Rotation.from_rotvec(np.random.default_rng(8).normal(size=(10, 3)) * 0.2).as_matrix()
    around = np.concatenate([middle @ turns, middle @ np.swapaxes(turns, 1, 2)])
    mean = mean_rotation(around)
    np.testing.assert_allclose(mean, middle, atol=1e-12)
    np.testing.assert_allclose(mean_rotation(around[:1]), around[0], atol=1e-12)
    assert np.linalg.det(mean) == pytest.approx(1)


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
    rotations = random_rotations(200, 11)
    expected = Rotation.from_matrix(rotations).as_quat()
    expected *= np.where(expected[:, 3:] < 0, -1, 1)
    np.testing.assert_allclose(quaternion_xyzw(rotations), expected, atol=1e-9)


@pytest.mark.parametrize("degrees", [0.0, 1e-5, 1.0, 90.0, 179.99999, 180.0])
def test_rotation_angles_are_exact_at_both_ends(degrees: float) -> None:
    half = np.radians(degrees) / 2
    axis = np.array([0.36, 0.48, 0.8])
    R = rotation_matrix(np.array([*(np.sin(half) * axis), np.cos(half)]))
    assert float(rotation_angle_deg(R)) == pytest.approx(degrees, abs=1e-7)
