"""Turns that were misjudged, found by trying others.

Where a camera turns by more than matches can follow, the motion may be off by many degrees, and no comparison of what
lies around the places that it expects finds them again. But whole images tell: for each of many turns beside the known
one, how much all that would be seen again looks alike.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.models.look_back import between, level_of
from stream_recon.models.rigid import MIN_DEPTH, rotation_from_vector

CELL = 8
"""Pixels from one place that is compared to the next; and, in the middle of an image, from one turn to the next."""
ACROSS, DOWN = 6, 3
"""So many turns to each side are tried."""
FEW = 0.05
"""Share of the points; where so few are seen again, what they say counts half."""
MARGIN = 0.03
"""A turn has to be better than none by so much, in products of features of length 1; ..."""
LOST, FOUND = 0.35, 0.1
"""... none has to be below the first, as it hardly ever is where the known turn is right; and the other one above the
second, which is more than chance finds."""


def search_turn(
    own: Tensor,
    other: Tensor,
    places: Tensor,
    points: Tensor,
    motion: Tensor,
    lengths: Tensor,
    size: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """By how much B cameras turned beside what is known.

    Args:
        own, other: [B, M, 24], of a frame and of one before, as `LookBack.describe` gives them.
        places: [P, 2], pixels (x, y) of the frame, and
        points: [B, P, 3], what is seen there, in the frame's space.
        motion: [B, 3, 4], from there to the other frame's space, as far as it is known.
        lengths: focal lengths (x, y) in pixels [B, 2]; ``size`` of images (height, width).

    Returns:
        rotations [B, 3, 3], to follow that of ``motion``, and whether they are clearly better than none, bool [B].
    """
    seen = level_of(other, CELL, size)
    rows, columns = seen.shape[1:3]
    described = _apart(between(own, places.expand(len(own), -1, -1), CELL, size))
    alike = described @ _apart(seen.flatten(1, 2)).transpose(1, 2)
    # A point in the middle goes right as the camera, in the other's space, turns about y, and up about x.
    turns = _tried(own.device) / lengths.flip(-1)[:, None]
    R = rotation_from_vector(F.pad(turns, (0, 1)).flatten(0, 1)).unflatten(0, turns.shape[:2])
    turned = points @ motion[..., :3].transpose(1, 2)
    x, y, z = (turned[:, None] @ R.transpose(2, 3) + motion[:, None, None, :, 3]).unbind(-1)
    inverse = 1 / z.clamp_min(MIN_DEPTH)
    focal, middle = lengths[:, :, None, None] / CELL, [side / (2 * CELL) for side in size]
    column = (x * inverse * focal[:, 0] + middle[1]).floor()
    row = (y * inverse * focal[:, 1] + middle[0]).floor()
    in_view = (z > MIN_DEPTH) & (column >= 0) & (row >= 0) & (column < columns) & (row < rows)
    index = torch.where(in_view, row * columns + column, 0).long()
    products = alike[:, None].expand(-1, index.shape[1], -1, -1).gather(3, index[..., None])[..., 0]
    score = (products * in_view).sum(-1) / (in_view.float().sum(-1) + FEW * in_view.shape[-1])
    best = score.max(dim=1)
    picked = R.gather(1, best.indices[:, None, None, None].expand(-1, -1, 3, 3))[:, 0]
    known = score[:, score.shape[1] // 2]
    return picked, (known < LOST) & (best.values > (known + MARGIN).clamp_min(FOUND))


def _apart(features: Tensor) -> Tensor:
    """Features [B, N, 24] without what is common to all of an image, of length 1."""
    return F.normalize(features - features.mean(1, keepdim=True), dim=-1)


@lru_cache(maxsize=16)
def _tried(device: torch.device) -> Tensor:
    """Pixels that each turn moves the middle of an image, about x and y, [turns, 2]; that of none is in the middle."""
    down = torch.arange(-DOWN, DOWN + 1, device=device, dtype=torch.float32) * CELL
    across = torch.arange(-ACROSS, ACROSS + 1, device=device, dtype=torch.float32) * CELL
    return torch.stack(torch.meshgrid(down, across, indexing="ij"), dim=-1).flatten(0, 1)
