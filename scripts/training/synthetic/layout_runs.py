"""Runs of fitted furniture: kitchens, wardrobes, shelves and desks along one wall or around a corner."""

from dataclasses import dataclass

import torch
from torch import Tensor

from training.synthetic.cabinet_corners import COUNT, CornerCabinets, bodies_of, gap, modules_of, reach
from training.synthetic.cameras import Path
from training.synthetic.draws import Draws
from training.synthetic.layout import make_objects, sized
from training.synthetic.parts import Catalogue, Objects, join
from training.synthetic.walls import OccupiedWalls, Walls, corners_before

_KITCHEN, _TALL, _SHELVES, _DESKS = range(4)
_KINDS = {_KITCHEN: 0.5, _TALL: 0.17, _SHELVES: 0.13, _DESKS: 0.2}
_BODY = ("base_run", "tall_run", "shelf_run", "desk_run")
_MODULES = (
    {"base_door": 3.0, "base_knob": 2.0, "base_drawers": 0.7},
    {"tall_door": 1.0, "tall_split": 1.0},
    {"bay_books": 2.0, "bay_mixed": 1.0},
    {"desk_drawers": 1.0},
)
_EXCEPTIONS = (
    {"base_drawers": 1.5, "base_oven": 1.5, "base_door": 0.5},
    {"tall_split": 1.0},
    {"bay_mixed": 1.0, "bay_books": 1.0},
    {"desk_drawers": 1.0},
)
_OWN_LOOK = ("base_oven", "bay_books", "bay_mixed", "shelf_things", "splash")
# Metres: width of a module, and how long a run is along the first wall and along the second.
_PITCH = ((0.42, 0.68), (0.4, 0.62), (0.6, 1.0), (0.5, 0.9))
_FIRST, _SECOND = (1.3, 4.5), (1.2, 3.2)
_SHORTEST = 0.75
_SPLASH = 0.012  # metres thick
_ON_KITCHEN = {
    "sink": 1.0, "hob": 0.7, "kettle": 1.0, "microwave": 0.8, "leaflet": 1.5, "tray": 1.3, "rack": 0.8, "bottle": 1.0,
    "cup": 1.0, "packet": 1.3, "bowl": 0.6, "vase": 0.5, "sheet": 0.7, "small_plant": 0.5, "book_pile": 0.4,
}  # fmt: skip
_ON_OTHERS = {
    "monitor": 1.5, "laptop": 1.0, "leaflet": 0.7, "tray": 0.8, "book_pile": 1.2, "cup": 0.8, "packet": 1.0,
    "sheet": 1.5,
    "table_lamp": 0.8, "small_plant": 0.6, "basket": 0.6, "toy": 0.4,
}  # fmt: skip
_ON_TOP = 5  # things on the top of a leg


@dataclass
class Runs:
    """objects: the furniture; things: objects on it; occupied: intervals of walls;
    margin [B, 4]: how far it reaches into the room from each wall, in metres; sill [B, 4]: the lowest bottom of
    windows in each wall, in metres above the floor."""

    objects: Objects
    things: Objects
    occupied: OccupiedWalls
    margin: Tensor
    sill: Tensor


def _corner(draws: Draws, path: Path) -> tuple[Tensor, Tensor]:
    """Two walls that meet, and at which end of each [B, 2]; the first is often the one looked at."""
    clips = path.yaw.shape[0]
    x, y = path.yaw.cos().mean(1), path.yaw.sin().mean(1)
    seen = torch.where(x.abs() > y.abs(), (x < 0).long(), 2 + (y < 0).long())
    first = torch.where(draws.chance(0.7, clips), seen, draws.integer(4, clips))
    end = draws.sign(clips)
    second = (1 - first // 2) * 2 + (end < 0).long()
    other = 1.0 - 2.0 * (first % 2)
    return torch.stack([first, second], 1), torch.stack([end, other], 1)


def _of_kind(kind: Tensor, options: list[Tensor]) -> Tensor:
    """Of tensors [B, ...], one for each kind, those of the clips' kinds [B]."""
    stacked = torch.stack(options)
    return stacked[kind, torch.arange(kind.shape[0], device=kind.device)]


def _choose(draws: Draws, catalogue: Catalogue, kind: Tensor, names: tuple[dict[str, float], ...], n: int) -> Tensor:
    return _of_kind(kind, [catalogue.choose(draws, weights, kind.shape[0], n) for weights in names])


def _things(draws: Draws, catalogue: Catalogue, kind: Tensor, bodies: Objects) -> Objects:
    """Objects on worktops, in separate intervals, mostly at the back."""
    clips, number = kind.shape[0], 2 * _ON_TOP
    kitchen = (kind == _KITCHEN)[:, None]
    food, work = (catalogue.choose(draws, weights, clips, number) for weights in (_ON_KITCHEN, _ON_OTHERS))
    template = torch.where(kitchen, food, work)
    sink = kitchen & draws.chance(0.6, clips, 1) & (torch.arange(number, device=kind.device) == 2)
    template = torch.where(sink, catalogue.names.index("sink"), template)
    size = sized(draws, catalogue, template).clamp_max(0.9)
    size[..., 2].clamp_max_(0.4)  # below what hangs above
    leg = torch.arange(2, device=kind.device).repeat_interleave(_ON_TOP)
    big, top = bodies.size[:, leg], catalogue.surface[bodies.template[:, leg]]
    share = (torch.arange(_ON_TOP, device=kind.device).repeat(2) + draws.uniform(0.3, 0.7, clips, number)) / _ON_TOP
    x = (share - 0.5) * big[..., 0]
    free = (0.48 * big[..., 1] - 0.5 * size[..., 1]).clamp_min(0.0)
    y = free * torch.where(draws.chance(0.7, clips, number), -draws.uniform(0.5, 1.0, clips, number), 0.3)
    offset = torch.stack([x, y, top * big[..., 2]], -1)
    position = bodies.position[:, leg] + (bodies.rotation[:, leg] @ offset[..., None])[..., 0]
    fits = (size[..., 0] < 1.6 * big[..., 0] / _ON_TOP) & (size[..., 1] < big[..., 1])
    full = draws.uniform(0, 1, clips, number) < draws.uniform(0.3, 1.0, clips, 1)
    present = (full | sink) & fits & (top > 0) & (big[..., 2] < 1.6) & bodies.present[:, leg]
    things = make_objects(template, position, size, draws.normal(clips, number, deviation=0.25) * ~sink, present)
    things.rotation = bodies.rotation[:, leg] @ things.rotation
    return things


def _legs(
    draws: Draws, walls: Walls, path: Path, kind: Tensor, depth: Tensor, clear: Tensor, occupied: OccupiedWalls
) -> CornerCabinets:
    """Positions of runs. depth, clear [B, 1] in metres: into the room, and what cameras need around them."""
    clips = kind.shape[0]
    side, end = _corner(draws, path)
    zero = torch.zeros(clips, 2, device=draws.device)
    length = torch.cat([draws.uniform(*_FIRST, clips, 1), draws.uniform(*_SECOND, clips, 1)], 1)
    length[:, :1] += 9.0 * draws.chance(0.25, clips, 1)  # from wall to wall
    legs = CornerCabinets(side, end, zero, zero, torch.zeros(clips, 2, dtype=torch.bool, device=draws.device))
    exists = draws.chance(0.55, clips, 1)
    around = draws.chance(0.6, clips, 1) & (kind != _DESKS)[:, None]
    for leg, drawn in enumerate((exists, exists & around)):
        legs.stop = torch.minimum(length, reach(walls, legs, occupied))
        long = legs.stop - legs.start > _SHORTEST
        far = gap(walls, legs, depth.expand(clips, 2), path.position) > clear
        present = (drawn & long & far)[:, leg]
        legs.present = torch.cat([legs.present[:, :leg], present[:, None], legs.present[:, leg + 1 :]], 1)
        # The second leg begins where the first one's front is.
        legs.start = torch.cat([zero[:, :1], depth * legs.present[:, :1]], 1)
    return legs


def draw_runs(
    draws: Draws,
    catalogue: Catalogue,
    walls: Walls,
    height: Tensor,
    openings: OccupiedWalls,
    path: Path,
    keep_clear: Tensor,
) -> Runs:
    """Fitted furniture of rooms of the given heights [B] that leaves their openings and cameras free."""
    clips = height.shape[0]
    kind = draws.choice(list(_KINDS.values()), clips)
    body_index = draws.constant([catalogue.names.index(name) for name in _BODY], torch.int64)
    body_template = body_index[kind][:, None]
    drawn = sized(draws, catalogue, body_template)[:, 0]
    depth, tall = drawn[:, 1:2], torch.minimum(drawn[:, 2:], height[:, None] - 0.03)
    # Worktops go on below windows, whose sills move up.
    low = tall < 1.05
    is_window = draws.constant([False, True, True], torch.bool)
    blocked = OccupiedWalls(openings.side, openings.along, torch.where(low & is_window, -10.0, openings.width))
    blocked = blocked.with_more(corners_before(walls, openings, depth))
    legs = _legs(draws, walls, path, kind, depth, keep_clear[:, None] + 0.1, blocked)
    zero = torch.zeros(clips, 1, device=draws.device)
    bodies = bodies_of(walls, legs, body_template, depth, zero, tall)

    pitch = draws.between(draws.constant(_PITCH)[kind])[:, None]
    usual = _choose(draws, catalogue, kind, _MODULES, 1).expand(clips, 2 * COUNT)
    special = _choose(draws, catalogue, kind, _EXCEPTIONS, 2 * COUNT)
    template = torch.where(draws.chance(0.3, clips, 2 * COUNT), special, usual)
    filled = draws.uniform(0, 1, clips, 2 * COUNT) < torch.where(kind == _DESKS, 0.4, 1.0)[:, None]
    modules = modules_of(walls, legs, bodies, template, pitch, filled)

    upper, doors, splash = _above(draws, catalogue, walls, height, openings, legs, kind, tall, pitch)
    objects = join([bodies, modules, upper, doors, splash])
    own = draws.constant([catalogue.names.index(name) for name in _OWN_LOOK], torch.int64)
    objects.look = torch.where(torch.isin(objects.template, own), objects.look, 0)
    # The legs of a splashback are one, too.
    last = objects.look.shape[1] - 2
    objects.look = torch.where(objects.look >= last, last, objects.look)

    middle = legs.along(walls, (legs.start + legs.stop) / 2)
    width = torch.where(legs.present, legs.stop - legs.start + 0.04, -10.0)
    sides = torch.arange(4, device=draws.device)
    at = (legs.side[..., None] == sides) & legs.present[..., None]  # [B, 2, 4]
    margin = (at * depth[..., None]).amax(1)
    sill = (at * (tall * low + 0.13)[..., None]).amax(1)
    things = _things(draws, catalogue, kind, bodies)
    return Runs(objects, things, OccupiedWalls(legs.side, middle, width), margin, sill)


def _above(
    draws: Draws,
    catalogue: Catalogue,
    walls: Walls,
    height: Tensor,
    openings: OccupiedWalls,
    legs: CornerCabinets,
    kind: Tensor,
    top: Tensor,
    pitch: Tensor,
) -> tuple[Objects, Objects, Objects]:
    """Cupboards or shelves above worktops, what fills them, and the splashback between."""
    clips = kind.shape[0]
    shelf = draws.chance(0.25, clips, 1) | (kind == _DESKS)[:, None]
    names = [catalogue.names.index(name) for name in ("upper_run", "upper_shelf")]
    template = draws.constant(names, torch.int64)[shelf.long()]
    size = sized(draws, catalogue, template.view(clips, 1))[:, 0]
    bottom = top + 0.02 + draws.uniform(0.42, 0.62, clips, 1)
    tall = torch.where(draws.chance(0.2, clips, 1) & ~shelf, 9.0, size[:, 2:])
    tall = torch.minimum(tall, height[:, None] - bottom - 0.02)
    likely = draws.constant([0.75, 0.0, 0.0, 0.45])[kind][:, None]
    has = (draws.uniform(0, 1, clips, 1) < likely) & (tall > 0.3)
    cabinets = CornerCabinets(legs.side, legs.end, torch.zeros_like(legs.start), legs.stop, legs.present & has)
    first = cabinets.present[:, :1]
    cabinets.start = torch.cat([0 * first, size[:, 1:2] * first], 1)
    cabinets.stop = torch.minimum(cabinets.stop, reach(walls, cabinets, openings))
    # A cupboard above the second leg begins at the one above the first, or where the leg does.
    cabinets.present = cabinets.present & (cabinets.stop - cabinets.start > 0.5)
    cabinets.start = torch.cat([0 * first, torch.where(cabinets.present[:, :1], size[:, 1:2], legs.start[:, 1:])], 1)
    cabinets.present = cabinets.present & (cabinets.stop - cabinets.start > 0.5)
    upper = bodies_of(walls, cabinets, template, size[:, 1:2], bottom, tall.clamp_min(0.3))
    door = catalogue.choose(draws, {"upper_door": 1.0, "upper_plain": 1.0}, clips, 1)
    inside = torch.where(shelf, catalogue.names.index("shelf_things"), door).expand(clips, 2 * COUNT)
    filled = draws.uniform(0, 1, clips, 2 * COUNT) < torch.where(shelf, 0.7, 1.0)
    doors = modules_of(walls, cabinets, upper, inside, pitch, filled)

    # In the corner the second splashback begins at the wall. Where a window is, what is tiled ends at its sill.
    tiled = CornerCabinets(legs.side, legs.end, torch.zeros_like(legs.start), legs.stop, legs.present)
    tiled.present = legs.present & draws.chance(0.7, clips, 1) & (kind == _KITCHEN)[:, None]
    windowed = ~openings.leaves(legs.side, legs.along(walls, legs.stop / 2), legs.stop)
    rise = torch.where(windowed.any(1, keepdim=True), 0.1, bottom - top)
    plate = draws.constant([[catalogue.names.index("splash")]], torch.int64)
    splash = bodies_of(walls, tiled, plate, 0 * top + _SPLASH, top, rise)
    return upper, doors, splash
