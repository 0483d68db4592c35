"""Search for the rotation of a camera that was estimated wrongly.

Where a camera rotates by more than matches can follow, the motion may have an error of many degrees. Comparing features
around the predicted pixels cannot correct that. Whole images can: for each of many candidate rotations, the similarity
of all points that would be in view. Matches that start from the best candidate have to confirm it (`refinement`).
"""

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.models.odometry.keyframe_matcher import interpolate, select_level
from stream_recon.models.odometry.pnp import MIN_DEPTH
from stream_recon.models.odometry.sampling import CellPoints
from stream_recon.models.pose import identity, so3_exp

CELL = 8
"""Pixels per compared cell: the coarsest level of the matcher's features."""
COARSE_STEP, FINE_STEP = 16, 8
"""Pixels in the middle of an image between neighbouring candidates, of all rotations and around the best one."""
ACROSS, DOWN = 5, 3
"""Coarse candidates to each side, about the vertical and the horizontal axis."""
ROLLS = (-24.0, -16.0, -8.0, 0.0, 8.0, 16.0, 24.0)
"""Degrees about the viewing axis, of the coarse candidates."""
FINE_ROLLS = (-4.0, 0.0, 4.0)
"""Degrees about the viewing axis, around the best candidate."""
MIN_VIEW = 0.05
"""Share of the points: a candidate that keeps so few in view has half its similarity."""
SEARCH_BELOW = 0.5
"""A rotation is searched where the similarity without one is below this. A right motion hardly ever has so little."""
MARGIN = 0.01
"""Least gain of similarity for a candidate to be considered."""


def search_rotation(own: Tensor, other: Tensor, points: CellPoints, motion: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rotation of B cameras that makes images most similar, in addition to the known motion.

    Args:
        own, other: [B, M, 24], of a frame and of one before, from `KeyframeMatcher.describe`.
        points: of the frame. Half of them along each axis are used.
        motion: [B, 3, 4], from the frame's camera to the other one's, as far as it is known.

    Returns rotations [B, 3, 3] to apply after that of ``motion``, the identity where none is to be considered. Whether
    one is, bool [B]. The similarity without it, [B], from -1 to 1.
    """
    size, focal = points.size, points.focal
    pixels, xyz = points.pixels[::2, ::2].flatten(0, 1), points.xyz[:, ::2, ::2].flatten(1, 2)
    cells = select_level(other, CELL, size)
    described = _centred(interpolate(own, pixels.expand(len(own), -1, -1), CELL, size))
    similarity = described @ _centred(cells.flatten(1, 2)).transpose(1, 2)
    similarity = similarity.unflatten(2, cells.shape[1:3])
    rotated = xyz @ motion[..., :3].transpose(1, 2)
    none = identity(3, own.dtype, own.device).expand(len(own), 1, -1, -1)
    known = _mean_similarity(similarity, rotated, none, motion, focal, size)[:, 0]
    unlike = known < SEARCH_BELOW
    if is_surely_none(unlike):
        return none[:, 0], unlike, known
    # Coarse candidates miss the right cell by some: its surroundings count. Half of the points are enough.
    around = F.avg_pool2d(similarity[:, ::2], 3, stride=1, padding=1, count_include_pad=False)
    coarse = _candidates(COARSE_STEP, ACROSS, DOWN, ROLLS, focal)
    best = _mean_similarity(around, rotated[:, ::2], coarse, motion, focal, size).argmax(1)
    fine = _select(coarse, best)[:, None] @ _candidates(FINE_STEP, 1, 1, FINE_ROLLS, focal)
    score, best = _mean_similarity(similarity, rotated, fine, motion, focal, size).max(dim=1)
    worth = unlike & (score > known + MARGIN)
    return torch.where(worth[:, None, None], _select(fine, best), none[:, 0]), worth, known


def is_surely_none(flags: Tensor) -> bool:
    """Whether no flag is set, where that is known without waiting: on a CPU. False on other devices."""
    return flags.device.type == "cpu" and not bool(flags.any())


def _mean_similarity(
    similarity: Tensor, rotated: Tensor, R: Tensor, motion: Tensor, focal: Tensor, size: tuple[int, int]
) -> Tensor:
    """Mean similarity of the points in view after candidate rotations R [B, R, 3, 3]: [B, R], from -1 to 1.

    ``similarity`` [B, P, rows, columns] is that of each point with each cell of the other image. ``rotated`` [B, P, 3]
    are points after the rotation of ``motion``, whose translation comes after R.
    """
    rows, columns = similarity.shape[2:]
    x, y, z = (rotated[:, None] @ R.transpose(2, 3) + motion[:, None, None, :, 3]).unbind(-1)
    inverse = 1 / z.clamp_min(MIN_DEPTH)
    scaled, middle = focal[:, :, None, None] / CELL, [side / (2 * CELL) for side in size]
    column = (x * inverse * scaled[:, 0] + middle[1]).floor()
    row = (y * inverse * scaled[:, 1] + middle[0]).floor()
    in_view = (z > MIN_DEPTH) & (column >= 0) & (row >= 0) & (column < columns) & (row < rows)
    index = torch.where(in_view, row * columns + column, 0).long()
    # Candidates last: so each point's products are read as they lie in memory.
    products = similarity.flatten(2).gather(2, index.transpose(1, 2)).transpose(1, 2)
    return (products * in_view).sum(-1) / (in_view.float().sum(-1) + MIN_VIEW * in_view.shape[-1])


def _centred(features: Tensor) -> Tensor:
    """Features [B, N, 24] minus their mean over the image, of length 1 unless they hardly differ from it."""
    return F.normalize(features - features.mean(1, keepdim=True), dim=-1, eps=0.01)


def _select(R: Tensor, index: Tensor) -> Tensor:
    """[B, R, 3, 3], [B] -> [B, 3, 3]"""
    return R.gather(1, index[:, None, None, None].expand(-1, -1, 3, 3))[:, 0]


def _candidates(step: int, across: int, down: int, rolls: tuple[float, ...], focal: Tensor) -> Tensor:
    """Rotations [B, R, 3, 3] about the viewing axis, then about the other two."""
    pixels, about_view = _offsets(step, across, down, rolls, focal.device)
    # A point in the middle moves right as the camera, in the other's frame, rotates about y, and up about x.
    sideways = F.pad(pixels / focal.flip(-1)[:, None], (0, 1))
    R: Tensor = so3_exp(sideways.flatten(0, 1)).unflatten(0, (len(focal), -1))
    return (R[:, None] @ so3_exp(about_view)[:, None]).flatten(1, 2)


@cache
def _offsets(
    step: int, across: int, down: int, rolls: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Pixels that rotations about x and y move the middle of an image by, [rotations, 2], and rotation vectors about z,
    [rolls, 3]."""
    ys = torch.arange(-down, down + 1, device=device, dtype=torch.float32) * step
    xs = torch.arange(-across, across + 1, device=device, dtype=torch.float32) * step
    about_view = torch.tensor([[0.0, 0.0, math.radians(roll)] for roll in rolls], device=device)
    return torch.stack(torch.meshgrid(ys, xs, indexing="ij"), dim=-1).flatten(0, 1), about_view
