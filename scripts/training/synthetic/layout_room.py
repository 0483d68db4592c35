"""Furnished rooms with doorways, windows and what lies on tables."""

import math

import torch
from torch import Tensor

from training.synthetic.assembly import clearance
from training.synthetic.cameras import ORBIT, PAN, SCAN, STAIRS, STATIC, STRAFE, WALK, Path, draw_path
from training.synthetic.draws import Draws
from training.synthetic.layout import (
    MAP,
    Layout,
    colour_of_light,
    daylight,
    make_objects,
    no_air,
    pick_materials,
    sized,
    with_height,
)
from training.synthetic.layout_hanging import draw_frames, draw_hanging, draw_notices, draw_overhead
from training.synthetic.layout_runs import draw_runs
from training.synthetic.parts import Catalogue, Objects, join
from training.synthetic.shading import LIGHT
from training.synthetic.walls import OccupiedWalls, Walls, along_walls, draw_openings

_MODES = {WALK: 0.25, STRAFE: 0.14, ORBIT: 0.15, SCAN: 0.26, PAN: 0.1, STATIC: 0.05, STAIRS: 0.05}
_CLOSE = 0.3  # of all clips look down from close by
_PLACES = 3
_AT_WALLS = {
    "bookshelf": 3.0, "open_shelf": 1.5, "cabinet": 2.0, "wardrobe": 1.5, "kitchen": 1.5, "bed": 1.0, "desk": 1.5,
    "sofa": 1.5, "fridge": 0.7, "floor_lamp": 0.8, "plant": 1.0, "table": 0.6, "boxes": 0.8, "tv_bench": 1.0,
    "clothes_rack": 0.5, "chair": 0.7, "ladder": 0.3, "railing": 0.3, "pillar": 0.4, "stool": 0.3, "messy_bed": 1.0,
    "bed_niche": 1.8,
}  # fmt: skip
_IN_MIDDLE = {
    "table": 2.5, "plank_table": 2.0, "round_table": 1.2, "low_table": 1.2, "desk": 1.0, "cabinet": 0.3,
    "messy_bed": 0.4,
}  # fmt: skip
_CHAIRS = {"chair": 2.0, "slat_chair": 1.0, "rail_chair": 1.8, "office_chair": 1.0, "stool": 0.5}
_ANYWHERE = {
    "chair": 1.0, "office_chair": 1.0, "boxes": 1.0, "plant": 1.0, "stool": 0.5, "floor_lamp": 0.5, "railing": 0.4,
    "sofa": 0.6, "pillar": 0.4, "low_table": 0.5, "clothes_rack": 0.3, "ladder": 0.3, "bookshelf": 0.3,
}  # fmt: skip
_ITEMS = {
    "cup": 1.0, "bottle": 1.0, "vase": 0.7, "book_pile": 1.2, "packet": 1.5, "fruit_ball": 0.6, "toy": 0.6,
    "table_lamp": 0.6, "laptop": 0.6, "monitor": 0.8, "bowl": 0.5, "basket": 0.6, "sheet": 0.8, "small_plant": 0.7,
}  # fmt: skip
_MATERIAL_TYPES = (
    ("paint", "paint", "paint", "plaster", "wallpaper", "wallpaper", "brick", "tiles", "white", "white", "white"),
    ("planks", "planks", "carpet", "carpet", "tiles", "wood", "asphalt", "paving"),
    ("paint", "paint", "plaster", "tiles", "white", "white"),
    ("paint", "wood", "white"),
    ("paint", "wallpaper", "plaster"),
    ("planks",),
)


def _furniture(
    draws: Draws, catalogue: Catalogue, walls: Walls, openings: OccupiedWalls, runs: OccupiedWalls, clips: int
) -> Objects:
    side, along, room, exists = along_walls(draws, walls, clips)
    template = catalogue.choose(draws, _AT_WALLS, *side.shape)
    size = sized(draws, catalogue, template)
    width = torch.minimum(size[..., 0], 0.97 * room)
    size = torch.cat([width[..., None], size[..., 1:]], -1)
    along = along + draws.uniform(-0.5, 0.5, *side.shape) * (room - width).clamp_min(0)
    place = walls.place(side, along, size[..., 1] / 2 + draws.uniform(0.01, 0.06, *side.shape))
    fullness = draws.uniform(0.4, 1.0, clips, 1)
    present = exists & (draws.uniform(0, 1, *side.shape) < fullness)
    present = present & (openings.leaves(side, along, width) | (size[..., 2] < 0.5)) & runs.leaves(side, along, width)
    # What is squeezed too much is not itself any more.
    present = present & (width > 0.75 * catalogue.size[template][..., 0, 0])
    position = torch.cat([place, torch.zeros_like(place[..., :1])], -1)
    turn = draws.normal(*side.shape, deviation=0.04) * draws.chance(0.5, *side.shape)
    return make_objects(template, position, size, walls.facing(side) + turn, present)


def _middle(draws: Draws, catalogue: Catalogue, walls: Walls, margin: Tensor, clips: int) -> list[Objects]:
    """Two tables with chairs and a rug, and a few things anywhere on the floor that margin [B, 4] leaves."""
    middle = (walls.middle[:, :2] + 0.5 * (margin[:, 1::2] - margin[:, ::2]))[:, None]
    half = (walls.half[:, :2] - 0.5 * (margin[:, 1::2] + margin[:, ::2]))[:, None]
    spread = (half - 0.9).clamp_min(0.1)
    place = middle + draws.uniform(-1, 1, clips, 2, 2) * spread
    template = catalogue.choose(draws, _IN_MIDDLE, clips, 2)
    size = sized(draws, catalogue, template)
    yaw = draws.integer(4, clips, 2) * (math.pi / 2) + draws.normal(clips, 2, deviation=0.08)
    zero = torch.zeros(clips, 2, 1, device=draws.device)
    present = torch.cat([draws.chance(0.8, clips, 1), draws.chance(0.35, clips, 1)], 1)
    tables = make_objects(template, torch.cat([place, zero], -1), size, yaw, present)
    # Chairs stand around the tables and look at them.
    around = draws.constant([[0.2, 1.0], [-0.25, -1.0], [1.0, 0.0], [-1.0, 0.1]])
    away = 0.5 * size[:, :, None, :2] + 0.25 + draws.uniform(-0.15, 0.25, clips, 2, 4, 1)
    offset = torch.cat([around * away, torch.zeros(clips, 2, 4, 1, device=draws.device)], -1)
    chair_place = tables.position[:, :, None] + (tables.rotation[:, :, None] @ offset[..., None])[..., 0]
    chair = catalogue.choose(draws, _CHAIRS, clips, 2, 1).expand(clips, 2, 4)
    look = yaw[..., None] + draws.constant([math.pi, 0.0, math.pi / 2, -math.pi / 2])
    look = look + draws.normal(clips, 2, 4, deviation=0.25)
    chair_size = sized(draws, catalogue, template=chair[:, :, :1]).expand(clips, 2, 4, 3)
    seated = present[..., None] & draws.chance(0.5, clips, 2, 4)
    flat = [x.reshape(clips, 8, *x.shape[3:]) for x in (chair, chair_place, chair_size, look, seated)]
    chairs = make_objects(*flat)
    # Chairs of one table are mostly of one make.
    first = draws.constant([0, 0, 0, 0, 4, 4, 4, 4], torch.int64)
    chairs.look = torch.where(draws.chance(0.8, clips, 1), first, chairs.look)
    rug = catalogue.choose(draws, {"rug": 1.0}, clips, 2)
    rugs = make_objects(rug, tables.position, sized(draws, catalogue, rug), yaw, draws.chance(0.4, clips, 2))
    number = 5
    spot = middle + draws.uniform(-1, 1, clips, number, 2) * (half - 0.4).clamp_min(0.1)
    loose = catalogue.choose(draws, _ANYWHERE, clips, number)
    spot = torch.cat([spot, torch.zeros(clips, number, 1, device=draws.device)], -1)
    turn = draws.uniform(0, 2 * math.pi, clips, number)
    loose_objects = make_objects(loose, spot, sized(draws, catalogue, loose), turn, draws.chance(0.35, clips, number))
    return [tables, chairs, rugs, loose_objects]


def _stays(objects: Objects, path: Path, keep_clear: Tensor) -> Tensor:
    """Whether no camera is so near objects that they will be occupied away, bool [B, O]."""
    half = 0.5 * objects.size
    middle = torch.cat([torch.zeros_like(half[..., :2]), half[..., 2:]], -1)
    centre = objects.position + (objects.rotation @ middle[..., None])[..., 0]
    gap = clearance(objects.rotation.transpose(-1, -2), centre, half, path.position)
    return objects.present & (gap > keep_clear[:, None] + 0.03)


def _items(draws: Draws, catalogue: Catalogue, carriers: Objects, stays: Tensor, share: Tensor, number: int) -> Objects:
    """Small objects on tops of present furniture (bool [B, O]), or on the floor next to furniture without a top.

    share [B, 1]: of the usual number.
    """
    clips, available = carriers.template.shape
    parent = draws.integer(available, clips, number)

    def of_parent(x: Tensor) -> Tensor:
        index = parent.view(clips, number, *[1] * (x.dim() - 2)).expand(-1, -1, *x.shape[2:])
        return x.gather(1, index)

    top = catalogue.surface[of_parent(carriers.template)]
    template = catalogue.choose(draws, _ITEMS, clips, number)
    size = sized(draws, catalogue, template)
    big = of_parent(carriers.size)
    room = (0.5 * big[..., :2] - 0.4 * size[..., :2]).clamp_min(0.0)
    on_top = draws.uniform(-1, 1, clips, number, 2) * room
    next_to = draws.uniform(-1, 1, clips, number, 2) * big[..., :2] + draws.constant([0.0, 0.5])
    offset = torch.where((top > 0)[..., None], on_top, next_to)
    offset = torch.cat([offset, (top * big[..., 2])[..., None]], -1)
    position = of_parent(carriers.position) + (of_parent(carriers.rotation) @ offset[..., None])[..., 0]
    fullness = draws.uniform(0.3, 1.0, clips, 1) * share
    present = (draws.uniform(0, 1, clips, number) < fullness) & (of_parent(stays) | (top <= 0))
    yaw = draws.normal(clips, number, deviation=0.6)
    items = make_objects(template, position, size, yaw, present)
    items.rotation = of_parent(carriers.rotation) @ items.rotation
    return items


def _beyond(draws: Draws, catalogue: Catalogue, air: Tensor, clips: int) -> Objects:
    """A few things in the room behind the doorway."""
    number = 4
    low, high = air[:, 2, None, :2], air[:, 2, None, 3:5]
    template = catalogue.choose(draws, _ANYWHERE | {"table": 1.0, "bookshelf": 1.0}, clips, number)
    size = sized(draws, catalogue, template)
    place = low + (high - low) * draws.uniform(0.1, 0.9, clips, number, 2)
    position = torch.cat([place, torch.zeros_like(place[..., :1])], -1)
    yaw = draws.integer(4, clips, number) * (math.pi / 2)
    present = draws.chance(0.6, clips, number) & (air[:, 2, 6:7] > 0)
    return make_objects(template, position, size, yaw, present)


def _light(draws: Draws, walls: Walls, height: Tensor, clips: int) -> Tensor:
    row = daylight(draws, clips)
    row[:, LIGHT["fog"]].zero_()
    bounds = torch.cat([walls.middle - walls.half, walls.middle + walls.half], 1)
    row[:, LIGHT["low_x"] : LIGHT["low_x"] + 6] = bounds
    row[:, LIGHT["corners"]] = draws.uniform(0.3, 1.0, clips)
    lamp = draws.chance(0.8, clips, 1)
    spot = walls.middle[:, :2] + draws.uniform(-0.7, 0.7, clips, 2) * walls.half[:, :2]
    spot = torch.cat([spot, height[:, None] * draws.uniform(0.7, 0.95, clips, 1)], 1)
    row[:, 0:3] = torch.where(lamp, spot, row[:, 0:3])
    row[:, 3:4] = lamp.float()
    # Some rooms are so bright that white walls lose all they show.
    bright = torch.where(draws.chance(0.12, clips, 1), draws.uniform(1.2, 1.9, clips, 1), 1.0)
    strength = draws.uniform(0.3, 1.1, clips, 1) * bright
    row[:, 4:7] = strength * colour_of_light(draws, clips, 0.07)
    row[:, 7] = draws.uniform(0.1, 0.85, clips)
    ambient = LIGHT["ambient_r"]
    row[:, ambient : ambient + 3] = bright * draws.uniform(0.3, 0.8, clips, 1) * colour_of_light(draws, clips, 0.05)
    # Light from windows and white walls: it comes from one side, and its shadows are soft or none.
    fill = LIGHT["x1"]
    side = draws.normal(clips, 3) * draws.constant([1.0, 1.0, 0.5]) + draws.constant([0.0, 0.0, 0.4])
    row[:, fill : fill + 3] = torch.nn.functional.normalize(side, dim=-1)
    row[:, LIGHT["r1"] : LIGHT["r1"] + 3] = draws.uniform(0.1, 0.7, clips, 1) * colour_of_light(draws, clips, 0.05)
    row[:, LIGHT["dark1"]] = draws.uniform(0.0, 0.6, clips) * draws.chance(0.5, clips)
    # Windows are brighter than the room.
    horizon = LIGHT["horizon_r"]
    row[:, horizon : horizon + 6] = (row[:, horizon : horizon + 6] * draws.uniform(0.8, 1.8, clips, 1)).clamp(0, 1.5)
    return row


def draw_rooms(
    draws: Draws, catalogue: Catalogue, clips: int, frames: int, turning: float = 0.0, motion: int | None = None
) -> Layout:
    """Layouts of furnished rooms around camera paths of their own, of one motion if that is given."""
    depth = draws.uniform(2.0, 4.0, clips)
    modes = _MODES if motion is None else {motion: 1.0}
    return room_around(draws, catalogue, draw_path(draws, modes, frames, depth, _CLOSE, turning))


def room_around(draws: Draws, catalogue: Catalogue, path: Path) -> Layout:
    """Layouts of furnished rooms that hold given paths, whose z is relative to the eye's height."""
    clips = path.yaw.shape[0]
    low, high = path.position.amin(1), path.position.amax(1)
    span = (high - low)[:, :2] / 2
    half = torch.maximum(span + draws.uniform(0.4, 1.8, clips, 2), draws.log_uniform(1.15, 3.9, clips, 2))
    # People stand with their back to a wall and film across the room.
    ahead = torch.stack([path.yaw.cos().mean(1), path.yaw.sin().mean(1)], 1)
    place = (draws.normal(_PLACES, clips, 2, deviation=0.5) - 0.7 * ahead).clamp(-1, 1)
    place = place * (half - span - 0.4).clamp_min(0)
    # Of a few places the one from which there is most to see: a wall close ahead teaches little.
    free = ((half - place * ahead.sign()) / ahead.abs().clamp_min(1e-3)).amin(-1)
    place = place[free.argmax(0), torch.arange(clips, device=draws.device)]
    shift = place - (low + high)[:, :2] / 2
    usual = draws.uniform(2.3, 3.1, clips)
    height = torch.where(draws.chance(0.12, clips), draws.uniform(3.5, 7.0, clips), usual)
    eye = draws.uniform(0.7, 1.8, clips)
    # Who goes down stairs begins above the floor, and who goes up needs height.
    eye = eye + (-low[:, 2] - 0.4).clamp_min(0)
    height = torch.maximum(height, eye + high[:, 2].clamp_min(0) * (high[:, 2] > 0.6) + 0.4)
    z = (eye[:, None] + path.position[..., 2]).clamp_min(0.3)
    z = torch.minimum(z, height[:, None] - 0.3)
    path = with_height(path, z, shift)
    centre = torch.cat([torch.zeros(clips, 2, device=draws.device), height[:, None] / 2], 1)
    half = torch.cat([half, height[:, None] / 2], 1)
    walls = Walls(centre, half)
    air = no_air(draws, clips)
    air[:, 0] = torch.cat([centre - half, centre + half, torch.ones(clips, 1, device=draws.device)], 1)
    air[:, 1:], openings = draw_openings(draws, walls, height, clips)
    keep_clear = draws.uniform(0.15, 0.5, clips)
    runs = draw_runs(draws, catalogue, walls, height, openings, path, keep_clear)
    sill = runs.sill.gather(1, openings.side[:, 1:])
    air[:, 3:, 2] = torch.maximum(air[:, 3:, 2], sill)
    # Above most worktops there is wall: a light area above a dark one must not imply a window.
    air[:, 3:, 6] *= ~((sill > 0) & draws.chance(0.6, clips, 2))
    furniture = _furniture(draws, catalogue, walls, openings, runs.occupied, clips)
    middle = _middle(draws, catalogue, walls, runs.margin, clips)
    occupied = openings.with_more(runs.occupied)
    frames = draw_frames(draws, catalogue, walls, air, openings, clips)
    groups = [runs.objects, runs.things, furniture, frames, *middle]
    # Slots are few: with a run there is less of everything else.
    share = torch.where(runs.occupied.width.amax(1, keepdim=True) > 0, 0.55, 1.0)
    carriers = join([furniture, middle[0]])
    groups.append(_items(draws, catalogue, carriers, _stays(carriers, path, keep_clear), share, 20))
    groups.append(draw_hanging(draws, catalogue, walls, occupied, clips))
    groups.append(draw_notices(draws, catalogue, walls, openings, runs.occupied, clips))
    groups.append(draw_overhead(draws, catalogue, walls, height, clips))
    groups.append(_beyond(draws, catalogue, air, clips))
    return Layout(
        objects=join(groups),
        air=air,
        ground=torch.zeros(clips, 4, device=draws.device),
        heights=torch.zeros(clips, MAP, MAP, device=draws.device),
        lights=_light(draws, walls, height, clips),
        material_types=pick_materials(draws, clips, _MATERIAL_TYPES),
        path=path,
        keep_clear=keep_clear,
    )
