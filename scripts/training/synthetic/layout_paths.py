"""Walks through grounds with trees and buildings, and avenues as cars see them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from training.synthetic.cameras import Path
from training.synthetic.draws import Draws
from training.synthetic.layout import make_objects, sized
from training.synthetic.parts import Catalogue, Objects

_PARKED = {"parked_car": 5.0, "van": 0.4}
_VERGE = {"young_tree": 2.0, "tree": 1.0, "street_lamp": 1.5, "pole": 0.8, "conifer": 0.5, "sign": 0.6, "bush": 0.5}
_BORDER = {"hedge": 2.0, "low_wall": 1.0, "fence": 0.7, "mesh_fence": 0.4}
_HOUSES = {"row_house": 2.5, "house": 1.5, "block": 0.8, "campus_block": 0.4}
_GROUNDS = {
    "tree": 2.5, "conifer": 1.0, "bush": 1.0, "hedge": 0.8, "bench": 0.8, "street_lamp": 0.7, "sign": 0.6,
    "bicycle": 1.0, "low_wall": 0.7, "pole": 1.2, "rock": 0.4, "figure": 0.5, "parked_car": 0.6, "stairs": 0.2,
    "bollard": 0.6, "bin": 0.4,
}  # fmt: skip
_POSTS = 6  # of a row
_QUARTER = 1.5707963


def draw_spacing_factor(draws: Draws, clips: int) -> Tensor:
    """Factor [B, 1] on the distances along streets and walks.

    On flat ground, images through different lenses differ only in depth. With usual distances between cars, trees and
    houses only, a network would infer the field of view from them, and fail where they differ.
    """
    return draws.log_uniform(0.8, 4.0, clips, 1)


@dataclass
class PathFrame:
    """Ground coordinates along a path: start [B, 2] in metres and direction [B, 1] in radians."""

    start: Tensor
    direction: Tensor

    def place(self, along: Tensor, across: Tensor, z: Tensor | None = None) -> Tensor:
        """Points [B, N, 3] at distances [B, N] along the path and to its left, in metres."""
        c, s = self.direction.cos(), self.direction.sin()
        x = self.start[:, :1] + along * c - across * s
        y = self.start[:, 1:] + along * s + across * c
        return torch.stack([x, y, torch.zeros_like(x) if z is None else z], -1)


def path_frame(draws: Draws, path: Path, deviation: float) -> PathFrame:
    """A frame at a path's first camera, in its viewing direction plus noise of ``deviation`` radians."""
    clips = path.yaw.shape[0]
    return PathFrame(path.position[:, 0, :2], path.yaw[:, :1] + draws.normal(clips, 1, deviation=deviation))


def _row(
    draws: Draws, catalogue: Catalogue, weights: dict[str, float], number: int, spacing: Tensor, first: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Templates, sizes, positions along the path and sides (+-1) of objects in two rows; spacing [B, 2] in metres."""
    clips = spacing.shape[0]
    template = catalogue.choose(draws, weights, clips, 2 * number)
    # Near objects of both sides come first: far ones are dropped where slots run out.
    index = torch.arange(number, device=draws.device).repeat_interleave(2)
    side = draws.constant([1.0, -1.0] * number).expand(clips, -1)
    step = spacing.repeat(1, number)
    along = first + (index + draws.uniform(0.0, 1.0, clips, 2).repeat(1, number)) * step
    along = along + 0.1 * step * draws.uniform(-1.0, 1.0, clips, 2 * number)
    return template, sized(draws, catalogue, template), along, side


def avenue(draws: Draws, catalogue: Catalogue, path: Path, present: Tensor) -> list[Objects]:
    """Straight streets of clips [B]: parked cars, trees and lamps, hedges, and houses in rows on both sides."""
    clips = path.yaw.shape[0]
    frame = path_frame(draws, path, 0.02)
    lane = draws.uniform(-2.5, 2.5, clips, 1)
    road = draws.uniform(3.2, 6.0, clips, 1)  # half of its width
    verge = draws.log_uniform(0.5, 12.0, clips, 2)
    travel = (path.position[:, -1] - path.position[:, 0]).norm(dim=-1)[:, None]
    spacing_factor = draw_spacing_factor(draws, clips)

    def rows(weights: dict[str, float], number: int, low: float, high: float) -> tuple[Tensor, ...]:
        usual = spacing_factor * draws.uniform(low, high, clips, 2)
        # Objects must not overlap, and houses must reach as far as long drives.
        spacing = torch.maximum(usual.clamp_min(low), (travel + 35.0) / number)
        some = draws.uniform(0.3, 1.2, clips, 2).repeat(1, number)
        exists = (draws.uniform(0, 1, clips, 2 * number) < some) & present[:, None]
        return (*_row(draws, catalogue, weights, number, spacing, -9.0), exists, spacing.repeat(1, number))

    def across(side: Tensor, distance: Tensor) -> Tensor:
        return side * distance - lane

    ahead = frame.direction
    template, size, along, side, exists, _ = rows(_PARKED, 7, 5.6, 9.0)
    edge = road - size[..., 0] / 2 - draws.uniform(0.1, 0.5, clips, 14)
    flip = 2 * _QUARTER * draws.chance(0.5, clips, 14)
    turn = ahead - _QUARTER + flip + draws.normal(clips, 14, deviation=0.02)
    # Lanes stay free.
    free = (across(side, edge).abs() > size[..., 0] / 2 + 1.2) & exists
    cars = make_objects(template, frame.place(along, across(side, edge)), size, turn, free)

    template, size, along, side, exists, _ = rows(_VERGE, 6, 7.0, 14.0)
    beyond = road + 0.3 + verge.repeat(1, 6) * 0.4
    inward = ahead - side * _QUARTER  # +x of lamps points to the road
    trees = make_objects(template, frame.place(along, across(side, beyond)), size, inward, exists)

    template, size, along, side, exists, spacing = rows(_BORDER, 4, 8.0, 14.0)
    size = torch.cat([0.95 * spacing[..., None].clamp_max(14.0), size[..., 1:]], -1)
    border = road + 1.2 + verge.repeat(1, 4) + size[..., 1] / 2
    hedges = make_objects(template, frame.place(along, across(side, border)), size, ahead.expand(clips, 8), exists)

    template, size, along, side, exists, spacing = rows(_HOUSES, 6, 11.0, 19.0)
    # Some houses are as long as there is room.
    front = torch.where(draws.chance(0.5, clips, 1), size[..., 0], size[..., 0] * spacing_factor)
    size = torch.cat([torch.minimum(front, 0.95 * spacing)[..., None], size[..., 1:]], -1)
    back = road + 3.0 + verge.repeat(1, 6) + size[..., 1] / 2 + draws.log_uniform(0.5, 16.0, clips, 2).repeat(1, 6)
    turn = ahead + (side > 0) * (2 * _QUARTER)
    houses = make_objects(template, frame.place(along, across(side, back)), size, turn, exists)

    kerb = catalogue.choose(draws, {"kerb": 1.0, "verge": 1.5}, clips, 2)
    wide = (1.2 + verge)[..., None]
    size = torch.cat([(travel + 110.0).expand(clips, 2)[..., None], wide, sized(draws, catalogue, kerb)[..., 2:]], -1)
    side = draws.constant([1.0, -1.0]).expand(clips, 2)
    middle = frame.place((travel / 2 + 35.0).expand(clips, 2), across(side, road + wide[..., 0] / 2))
    exists = draws.chance(0.8, clips, 1) & present[:, None]
    kerbs = make_objects(kerb, middle, size, ahead.expand(clips, 2), exists.expand(clips, 2))
    return [kerbs, cars, trees, hedges, houses]


def walk(
    draws: Draws, catalogue: Catalogue, path: Path, present: Tensor, clear: Tensor
) -> tuple[list[Objects], PathFrame, Tensor]:
    """Paved walks of clips [B] with posts, sometimes a roof, and objects near them; also the walk's
    frame, and the walk's half width [B, 1] in metres. clear [B] metres around cameras stay free."""
    clips = path.yaw.shape[0]
    frame = path_frame(draws, path, 0.15)
    ahead, exists, spacing_factor = frame.direction, present[:, None], draw_spacing_factor(draws, clips)

    def pick(name: str, number: int) -> tuple[Tensor, Tensor]:
        template = catalogue.choose(draws, {name: 1.0}, clips, number)
        size = sized(draws, catalogue, template)
        return template, size[:, :1].expand(clips, number, 3).clone()

    template, size = pick("walk_path", 1)
    half = size[:, :, 1] / 2
    middle = draws.uniform(-0.6, 0.6, clips, 1) * half
    paved = make_objects(
        template, frame.place(0 * half + 18.0, middle), size, ahead, exists & draws.chance(0.8, clips, 1)
    )

    template, size = pick("post", 2 * _POSTS)
    side = draws.constant([1.0, -1.0] * _POSTS)
    index = torch.arange(_POSTS, device=draws.device).repeat_interleave(2)
    step = draws.log_uniform(1.8, 6.5, clips, 1)
    begin = draws.uniform(-2.0, 3.0, clips, 1)
    across = middle + side * (half + 0.15)
    long = (_POSTS - 1) * step
    roofed = exists & draws.chance(0.4, clips, 1)
    # A roof would float if posts that block a camera were removed.
    local = path.position[..., :2] - frame.start[:, None]
    sideways = local[..., 1] * ahead.cos() - local[..., 0] * ahead.sin() - middle
    roofed = roofed & (sideways.abs().amax(1, keepdim=True) < half - clear[:, None])
    low = ~roofed & draws.chance(0.6, clips, 1)
    size[..., 2] = torch.where(low, draws.uniform(0.8, 1.2, clips, 1), size[..., 2])
    rows = draws.chance(0.7, clips, 2).repeat(1, _POSTS) & draws.chance(0.75, clips, 1)
    posts = make_objects(
        template, frame.place(begin + index * step, across), size, ahead.expand(clips, 12), exists & (rows | roofed)
    )
    posts.look = torch.zeros_like(posts.look)

    template, roof = pick("canopy", 1)
    roof = torch.stack([long + 1.0, 2 * half, roof[..., 2]], -1)
    canopy = make_objects(template, frame.place(begin + long / 2, middle, size[:, :1, 2]), roof, ahead, roofed)

    template, rope = pick("rope", 2)
    rope[..., 0] = long
    ends = frame.place((begin + long / 2).expand(clips, 2), across[:, :2], (0.75 * size[:, :1, 2]).expand(clips, 2))
    ropes = make_objects(
        template, ends, rope, ahead.expand(clips, 2), exists & low & rows[:, :2] & draws.chance(0.6, clips, 1)
    )

    template, rail = pick("long_railing", 2)
    spot = frame.place(draws.uniform(4.0, 18.0, clips, 2), middle + side[:2] * (half + 0.3))
    rails = make_objects(template, spot, rail, ahead.expand(clips, 2), exists & draws.chance(0.25, clips, 2))

    number = 12
    template = catalogue.choose(draws, _GROUNDS, clips, number)
    size = sized(draws, catalogue, template)
    offset = draws.sign(clips, number) * (half + 1.0 + size[..., 1] / 2 + draws.log_uniform(0.3, 22.0, clips, number))
    spot = frame.place(spacing_factor * draws.uniform(1.0, 40.0, clips, number), middle + offset)
    turn = ahead + draws.integer(4, clips, number) * _QUARTER + draws.normal(clips, number, deviation=0.2)
    things = make_objects(template, spot, size, turn, exists & draws.chance(0.75, clips, number))

    template = catalogue.choose(draws, {"campus_block": 3.0, "block": 0.7, "house": 0.5}, clips, 3)
    size = sized(draws, catalogue, template)
    side = draws.constant([1.0, -1.0, 1.0]) * draws.sign(clips, 1)
    size[..., 0] *= torch.where(draws.chance(0.5, clips, 3), spacing_factor.clamp_min(1.0), 1.0)
    along = draws.constant([22.0, 30.0, 70.0]) + draws.uniform(-12.0, 12.0, clips, 3)
    along = torch.maximum(spacing_factor, size[..., 0] / 25.0) * along
    offset = side * (half + 4.0 + size[..., 1] / 2 + draws.uniform(0.0, 22.0, clips, 3))
    front = ahead + (side > 0) * (2 * _QUARTER) + _QUARTER * draws.chance(0.2, clips, 3)
    blocks = make_objects(
        template, frame.place(along, middle + offset), size, front, exists & draws.chance(0.7, clips, 3)
    )
    return [paved, posts, canopy, ropes, rails, blocks, things], PathFrame(frame.start, ahead), half + middle.abs()
