"""The pose code and what it means: camera-to-world translation, quaternion (x, y, z, w), field of view."""

import torch
import torch.nn.functional as F
from torch import Tensor


def quaternion_to_matrix(quaternion: Tensor) -> Tensor:
    """xyzw [..., 4], of any length but zero -> rotation matrices [..., 3, 3]."""
    x, y, z, w = quaternion.unbind(-1)
    s = 2 / quaternion.square().sum(-1).clamp_min(1e-12)
    rows = [
        1 - s * (y * y + z * z), s * (x * y - z * w), s * (x * z + y * w),
        s * (x * y + z * w), 1 - s * (x * x + z * z), s * (y * z - x * w),
        s * (x * z - y * w), s * (y * z + x * w), 1 - s * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, dim=-1).reshape(*quaternion.shape[:-1], 3, 3)


def matrix_to_quaternion(R: Tensor) -> Tensor:
    """Rotation matrices [..., 3, 3] -> unit quaternions [..., 4] with w >= 0.

    Four candidates are written down, each divided by another component; the one with the largest divisor is
    taken, so no rotation is badly conditioned (Shepperd, 1978).
    """
    m = [[R[..., i, j] for j in range(3)] for i in range(3)]
    xx, yy, zz = m[0][0], m[1][1], m[2][2]
    xy, xz, yz = m[0][1] + m[1][0], m[0][2] + m[2][0], m[1][2] + m[2][1]
    xw, yw, zw = m[2][1] - m[1][2], m[0][2] - m[2][0], m[1][0] - m[0][1]
    squares = torch.stack([1 + xx - yy - zz, 1 - xx + yy - zz, 1 - xx - yy + zz, 1 + xx + yy + zz], dim=-1)
    candidates = torch.stack(  # row i is 4 * component i * (x, y, z, w)
        [
            torch.stack([squares[..., 0], xy, xz, xw], dim=-1),
            torch.stack([xy, squares[..., 1], yz, yw], dim=-1),
            torch.stack([xz, yz, squares[..., 2], zw], dim=-1),
            torch.stack([xw, yw, zw, squares[..., 3]], dim=-1),
        ],
        dim=-2,
    )
    best = squares.argmax(dim=-1)[..., None, None].expand(*squares.shape[:-1], 1, 4)
    quaternion = F.normalize(candidates.gather(-2, best)[..., 0, :], dim=-1)
    return torch.where(quaternion[..., 3:] < 0, -quaternion, quaternion)


def pose_to_matrix(pose: Tensor) -> Tensor:
    """Pose codes [..., 9] -> T_world_camera [..., 4, 4]."""
    T = torch.zeros(*pose.shape[:-1], 4, 4, dtype=pose.dtype, device=pose.device)
    T[..., :3, :3] = quaternion_to_matrix(pose[..., 3:7])
    T[..., :3, 3] = pose[..., :3]
    T[..., 3, 3].fill_(1)  # assigning would copy from the host, which no captured graph may
    return T


def focal_lengths(pose: Tensor, height: float | Tensor, width: float | Tensor) -> tuple[Tensor, Tensor]:
    """Pose codes [..., 9] -> fx, fy [...] in pixels of an image of that size, principal point at its centre."""
    # A field of view of zero, which the head's ReLU allows, would be an infinite focal length.
    fov = pose[..., 7:].clamp(min=1e-3, max=3.1)
    return width / 2 / torch.tan(fov[..., 1] / 2), height / 2 / torch.tan(fov[..., 0] / 2)


def focal_length(pose: Tensor, height: float | Tensor, width: float | Tensor) -> Tensor:
    """The focal length [...] of square pixels: that of the longer side; sides as numbers, or [...] each.

    Both angles err alike, and together; an angle's error d is one of d / sin(angle) in the logarithm of the focal
    length, so the wider angle says more.
    """
    fx, fy = focal_lengths(pose, height, width)
    return torch.where(torch.as_tensor(width >= height, device=pose.device), fx, fy)
