"""CornerCabinets of fitted furniture that meet in a corner of a room, and what fills them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from training.synthetic.layout import make_objects
from training.synthetic.parts import Objects
from training.synthetic.walls import OccupiedWalls, Walls

COUNT = 5  # modules of a run


@dataclass
class CornerCabinets:
    """The two cabinet runs from a corner, [B, 2] in metres. end: the corner's end of the wall, +-1; start and stop
    are measured from the corner."""

    side: Tensor
    end: Tensor
    start: Tensor
    stop: Tensor
    present: Tensor

    def along(self, walls: Walls, t: Tensor) -> Tensor:
        """Positions along the walls [B, 2] of distances from the corner."""
        return self.end * (walls.length(self.side) - t)


def reach(walls: Walls, legs: CornerCabinets, occupied: OccupiedWalls) -> Tensor:
    """Length from the corner that is free for runs, [B, 2] in metres."""
    length = walls.length(legs.side)
    same = (legs.side[..., None] == occupied.side[:, None]) & (occupied.width[:, None] > 0)
    middle = length[..., None] - legs.end[..., None] * occupied.along[:, None]
    half = 0.5 * occupied.width[:, None] + 0.03
    blocking = same & (middle + half > legs.start[..., None])
    far = torch.where(blocking, middle - half, 2 * length[..., None])
    return torch.minimum(far.amin(-1), 2 * length - 0.01)


def gap(walls: Walls, legs: CornerCabinets, depth: Tensor, points: Tensor) -> Tensor:
    """Smallest horizontal distance [B, 2] of points [B, S, 3] from the runs' floor area."""
    along, inward = walls.locate(legs.side, points)
    t = walls.length(legs.side)[..., None] - legs.end[..., None] * along
    outside = torch.maximum(legs.start[..., None] - t, t - legs.stop[..., None])
    return torch.maximum(outside, inward - depth[..., None]).amin(-1)


def bodies_of(
    walls: Walls, legs: CornerCabinets, template: Tensor, depth: Tensor, bottom: Tensor, height: Tensor
) -> Objects:
    """Objects that span complete runs. depth, bottom, height [B, 1] in metres."""
    pair = torch.ones_like(legs.start)
    size = torch.stack([(legs.stop - legs.start).clamp_min(0.1), depth * pair, height * pair], -1)
    place = walls.place(legs.side, legs.along(walls, (legs.start + legs.stop) / 2), depth / 2 * pair + 0.002)
    position = torch.cat([place, (bottom * pair)[..., None]], -1)
    return make_objects(template.expand(legs.side.shape), position, size, walls.facing(legs.side), legs.present)


def modules_of(
    walls: Walls, legs: CornerCabinets, body: Objects, template: Tensor, pitch: Tensor, present: Tensor
) -> Objects:
    """Adjacent modules that fill bodies; template and present [B, 2 * COUNT], pitch [B, 1] in metres."""
    length = legs.stop - legs.start
    number = (length / pitch).round().clamp(1, COUNT)
    width = (length / number).repeat_interleave(COUNT, 1)
    index = torch.arange(COUNT, device=template.device).repeat(2)[None]
    start = legs.start.repeat_interleave(COUNT, 1)
    wide = CornerCabinets(
        *(x.repeat_interleave(COUNT, 1) for x in (legs.side, legs.end, legs.start, legs.stop, legs.present))
    )
    along = wide.along(walls, start + (index + 0.5) * width)
    size = torch.cat([width.clamp_min(0.1)[..., None], body.size.repeat_interleave(COUNT, 1)[..., 1:]], -1)
    place = walls.place(wide.side, along, size[..., 1] / 2 + 0.002)
    position = torch.cat([place, body.position.repeat_interleave(COUNT, 1)[..., 2:]], -1)
    present = present & wide.present & (index < number.repeat_interleave(COUNT, 1))
    return make_objects(template, position, size, walls.facing(wide.side), present)
