import math

import torch

from stream_recon.models.pose import focal_length, focal_lengths, pose_to_matrix, quaternion_to_matrix


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


def test_square_pixels_have_one_focal_length_nearer_to_the_wider_axis() -> None:
    pose = torch.zeros(3, 9)
    fov = torch.tensor([[40.0, 40.0], [30.0, 80.0], [80.0, 30.0]]).deg2rad()
    pose[:, 7:] = fov
    fx, fy = focal_lengths(pose, height=120, width=200)
    focal = focal_length(pose, height=120, width=200)
    assert ((focal >= torch.minimum(fx, fy)) & (focal <= torch.maximum(fx, fy))).all()
    off_x, off_y = (focal / fx).log().abs(), (focal / fy).log().abs()
    torch.testing.assert_close(off_x[0], off_y[0])
    assert off_x[1] < off_y[1] and off_y[2] < off_x[2]
    consistent = torch.cat([torch.zeros(7), 2 * torch.atan(torch.tensor([60.0, 100.0]) / 130.0)])
    torch.testing.assert_close(focal_length(consistent, 120, 200), torch.tensor(130.0))
    assert focal_length(torch.zeros(9), 10, 10).isfinite()
