"""Walls of rooms, their doorways and windows, and positions along them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from training.synthetic.draws import Draws
from training.synthetic.primitives import AIR_ROOM, AIR_WINDOW

_SLOTS = 4  # positions along a wall
_FREE = 0.75  # metres before doors and windows


class Walls:
    """The walls of rooms: 0 +x, 1 -x, 2 +y, 3 -y. middle and half [B, 3] in metres."""

    def __init__(self, middle: Tensor, half: Tensor) -> None:
        self.middle, self.half = middle, half

    def length(self, side: Tensor) -> Tensor:
        """Half length of walls, [B, N] for sides [B, N]."""
        return torch.where(side < 2, self.half[:, 1:2], self.half[:, 0:1])

    def place(self, side: Tensor, along: Tensor, inward: Tensor) -> Tensor:
        """x and y of points [B, N, 2]: along the wall from its middle, inward from it, in metres."""
        sign = 1.0 - 2.0 * (side % 2)
        across_x, across_y = self.half[:, 0:1] - inward, self.half[:, 1:2] - inward
        x = torch.where(side < 2, sign * across_x, along)
        y = torch.where(side < 2, along, sign * across_y)
        return torch.stack([x, y], -1) + self.middle[:, None, :2]

    def locate(self, side: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """Along and inward [B, N, S] in metres of points [B, S, 2 or more]: the inverse of place."""
        local = (points[..., :2] - self.middle[:, None, :2])[:, None]
        half, sign = self.half[:, None, None], 1.0 - 2.0 * (side % 2)[..., None]
        faces_x = (side < 2)[..., None]
        along = torch.where(faces_x, local[..., 1], local[..., 0])
        inward = torch.where(faces_x, half[..., 0] - sign * local[..., 0], half[..., 1] - sign * local[..., 1])
        return along, inward

    @staticmethod
    def facing(side: Tensor) -> Tensor:
        """Yaw that points an object's front into the room."""
        quarter = math.pi / 2
        return torch.where(side < 2, quarter - math.pi * (side % 2), math.pi * (1.0 - (side % 2)))

    def box(self, side: Tensor, along: Tensor, width: Tensor, low: Tensor, high: Tensor, depth: Tensor) -> Tensor:
        """Axis-aligned boxes [B, N, 6] that begin at a wall and reach outward."""
        ends = torch.stack(
            [self.place(side, along - width / 2, 0.01 + 0 * depth), self.place(side, along + width / 2, -depth)]
        )
        bottom, top = ends.amin(0), ends.amax(0)
        return torch.cat([bottom, low[..., None], top, high[..., None]], -1)


@dataclass
class OccupiedWalls:
    """Occupied intervals of walls, [B, N] each: side int64, middle and width in metres (negative: none)."""

    side: Tensor
    along: Tensor
    width: Tensor

    def leaves(self, side: Tensor, along: Tensor, width: Tensor) -> Tensor:
        """Whether objects at walls avoid these intervals, bool [B, M]."""
        meets = (side[..., None] == self.side[:, None]) & (
            (along[..., None] - self.along[:, None]).abs() < 0.5 * (width[..., None] + self.width[:, None])
        )
        return ~meets.any(-1)

    def with_more(self, other: "OccupiedWalls") -> "OccupiedWalls":
        pairs = ((self.side, other.side), (self.along, other.along), (self.width, other.width))
        return OccupiedWalls(*(torch.cat(pair, 1) for pair in pairs))


def corners_before(walls: Walls, occupied: OccupiedWalls, depth: Tensor) -> OccupiedWalls:
    """Ends of walls where objects of depth [B, 1] metres would block what occupies the next wall."""
    first = torch.where(occupied.side < 2, 2, 0)
    side = torch.cat([first, first + 1], 1)
    next_side, along, width = (torch.cat([x, x], 1) for x in (occupied.side, occupied.along, occupied.width))
    gap = walls.length(next_side) - (1.0 - 2.0 * (side % 2)) * along - width / 2
    end = (1.0 - 2.0 * (next_side % 2)) * walls.length(side)
    return OccupiedWalls(side, end, torch.where((width > 0) & (gap < depth + 0.05), 2 * _FREE, -10.0))


def along_walls(draws: Draws, walls: Walls, clips: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Positions at walls without overlap: side, middle and room in metres, and whether it exists, [B, 4 * _SLOTS]."""
    side = torch.arange(4, device=draws.device).repeat_interleave(_SLOTS).expand(clips, -1)
    slot = torch.arange(_SLOTS, device=draws.device).repeat(4).expand(clips, -1)
    number = (1 + draws.integer(_SLOTS, clips, 4)).repeat_interleave(_SLOTS, 1)
    length = walls.length(side) * 2
    room = length / number
    along = (slot + 0.5) * room - length / 2
    return side, along, room, (slot < number) & (room > 0.5)


def draw_openings(draws: Draws, walls: Walls, height: Tensor, clips: int) -> tuple[Tensor, OccupiedWalls]:
    """Air boxes 1 to 4 (doorway, room beyond, two windows), and where doorway and windows are, [B, 3]."""
    side = draws.integer(4, clips, 1)
    side = torch.cat([side, (side + 1 + draws.integer(3, clips, 2)) % 4], 1)  # doorway, windows
    length = walls.length(side)
    width = torch.cat([draws.uniform(0.8, 1.1, clips, 1), draws.uniform(0.7, 2.2, clips, 2)], 1)
    width[:, :1] += draws.chance(0.25, clips, 1) * draws.uniform(0.3, 1.5, clips, 1)
    width = torch.minimum(width, 1.7 * length)
    along = draws.uniform(-1.0, 1.0, clips, 3) * (length - width / 2 - 0.05).clamp_min(0.0)
    thick = draws.uniform(0.1, 0.35, clips, 1)
    low = torch.cat([torch.zeros(clips, 1, device=draws.device), draws.uniform(0.3, 1.1, clips, 2)], 1)
    high = torch.cat([draws.uniform(1.95, 2.2, clips, 1), draws.uniform(1.7, 2.25, clips, 2)], 1)
    high = torch.minimum(high, height[:, None] - 0.02)
    boxes = walls.box(side, along, width, low, high, thick.expand(clips, 3))
    # The room beyond begins where the doorway ends.
    reach = draws.uniform(1.2, 5.0, clips, 1)
    size = draws.uniform(1.5, 5.0, clips, 1)
    first = side[:, :1]
    start = walls.place(first, along[:, :1] - size * draws.uniform(0.15, 0.85, clips, 1), -thick + 0.01)
    end = walls.place(first, along[:, :1] + size * 0.5, -thick - reach)
    ends = torch.stack([start, end])
    zero = torch.zeros(clips, 1, 1, device=draws.device)
    beyond = torch.cat([ends.amin(0), zero, ends.amax(0), draws.uniform(2.3, 2.8, clips, 1, 1)], -1)
    has_door = draws.chance(0.6, clips, 1)
    has_window = draws.chance(0.45, clips, 2) & (length[:, 1:] > 0.6)
    flags = torch.cat([has_door * AIR_ROOM, has_door * AIR_ROOM, has_window * AIR_WINDOW], 1).float()
    air = torch.cat([boxes[:, :1], beyond, boxes[:, 1:]], 1)
    exists = torch.cat([has_door, has_window], 1)
    return torch.cat([air, flags[..., None]], -1), OccupiedWalls(side, along, torch.where(exists, width, -10.0))
