"""Streets with facades, and open land with height."""

import math

import torch
from torch import Tensor

from training.synthetic.cameras import (
    DRIVE,
    DRONE,
    NADIR,
    ORBIT,
    PAN,
    SCAN,
    STAIRS,
    STATIC,
    STRAFE,
    WALK,
    Path,
    draw_path,
)
from training.synthetic.draws import Draws
from training.synthetic.intersect import height_at
from training.synthetic.layout import MAP, Layout, daylight, make_objects, no_air, pick_materials, sized, with_height
from training.synthetic.layout_paths import avenue, draw_spacing_factor, walk
from training.synthetic.layout_trees import bare_trees
from training.synthetic.parts import Catalogue, Objects, join
from training.synthetic.primitives import GROUND_PLANE, GROUND_TERRAIN
from training.synthetic.roadside import LEAFLESS, UNDER_SNOW
from training.synthetic.shading import LIGHT
from training.synthetic.surfaces import index_of

_MODES = {WALK: 0.28, STRAFE: 0.12, ORBIT: 0.1, SCAN: 0.1, DRIVE: 0.22, PAN: 0.06, STATIC: 0.03, STAIRS: 0.04}
_FLYING = {DRONE: 0.7, NADIR: 0.3}
_BUILDINGS = {"block": 2.0, "house": 2.0, "low_wall": 0.4, "shed": 0.3, "hedge": 0.3}
_ROADSIDE = {
    "car": 4.0, "van": 0.8, "tree": 1.2, "young_tree": 1.2, "street_lamp": 1.2, "sign": 1.0, "bench": 0.5,
    "bollard": 1.0, "bin": 0.7, "figure": 0.8, "bush": 0.5, "wires": 0.5, "fence": 0.6, "crates": 0.3,
    "bicycle": 0.5, "pole": 0.6,
}  # fmt: skip
_LAND = {
    "tree": 3.0, "young_tree": 1.0, "conifer": 1.5, "bare_tree": 0.6, "bush": 2.0, "rock": 2.0, "house": 1.0,
    "shed": 0.6, "fence": 1.0, "mesh_fence": 0.5, "low_wall": 0.7, "hedge": 0.6, "car": 1.0, "bench": 0.5, "sign": 0.4,
    "crates": 0.5, "figure": 0.5, "wires": 0.4, "block": 0.6, "stairs": 0.4, "bollard": 0.4, "street_lamp": 0.4,
    "campus_block": 0.5, "bicycle": 0.4, "pole": 0.6,
}  # fmt: skip
_TREES = 5  # bare, with all branches
_MATERIAL_TYPES = (
    ("paint",), ("planks",), ("paint",), ("paint",), ("paint",),
    ("asphalt", "asphalt", "paving", "grass", "earth"),
)  # fmt: skip
_WILDS = (("paint",), ("planks",), ("paint",), ("paint",), ("paint",), ("grass", "grass", "earth", "stone", "paving"))


def _terrain(draws: Draws, clips: int) -> Tensor:
    """Height maps [B, MAP, MAP] in metres: hills, mounds and bumps."""
    total = torch.zeros(clips, 1, MAP, MAP, device=draws.device)
    for cells, low, high in ((5, 1.0, 14.0), (12, 0.2, 2.5), (32, 0.02, 0.35), (64, 0.005, 0.1)):
        grid = draws.normal(clips, 1, cells, cells)
        smooth = torch.nn.functional.interpolate(grid, size=(MAP, MAP), mode="bicubic", align_corners=True)
        total = total + smooth * draws.log_uniform(low, high, clips, 1, 1, 1)
    return total[:, 0]


def _street(draws: Draws, catalogue: Catalogue, path: Path, clips: int) -> tuple[list[Objects], Tensor]:
    """Two rows of buildings, and what stands between them; also the street's direction [B] in radians."""
    direction = path.yaw[:, :1] + draws.normal(clips, 1, deviation=0.12)
    ahead = torch.cat([direction.cos(), direction.sin()], 1)[:, None]
    left = torch.cat([-direction.sin(), direction.cos()], 1)[:, None]
    offset = draws.uniform(-0.35, 0.35, clips, 1)
    width = draws.log_uniform(3.5, 13.0, clips, 1)
    start = path.position[:, :1, :2]
    spacing_factor = draw_spacing_factor(draws, clips)

    def place(along: Tensor, across: Tensor) -> Tensor:
        xy = start + along[..., None] * ahead + (across - offset * width)[..., None] * left
        return torch.cat([xy, torch.zeros_like(along)[..., None]], -1)

    rows = 7
    template = catalogue.choose(draws, _BUILDINGS, clips, 2 * rows)
    size = sized(draws, catalogue, template)
    sign = draws.constant([1.0] * rows + [-1.0] * rows)[None]
    size[..., 0] *= torch.where(draws.chance(0.5, clips, 1), spacing_factor, 1.0)
    pitch = spacing_factor * draws.uniform(9.0, 18.0, clips, 1)
    lot = torch.arange(rows, device=draws.device).repeat(2)[None] - 1.5
    along = lot * pitch + draws.uniform(-1.5, 1.5, clips, 2 * rows)
    wall = torch.minimum(size[..., 0], pitch * draws.uniform(0.8, 1.0, clips, 1))
    size = torch.cat([wall[..., None], size[..., 1:]], -1)
    back = width + size[..., 1] / 2 + draws.uniform(0.0, 1.5, clips, 2 * rows) + draws.uniform(0, 3, clips, 1)
    # The front (+y) of what stands on the left looks right, across the street.
    yaw = direction + torch.where(sign > 0, math.pi, 0.0)
    buildings = make_objects(template, place(along, sign * back), size, yaw, draws.chance(0.85, *template.shape))
    number = 16
    template = catalogue.choose(draws, _ROADSIDE, clips, number)
    size = sized(draws, catalogue, template)
    side = draws.sign(clips, number)
    along = spacing_factor * draws.uniform(-8.0, 45.0, clips, number)
    across = side * (width - draws.uniform(0.2, 2.6, clips, number))
    is_car = catalogue.size[template][..., 0, 0].gt(1.6) & catalogue.size[template][..., 0, 1].lt(2.5)
    turned = direction + torch.where(is_car, -math.pi / 2, 0.0) + draws.normal(clips, number, deviation=0.03)
    turned = turned + math.pi * draws.chance(0.5, clips, number)
    roadside = make_objects(template, place(along, across), size, turned, draws.chance(0.7, clips, number))
    kerb = catalogue.choose(draws, {"kerb": 1.0}, clips, 4)
    size = sized(draws, catalogue, kerb)
    along = draws.constant([8.0, 8.0, 40.0, 40.0]).expand(clips, 4) + draws.uniform(-4, 4, clips, 1)
    across = draws.constant([1.0, -1.0, 1.0, -1.0]) * (width - size[..., 1] / 2 + 0.4)
    kerbs = make_objects(kerb, place(along, across), size, direction.expand(clips, 4), draws.chance(0.6, clips, 4))
    return [buildings, roadside, kerbs], direction[:, 0]


def _land(draws: Draws, catalogue: Catalogue, path: Path, clips: int) -> Objects:
    """Things scattered over land, mostly where cameras look."""
    number = 34
    frame = draws.integer(path.yaw.shape[1], clips, number)
    seen = draws.chance(0.75, clips, number)
    angle = torch.where(
        seen,
        path.yaw.gather(1, frame) + draws.normal(clips, number, deviation=0.5),
        draws.uniform(0, 2 * math.pi, clips, number),
    )
    distance = draws.log_uniform(3.0, 70.0, clips, number) * draws.log_uniform(0.5, 2.5, clips, 1)
    origin = path.position[..., :2].gather(1, frame[..., None].expand(-1, -1, 2))
    place = origin + distance[..., None] * torch.stack([angle.cos(), angle.sin()], -1)
    template = catalogue.choose(draws, _LAND, clips, number)
    size = sized(draws, catalogue, template) * draws.uniform(0.8, 1.25, clips, number, 1)
    position = torch.cat([place, torch.zeros_like(angle)[..., None]], -1)
    yaw = draws.uniform(0, 2 * math.pi, clips, number)
    return make_objects(template, position, size, yaw, draws.chance(0.8, clips, number))


def _kinds(draws: Draws, path: Path, flying: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Which clips show an avenue, a walk, or a street of another kind, bool [B] each; the rest shows open land."""
    clips = path.yaw.shape[0]
    # Who goes fast and straight ahead mostly drives along an avenue.
    travel = path.position[:, -1, :2] - path.position[:, 0, :2]
    ahead = torch.stack([path.yaw.cos().mean(1), path.yaw.sin().mean(1)], 1)
    straight = (travel * ahead).sum(1) > 0.95 * travel.norm(dim=1).clamp_min(1e-6)
    drives = straight & (path.step > 0.3)
    kind = draws.uniform(0.0, 1.0, clips)
    is_avenue = kind < torch.where(drives, 0.7, 0.07)
    is_walk = ~is_avenue & (kind > 0.74) & (not flying)
    is_street = ~is_avenue & ~is_walk & draws.chance(0.48, clips)
    return is_avenue, is_walk, is_street


def _swapped(draws: Draws, catalogue: Catalogue, names: dict[str, str], template: Tensor, where: Tensor) -> Tensor:
    """Templates [B, O] with some replaced by others in clips where [B]."""
    to = [catalogue.names.index(names.get(name, name)) for name in catalogue.names]
    return torch.where(where[:, None], draws.constant(to, torch.int64)[template], template)


def _winter_light(draws: Draws, lights: Tensor, snow: Tensor) -> None:
    """Pale skies over snow, half of them without a sun; lights [B, columns] are changed in place."""
    clips = snow.shape[0]
    dull = (snow & draws.chance(0.5, clips))[:, None]
    sun, ambient, sky = LIGHT["r0"], LIGHT["ambient_r"], LIGHT["horizon_r"]
    lights[:, sun : sun + 3] *= torch.where(dull, 0.15, 1.0)
    bright = draws.uniform(0.6, 0.95, clips, 1).expand(clips, 3)
    lights[:, ambient : ambient + 3] = torch.where(dull, bright, lights[:, ambient : ambient + 3])
    pale = draws.uniform(0.75, 1.0, clips, 1) + draws.normal(clips, 6, deviation=0.02)
    lights[:, sky : sky + 6] = torch.where(dull, pale, lights[:, sky : sky + 6])


def draw_outdoors(
    draws: Draws,
    catalogue: Catalogue,
    clips: int,
    frames: int,
    flying: bool,
    turning: float = 0.0,
    motion: int | None = None,
) -> Layout:
    """Layouts of streets and land around camera paths, of one motion if that is given; flying: cameras of a drone."""
    depth = draws.log_uniform(4.0, 18.0, clips)
    if flying:
        depth = draws.log_uniform(12.0, 45.0, clips)
    modes = _FLYING if flying else _MODES
    path = draw_path(draws, modes if motion is None else {motion: 1.0}, frames, depth, turning=turning)
    span = path.position[..., :2]
    path.position = torch.cat([span - span.mean(1, keepdim=True), path.position[..., 2:]], -1)
    streets, _ = _street(draws, catalogue, path, clips)
    land = _land(draws, catalogue, path, clips)
    clear = draws.uniform(0.5, 1.5, clips)
    is_avenue, is_walk, is_street = _kinds(draws, path, flying)
    for group in streets:
        group.present = group.present & is_street[:, None]
    is_land = ~(is_avenue | is_walk | is_street)
    land.present = land.present & (is_land[:, None] | draws.chance(0.2, *land.present.shape))
    # Walks are narrow.
    clear = torch.where(is_walk, 0.5 * clear, clear)
    ways, way, half = walk(draws, catalogue, path, is_walk, clear)
    winter = draws.chance(0.25, clips) | (is_walk & draws.chance(0.6, clips))
    snow = winter & draws.chance(0.65, clips)
    # Bare trees stand about walks, or replace the first few things on land.
    offset = draws.sign(clips, _TREES) * (half + 0.3 + draws.log_uniform(0.4, 9.0, clips, _TREES))
    foot = way.place(draws.uniform(1.5, 20.0, clips, _TREES), offset)
    foot = torch.where(is_walk[:, None, None], foot, land.position[:, :_TREES])
    grows = winter[:, None] & (is_walk | is_land)[:, None] & draws.chance(0.85, clips, _TREES)
    first = torch.arange(land.present.shape[1], device=draws.device) < _TREES
    land.present = land.present & ~(first & (winter & is_land)[:, None])
    trees = bare_trees(draws, catalogue, foot, path, clear, grows & (not flying))
    objects = join([*ways, trees, *avenue(draws, catalogue, path, is_avenue), *streets, land])
    objects.template = _swapped(draws, catalogue, LEAFLESS, objects.template, winter)
    objects.template = _swapped(draws, catalogue, UNDER_SNOW, objects.template, snow)
    # Ground: streets and some land are flat.
    heights = _terrain(draws, clips)
    cell = draws.uniform(1.2, 2.6, clips)
    corner = (-0.5 * MAP * cell)[:, None].expand(clips, 2)
    hilly = is_land & draws.chance(0.75, clips)
    heights = heights * hilly[:, None, None]
    middle = height_at(heights, path.position[:, :1, 0], path.position[:, :1, 1], corner, cell)
    heights = heights - middle[:, :, None]
    below = height_at(heights, objects.position[..., 0], objects.position[..., 1], corner, cell)
    lifted = objects.position[..., 2] + below - 0.03 * hilly[:, None]
    objects.position = torch.cat([objects.position[..., :2], lifted[..., None]], -1)
    usual = torch.where(draws.chance(0.2, clips), draws.uniform(2.0, 6.0, clips), draws.uniform(1.0, 2.0, clips))
    eye = draws.log_uniform(5.0, 40.0, clips) if flying else usual
    ground = height_at(heights, path.position[..., 0], path.position[..., 1], corner, cell)
    z = ground + eye[:, None] + torch.maximum(path.position[..., 2], -0.6 * eye[:, None])
    path = with_height(path, z, torch.zeros(clips, 2, device=draws.device))
    mode = torch.where(hilly, float(GROUND_TERRAIN), float(GROUND_PLANE))
    lights = daylight(draws, clips)
    lights[:, LIGHT["low_x"] : LIGHT["low_x"] + 6] = draws.constant([-1e4, -1e4, 0.0, 1e4, 1e4, 1e4])
    lights[:, LIGHT["terrain"]] = hilly.float()
    lights[:, LIGHT["map_x"] : LIGHT["map_x"] + 2] = corner
    lights[:, LIGHT["cell"]] = cell
    _winter_light(draws, lights, snow)
    street_type, land_type = pick_materials(draws, clips, _MATERIAL_TYPES), pick_materials(draws, clips, _WILDS)
    material_types = torch.where((is_street | is_avenue)[:, None], street_type, land_type)
    # The last one is the ground's; cars clear the roads, most of which are of asphalt.
    paved = is_avenue & draws.chance(0.65, clips)
    material_types[:, -1] = torch.where(paved, index_of("asphalt"), material_types[:, -1])
    material_types[:, -1] = torch.where(snow & ~is_avenue, index_of("snow"), material_types[:, -1])
    return Layout(
        objects=objects,
        air=no_air(draws, clips),
        ground=torch.cat([mode[:, None], corner, cell[:, None]], 1),
        heights=heights,
        lights=lights,
        material_types=material_types,
        path=path,
        keep_clear=clear,
    )
