"""Rotations on tensors, batched. Quaternions are xyzw."""

import torch
import torch.nn.functional as F
from torch import Tensor


def quaternion_from_matrix(R: Tensor) -> Tensor:
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


def inverse_pose(T: Tensor) -> Tensor:
    """Rigid transforms [..., 4, 4] -> their inverses, without a solver."""
    R_t = T[..., :3, :3].transpose(-1, -2)
    moved = -(R_t @ T[..., :3, 3:])
    return torch.cat([torch.cat([R_t, moved], dim=-1), T[..., 3:, :]], dim=-2)
