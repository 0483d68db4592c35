import math

import torch

from stream_recon.models.pose import focal_length, focal_lengths, pose_to_matrix, quaternion_to_matrix, so3_exp, so3_log


def test_rotation_matrices_are_orthonormal_whatever_the_quaternions_length() -> None:
    quaternion = torch.randn(50, 4, dtype=torch.float64) * 3
    R = quaternion_to_matrix(quaternion)
    torch.testing.assert_close(R @ R.mT, torch.eye(3, dtype=torch.float64).expand(50, 3, 3))
    torch.testing.assert_close(torch.linalg.det(R), torch.ones(50, dtype=torch.float64))
    torch.testing.assert_close(R, quaternion_to_matrix(-quaternion))


def test_the_real_part_comes_last() -> None:
    half = math.sin(math.pi / 4)
    R = quaternion_to_matrix(torch.tensor([0, 0, half, half]))  # a quarter turn about z: x becomes y
    torch.testing.assert_close(R @ torch.tensor([1.0, 0, 0]), torch.tensor([0.0, 1, 0]), atol=1e-6, rtol=0)


def test_a_pose_code_is_camera_to_world() -> None:
    T = pose_to_matrix(torch.tensor([1.0, 2, 3, 0, 0, 0, 1, 1, 1]))
    torch.testing.assert_close(T @ torch.tensor([0.0, 0, 0, 1]), torch.tensor([1.0, 2, 3, 1]))


def test_the_image_border_lies_at_half_the_field_of_view() -> None:
    pose = torch.tensor([0, 0, 0, 0, 0, 0, 1, 0.9, 1.2])
    fx, fy = focal_lengths(pose, height=120, width=200)
    assert math.isclose(math.atan(100 / float(fx)), 0.6, rel_tol=1e-5)
    assert math.isclose(math.atan(60 / float(fy)), 0.45, rel_tol=1e-5)
    assert all(f.isfinite() for f in focal_lengths(torch.zeros(9), 10, 10))


def test_square_pixels_have_the_focal_length_of_the_longer_side() -> None:
    pose = torch.zeros(3, 9)
    pose[:, 7:] = torch.tensor([[40.0, 40.0], [30.0, 80.0], [80.0, 30.0]]).deg2rad()
    for height, width, axis in ((120.0, 200.0, 0), (200.0, 120.0, 1)):
        expected = focal_lengths(pose, height, width)[axis]
        torch.testing.assert_close(focal_length(pose, height, width), expected)
    assert focal_length(torch.zeros(9), 10, 10).isfinite()


def test_rotation_vectors_come_back() -> None:
    vector = torch.randn(50, 3) * torch.logspace(-4, 0, 50)[:, None]
    vector = vector * (3.0 / vector.norm(dim=1, keepdim=True)).clamp_max(1)
    torch.testing.assert_close(so3_log(so3_exp(vector)), vector, atol=2e-5, rtol=1e-3)
