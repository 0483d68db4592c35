"""Objects on the walls and ceilings of rooms."""

import math

import torch
from torch import Tensor

from training.synthetic.draws import Draws
from training.synthetic.layout import make_objects, sized
from training.synthetic.parts import Catalogue, Objects
from training.synthetic.walls import OccupiedWalls, Walls, along_walls

# Weight, and the lowest and highest bottom above the floor in metres.
_HANGING = {
    "picture": (3.0, 0.9, 1.6), "door": (1.2, 0.0, 0.0), "blind": (1.0, 0.8, 1.0), "curtains": (1.2, 0.1, 0.5),
    "wall_shelf": (1.2, 1.1, 1.7), "radiator": (0.8, 0.08, 0.15), "board": (0.8, 0.9, 1.1), "clock": (0.4, 1.6, 1.9),
    "wall_cabinet": (0.6, 1.3, 1.5), "pipe": (0.3, 0.0, 0.0), "whiteboard": (0.7, 0.8, 1.0),
    "coat_hooks": (0.4, 0.8, 1.0),
    "fuse_box": (0.3, 1.2, 1.7),
}  # fmt: skip

_NOTICES = {"notice": 5.0, "poster": 0.8, "calendar": 0.5, "socket": 1.5, "fuse_box": 0.1}
_NUMBER = 12  # of small flat things


def draw_hanging(draws: Draws, catalogue: Catalogue, walls: Walls, occupied: OccupiedWalls, clips: int) -> Objects:
    """Objects on free parts of the walls, at the usual height of each."""
    side, along, room, exists = along_walls(draws, walls, clips)
    weights = {name: entry[0] for name, entry in _HANGING.items()}
    choice = draws.choice(list(weights.values()), *side.shape)
    template = draws.constant([catalogue.names.index(name) for name in weights], torch.int64)[choice]
    size = sized(draws, catalogue, template)
    width = torch.minimum(size[..., 0], 0.95 * room)
    size = torch.cat([width[..., None], size[..., 1:]], -1)
    ranges = draws.constant([entry[1:] for entry in _HANGING.values()])[choice]
    bottom = draws.between(ranges)
    along = along + draws.uniform(-0.5, 0.5, *side.shape) * (room - width).clamp_min(0)
    place = walls.place(side, along, size[..., 1] / 2)
    present = exists & draws.chance(0.5, *side.shape) & occupied.leaves(side, along, width)
    position = torch.cat([place, bottom[..., None]], -1)
    return make_objects(template, position, size, walls.facing(side), present)


def draw_overhead(draws: Draws, catalogue: Catalogue, walls: Walls, height: Tensor, clips: int) -> Objects:
    """Lamps under a ceiling at ``height``, in some of the rooms."""
    template = catalogue.choose(draws, {"pendant": 1.0, "ceiling_light": 1.5}, clips, 4)
    size = sized(draws, catalogue, template)
    place = walls.middle[:, None, :2] + draws.uniform(-0.8, 0.8, clips, 4, 2) * walls.half[:, None, :2]
    position = torch.cat([place, (height[:, None] - size[..., 2])[..., None]], -1)
    yaw = draws.integer(2, clips, 1).expand(clips, 4) * (math.pi / 2)
    return make_objects(template, position, size, yaw, draws.chance(0.35, clips, 4))


def draw_notices(
    draws: Draws, catalogue: Catalogue, walls: Walls, openings: OccupiedWalls, runs: OccupiedWalls, clips: int
) -> Objects:
    """Papers, posters, sockets and switches: in half of the rooms, in two clusters and here and there."""
    template = catalogue.choose(draws, _NOTICES, clips, _NUMBER)
    size = sized(draws, catalogue, template)
    side = draws.integer(4, clips, 2).gather(1, draws.integer(2, clips, _NUMBER))
    length = walls.length(side)
    # One heart for each wall, so that two clusters on one wall are a single one.
    heart = draws.uniform(-0.7, 0.7, clips, 4).gather(1, side) * length
    spread = draws.uniform(0.2, 1.2, clips, 1)
    along = heart + spread * draws.normal(clips, _NUMBER)
    loose = draws.chance(0.25, clips, _NUMBER)
    along = torch.where(loose, draws.uniform(-1, 1, clips, _NUMBER) * length, along)
    free = (length - size[..., 0] / 2 - 0.03).clamp_min(0.0)
    along = torch.maximum(torch.minimum(along, free), -free)
    high = 1.45 + draws.normal(clips, _NUMBER, deviation=0.3)
    is_socket = template == catalogue.names.index("socket")
    low = torch.where(draws.chance(0.5, clips, _NUMBER), 0.3, 1.1)
    middle = torch.where(is_socket, low, high).clamp(0.2, 2.0)
    bottom = torch.minimum(middle - size[..., 2] / 2, 2 * walls.half[:, 2:] - size[..., 2] - 0.02).clamp_min(0.05)
    place = walls.place(side, along, size[..., 1] / 2)
    number = draws.uniform(0.2, 1.0, clips, 1) * draws.chance(0.5, clips, 1)
    present = draws.uniform(0, 1, clips, _NUMBER) < number
    present = present & openings.leaves(side, along, size[..., 0])
    # Above worktops they hang on the splashback, below cupboards; tall runs hide them.
    position = torch.cat([place, bottom[..., None]], -1)
    yaw = walls.facing(side)
    return make_objects(template, position, size, yaw, present)


def draw_frames(
    draws: Draws, catalogue: Catalogue, walls: Walls, air: Tensor, openings: OccupiedWalls, clips: int
) -> Objects:
    """Frames of most doorways and windows: the air boxes 1, 3 and 4 [B, boxes, 7]. Without them a bright window and a
    white wall look the same."""
    kind = catalogue.choose(draws, {"window_frame": 1.0, "barred_frame": 1.0}, clips, 2)
    door = catalogue.choose(draws, {"door_frame": 1.0}, clips, 1)
    template = torch.cat([door, kind], 1)
    box = torch.stack([air[:, 1], air[:, 3], air[:, 4]], 1)
    drawn = sized(draws, catalogue, template)
    size = torch.stack([openings.width.clamp_min(0.1), drawn[..., 1], (box[..., 5] - box[..., 2]).clamp_min(0.1)], -1)
    # Doors are cased in the wall's face, windows stand somewhat behind it.
    behind = torch.cat([torch.zeros(clips, 1, device=draws.device), draws.uniform(-0.12, 0.02, clips, 2)], 1)
    place = walls.place(openings.side, openings.along, behind)
    present = (openings.width > 0) & draws.chance(0.85, clips, 3)
    position = torch.cat([place, box[..., 2:3]], -1)
    return make_objects(template, position, size, walls.facing(openings.side), present)
