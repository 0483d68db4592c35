"""Rotations, rigid transforms and pose codes on tensors.

A pose code is camera to world: translation (3), quaternion x, y, z, w, vertical and horizontal field of view in
radians. Functions take few operations, since a stream's step waits for each one to start. Tensors stay on the device: a
captured CUDA graph may neither ask the host nor copy from it. Quaternions are converted without matrix products:
autocast would round them.
"""

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

TINY = 1e-9
"""Added to or the least value of divisors that may be zero."""
_PRODUCTS = ((5, 10), (1, 11), (2, 7), (1, 11), (0, 10), (6, 3), (2, 7), (6, 3), (0, 5))
"""For each entry of a rotation matrix, row by row, the two products of quaternion components that it is a sum of.
Products are numbered as in a flat 4x4 table."""
_SIGNS = ((-1, -1), (1, -1), (1, 1), (1, 1), (-1, -1), (1, -1), (1, -1), (1, 1), (-1, -1))
"""Signs of `_PRODUCTS`. Entries of the diagonal have 1 added."""


@cache
def identity(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The identity matrix [size, size]. Constants of a step are made once: on a GPU each one costs a launch."""
    return torch.eye(size, dtype=dtype, device=device)


@cache
def _quaternion_terms(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """`_PRODUCTS` [18], `_SIGNS` [9, 2] and a flat identity matrix [9]."""
    signs = torch.tensor(_SIGNS, dtype=dtype, device=device)
    return torch.tensor(_PRODUCTS, device=device).flatten(), signs, torch.eye(3, dtype=dtype, device=device).flatten()


@cache
def _matrix_terms(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Factors [16, 9] and constants [16] that turn the entries of a rotation matrix into a flat 4x4 table: 4 times all
    products of two components of its unit quaternion."""
    factors, constants = torch.zeros(4, 4, 3, 3, dtype=dtype), torch.eye(4, dtype=dtype)
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        for axis in range(3):
            factors[i, i, axis, axis] = 1 if axis == i else -1
        factors[3, 3, i, i] = 1
        for a, b in ((i, j), (j, i)):
            factors[a, b, i, j] = factors[a, b, j, i] = 1
        for a, b in ((i, 3), (3, i)):
            factors[a, b, k, j], factors[a, b, j, k] = 1, -1
    return factors.flatten(2).flatten(0, 1).to(device), constants.flatten().to(device)


@cache
def _skew_terms(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Component of a vector and sign of each entry of its cross-product matrix, row by row."""
    component, signs = (0, 2, 1, 2, 0, 0, 1, 0, 0), (0, -1, 1, 1, 0, -1, -1, 1, 0)
    return torch.tensor(component, device=device), torch.tensor(signs, dtype=dtype, device=device)


def quaternion_to_matrix(quaternion: Tensor) -> Tensor:
    """Quaternions xyzw [..., 4] of any length but zero -> rotation matrices [..., 3, 3]."""
    which, signs, constants = _quaternion_terms(quaternion.dtype, quaternion.device)
    scaled = quaternion * (2 / quaternion.square().sum(-1, keepdim=True).clamp_min(1e-12))
    products = (quaternion[..., :, None] * scaled[..., None, :]).flatten(-2)
    terms = products.index_select(-1, which).unflatten(-1, (9, 2)) * signs
    matrix: Tensor = (terms.sum(-1) + constants).unflatten(-1, (3, 3))
    return matrix


def matrix_to_quaternion(R: Tensor) -> Tensor:
    """Rotation matrices [..., 3, 3] -> unit quaternions [..., 4] with w >= 0.

    Of four candidates, each divided by another component, the one with the largest divisor is taken. So every rotation
    is well conditioned (Shepperd 1978).
    """
    factors, constants = _matrix_terms(R.dtype, R.device)
    # Row i is 4 * component i * (x, y, z, w).
    candidates = ((factors * R.flatten(-2)[..., None, :]).sum(-1) + constants).unflatten(-1, (4, 4))
    best = candidates.diagonal(dim1=-2, dim2=-1).argmax(dim=-1)[..., None, None].expand(*R.shape[:-2], 1, 4)
    quaternion = F.normalize(candidates.gather(-2, best)[..., 0, :], dim=-1)
    return torch.where(quaternion[..., 3:] < 0, -quaternion, quaternion)


def so3_exp(vector: Tensor) -> Tensor:
    """Rotation vectors [N, 3] in radians -> rotation matrices [N, 3, 3] (Rodrigues)."""
    which, signs = _skew_terms(vector.dtype, vector.device)
    K = (vector.index_select(-1, which) * signs).unflatten(-1, (3, 3))
    angle = torch.linalg.vector_norm(vector, dim=-1)[:, None, None] / math.pi
    # sin(a) / a, and (1 - cos(a)) / a^2 from half of the angle, which is exact where the angle is small.
    first, second = torch.sinc(angle), torch.sinc(angle / 2).square()
    rotation = torch.addcmul(identity(3, vector.dtype, vector.device), first, K)
    return torch.addcmul(rotation, second, K @ K, value=0.5)


def so3_log(R: Tensor) -> Tensor:
    """Rotation matrices [..., 3, 3] by angles below pi -> rotation vectors [..., 3] in radians."""
    differences = [R[..., 2, 1] - R[..., 1, 2], R[..., 0, 2] - R[..., 2, 0], R[..., 1, 0] - R[..., 0, 1]]
    axis = torch.stack(differences, dim=-1) / 2
    sine = axis.norm(dim=-1, keepdim=True)
    cosine = (R.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True) - 1) / 2
    vector: Tensor = axis * (torch.atan2(sine, cosine) / sine.clamp_min(TINY))
    return vector


def rigid_matrix(R: Tensor, t: Tensor) -> Tensor:
    """Rotations [..., 3, 3] and translations [..., 3] -> rigid transforms [..., 4, 4]."""
    T = torch.zeros(*t.shape[:-1], 4, 4, dtype=t.dtype, device=t.device)
    T[..., :3, :3] = R
    T[..., :3, 3] = t
    T[..., 3, 3].fill_(1)  # assigning would copy from the host
    return T


def inverse_pose(T: Tensor) -> Tensor:
    """Rigid transforms [..., 4, 4] -> their inverses, without a solver."""
    R_t = T[..., :3, :3].transpose(-1, -2)
    moved = -(R_t @ T[..., :3, 3:])
    return torch.cat([torch.cat([R_t, moved], dim=-1), T[..., 3:, :]], dim=-2)


def pose_to_matrix(pose: Tensor) -> Tensor:
    """Pose codes [..., 9] -> T_world_camera [..., 4, 4]."""
    return rigid_matrix(quaternion_to_matrix(pose[..., 3:7]), pose[..., :3])


def focal_lengths(pose: Tensor, height: float | Tensor, width: float | Tensor) -> tuple[Tensor, Tensor]:
    """Pose codes [..., 9] -> fx, fy [...] in pixels of an image of that size, principal point at its centre."""
    # A field of view of zero, which the head's ReLU allows, would be an infinite focal length.
    fov = pose[..., 7:].clamp(min=1e-3, max=3.1)
    return width / 2 / torch.tan(fov[..., 1] / 2), height / 2 / torch.tan(fov[..., 0] / 2)


def focal_length(pose: Tensor, height: float | Tensor, width: float | Tensor) -> Tensor:
    """The focal length [...] of square pixels, from the longer side; sides as numbers, or [...] each.

    Both angles have similar, correlated errors. An angle's error d is one of d / sin(angle) in the logarithm of the
    focal length, so the wider angle determines it better.
    """
    fx, fy = focal_lengths(pose, height, width)
    return torch.where(torch.as_tensor(width >= height, device=pose.device), fx, fy)
