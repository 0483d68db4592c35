"""The pose code and what it means: camera-to-world translation, quaternion (x, y, z, w), field of view."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

_TURNED = ((5, 10), (1, 11), (2, 7), (1, 11), (0, 10), (6, 3), (2, 7), (6, 3), (0, 5))
"""For each entry of a rotation matrix, row by row: the two products of components, numbered as in a flat 4x4 table of
all, that it is a sum of, ..."""
_SIGNS = ((-1, -1), (1, -1), (1, 1), (1, 1), (-1, -1), (1, -1), (1, -1), (1, 1), (-1, -1))
"""... and their signs; the diagonal's begin at 1."""


@cache
def _quaternion_terms(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """`_TURNED` [18], `_SIGNS` [9, 2], and where the entries begin [9]."""
    signs = torch.tensor(_SIGNS, dtype=dtype, device=device)
    return torch.tensor(_TURNED, device=device).flatten(), signs, torch.eye(3, dtype=dtype, device=device).flatten()


@cache
def _matrix_terms(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """4 times all products of two components of a unit quaternion, as a flat 4x4 table, by the entries of its rotation
    matrix: factors [16, 9], and where they begin [16]."""
    factors, begin = torch.zeros(4, 4, 3, 3, dtype=dtype), torch.eye(4, dtype=dtype)
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        for axis in range(3):
            factors[i, i, axis, axis] = 1 if axis == i else -1
        factors[3, 3, i, i] = 1
        for a, b in ((i, j), (j, i)):
            factors[a, b, i, j] = factors[a, b, j, i] = 1
        for a, b in ((i, 3), (3, i)):
            factors[a, b, k, j], factors[a, b, j, k] = 1, -1
    return factors.flatten(2).flatten(0, 1).to(device), begin.flatten().to(device)


def quaternion_to_matrix(quaternion: Tensor) -> Tensor:
    """xyzw [..., 4], of any length but zero -> rotation matrices [..., 3, 3].

    In few operations, as all here: in a stream each costs more than the numbers in it. None of them is a product of
    matrices, which autocast would round.
    """
    which, signs, begin = _quaternion_terms(quaternion.dtype, quaternion.device)
    scaled = quaternion * (2 / quaternion.square().sum(-1, keepdim=True).clamp_min(1e-12))
    products = (quaternion[..., :, None] * scaled[..., None, :]).flatten(-2)
    terms = products.index_select(-1, which).unflatten(-1, (9, 2)) * signs
    matrix: Tensor = (terms.sum(-1) + begin).unflatten(-1, (3, 3))
    return matrix


def matrix_to_quaternion(R: Tensor) -> Tensor:
    """Rotation matrices [..., 3, 3] -> unit quaternions [..., 4] with w >= 0.

    Four candidates are written down, each divided by another component; the one with the largest divisor is
    taken, so no rotation is badly conditioned (Shepperd, 1978).
    """
    factors, begin = _matrix_terms(R.dtype, R.device)
    # Row i is 4 * component i * (x, y, z, w).
    candidates = ((factors * R.flatten(-2)[..., None, :]).sum(-1) + begin).unflatten(-1, (4, 4))
    best = candidates.diagonal(dim1=-2, dim2=-1).argmax(dim=-1)[..., None, None].expand(*R.shape[:-2], 1, 4)
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
