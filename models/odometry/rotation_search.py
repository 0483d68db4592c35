"""Turns that were misjudged, found by trying others.

Where a camera turns by more than matches can follow, the motion may be off by many degrees, and no comparison of what
lies around the places that it expects finds them again. But whole images tell: for each of many turns beside the known
one, how much all that would be seen again looks alike. Whether the best of them is right, this hardly tells: the
matches do that are found from there.
"""

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.models.odometry.keyframe_matcher import between, level_of
from stream_recon.models.odometry.pnp import MIN_DEPTH, rotation_from_vector, unit_matrix

CELL = 8
"""Pixels from one place that is compared to the next."""
FAR, NEAR = 16, 8
"""Pixels from one turn to the next in the middle of an image, first of all turns, then around the best one."""
ACROSS, DOWN = 5, 3
"""So many turns of the first to each side, and ..."""
ROLLS = (-24.0, -16.0, -8.0, 0.0, 8.0, 16.0, 24.0)
"""... degrees about the view."""
NEAR_ROLLS = (-4.0, 0.0, 4.0)
FEW = 0.05
"""Share of the points; where so few are seen again, what they say counts half."""
LOST, MARGIN = 0.5, 0.01
"""A turn is worth a look if none has less than the first, in products of features of length 1, and it that much more.
Where the known turn is right it hardly ever has so little."""


def search_turn(
    own: Tensor,
    other: Tensor,
    places: Tensor,
    points: Tensor,
    motion: Tensor,
    lengths: Tensor,
    size: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor]:
    """By how much B cameras may have turned beside what is known.

    Args:
        own, other: [B, M, 24], of a frame and of one before, as `LookBack.describe` gives them.
        places: [P, 2], pixels (x, y) of the frame, and
        points: [B, P, 3], what is seen there, in the frame's space.
        motion: [B, 3, 4], from there to the other frame's space, as far as it is known.
        lengths: focal lengths (x, y) in pixels [B, 2]; ``size`` of images (height, width).

    Returns:
        rotations [B, 3, 3], to follow that of ``motion``, none where they are not worth a look; whether they are, bool
        [B]; and how much looks alike without them, [B], from -1 to 1.
    """
    seen = level_of(other, CELL, size)
    described = _apart(between(own, places.expand(len(own), -1, -1), CELL, size))
    alike = described @ _apart(seen.flatten(1, 2)).transpose(1, 2)
    alike = alike.unflatten(2, seen.shape[1:3])
    turned = points @ motion[..., :3].transpose(1, 2)
    none = unit_matrix(3, own.dtype, own.device).expand(len(own), 1, -1, -1)
    known = _alike(alike, turned, none, motion, lengths, size)[:, 0]
    lost = known < LOST
    if known_to_be_none(lost):
        return none[:, 0], lost, known
    # Turns that are far apart pass by what fits: its surroundings have to do. Half of the points are enough.
    around = F.avg_pool2d(alike[:, ::2], 3, stride=1, padding=1, count_include_pad=False)
    far = _turns(FAR, ACROSS, DOWN, ROLLS, lengths)
    best = _alike(around, turned[:, ::2], far, motion, lengths, size).argmax(1)
    near = _picked(far, best)[:, None] @ _turns(NEAR, 1, 1, NEAR_ROLLS, lengths)
    score, best = _alike(alike, turned, near, motion, lengths, size).max(dim=1)
    worth = lost & (score > known + MARGIN)
    return torch.where(worth[:, None, None], _picked(near, best), none[:, 0]), worth, known


def known_to_be_none(flags: Tensor) -> bool:
    """Whether none is set, where that can be told for next to nothing: a CPU's. A GPU's would be waited for."""
    return flags.device.type == "cpu" and not bool(flags.any())


def _alike(alike: Tensor, turned: Tensor, R: Tensor, motion: Tensor, lengths: Tensor, size: tuple[int, int]) -> Tensor:
    """How much all that would be seen again looks alike after turns R [B, R, 3, 3]: [B, R], from -1 to 1.

    ``alike`` [B, P, rows, columns]: each point with each place of the other image; ``turned`` [B, P, 3]: points,
    turned as far as it is known.
    """
    rows, columns = alike.shape[2:]
    x, y, z = (turned[:, None] @ R.transpose(2, 3) + motion[:, None, None, :, 3]).unbind(-1)
    inverse = 1 / z.clamp_min(MIN_DEPTH)
    focal, middle = lengths[:, :, None, None] / CELL, [side / (2 * CELL) for side in size]
    column = (x * inverse * focal[:, 0] + middle[1]).floor()
    row = (y * inverse * focal[:, 1] + middle[0]).floor()
    in_view = (z > MIN_DEPTH) & (column >= 0) & (row >= 0) & (column < columns) & (row < rows)
    index = torch.where(in_view, row * columns + column, 0).long()
    # Turns last: so each point's products are read as they lie.
    products = alike.flatten(2).gather(2, index.transpose(1, 2)).transpose(1, 2)
    return (products * in_view).sum(-1) / (in_view.float().sum(-1) + FEW * in_view.shape[-1])


def _apart(features: Tensor) -> Tensor:
    """Features [B, N, 24] without what is common to all of an image, of length 1 where they differ from it at all."""
    return F.normalize(features - features.mean(1, keepdim=True), dim=-1, eps=0.01)


def _picked(R: Tensor, index: Tensor) -> Tensor:
    """[B, R, 3, 3], [B] -> [B, 3, 3]"""
    return R.gather(1, index[:, None, None, None].expand(-1, -1, 3, 3))[:, 0]


def _turns(spacing: int, across: int, down: int, rolls: tuple[float, ...], lengths: Tensor) -> Tensor:
    """Turns [B, R, 3, 3] about the view, then across and down."""
    pixels, about_view = _tried(spacing, across, down, rolls, lengths.device)
    # A point in the middle goes right as the camera, in the other's space, turns about y, and up about x.
    sideways = F.pad(pixels / lengths.flip(-1)[:, None], (0, 1))
    R: Tensor = rotation_from_vector(sideways.flatten(0, 1)).unflatten(0, (len(lengths), -1))
    return (R[:, None] @ rotation_from_vector(about_view)[:, None]).flatten(1, 2)


@cache
def _tried(
    spacing: int, across: int, down: int, rolls: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Pixels that turns about x and y move the middle of an image, [turns, 2], and vectors of those about z,
    [rolls, 3]."""
    ys = torch.arange(-down, down + 1, device=device, dtype=torch.float32) * spacing
    xs = torch.arange(-across, across + 1, device=device, dtype=torch.float32) * spacing
    about_view = torch.tensor([[0.0, 0.0, math.radians(roll)] for roll in rolls], device=device)
    return torch.stack(torch.meshgrid(ys, xs, indexing="ij"), dim=-1).flatten(0, 1), about_view
