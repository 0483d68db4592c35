"""Common parts of the layouts of rooms, streets and clutter."""

from dataclasses import dataclass

import torch
from torch import Tensor

from training.synthetic.cameras import Path
from training.synthetic.draws import Draws
from training.synthetic.parts import Catalogue, Objects, about_z
from training.synthetic.primitives import AIR_BOXES
from training.synthetic.shading import LIGHT, LIGHT_COLUMNS
from training.synthetic.surfaces import index_of

MAP = 128  # cells of a terrain's side


@dataclass
class Layout:
    """Clips of one kind. objects; air [B, AIR_BOXES, 7]; ground [B, 4]; heights [B, MAP, MAP]; lights [B, columns];
    material_types int64 [B, 6] of wall, floor, ceiling, portal, wall beyond, ground; path: the cameras, in the world;
    keep_clear [B] in metres."""

    objects: Objects
    air: Tensor
    ground: Tensor
    heights: Tensor
    lights: Tensor
    material_types: Tensor
    path: Path
    keep_clear: Tensor


def sized(draws: Draws, catalogue: Catalogue, template: Tensor) -> Tensor:
    """Sizes of objects [..., 3] in metres."""
    return draws.between(catalogue.size[template])


def make_objects(template: Tensor, position: Tensor, size: Tensor, yaw: Tensor, present: Tensor) -> Objects:
    """Upright objects [B, O], with different materials."""
    look = torch.arange(template.shape[1], device=template.device).expand(template.shape)
    return Objects(template, position, size, about_z(yaw), present, look)


def pick_materials(draws: Draws, clips: int, options: tuple[tuple[str, ...], ...]) -> Tensor:
    """One material type of each tuple for each clip, int64 [B, len(options)]."""
    columns = [
        draws.constant([index_of(name) for name in names], torch.int64)[draws.integer(len(names), clips)]
        for names in options
    ]
    return torch.stack(columns, 1)


def no_air(draws: Draws, clips: int) -> Tensor:
    return torch.zeros(clips, AIR_BOXES, 7, device=draws.device)


def colour_of_light(draws: Draws, clips: int, spread: float) -> Tensor:
    return (1 + draws.normal(clips, 3, deviation=spread)).clamp(0.6, 1.4)


def daylight(draws: Draws, clips: int) -> Tensor:
    """Light rows [B, columns] of an outdoor clip: sun, sky and haze."""
    row = torch.zeros(clips, len(LIGHT_COLUMNS), device=draws.device)

    def put(name: str, value: Tensor) -> None:
        width = value.shape[1] if value.dim() == 2 else 1
        row[:, LIGHT[name] : LIGHT[name] + width] = value.view(clips, width)

    overcast = draws.chance(0.3, clips).float()
    sun = draws.normal(clips, 3)
    sun[:, 2] = sun[:, 2].abs() + 0.35
    put("x0", torch.nn.functional.normalize(sun, dim=-1))
    strength = draws.uniform(0.5, 1.3, clips) * (1 - 0.8 * overcast)
    put("r0", strength[:, None] * colour_of_light(draws, clips, 0.08))
    put("dark0", draws.uniform(0.5, 0.98, clips))
    above = draws.normal(clips, 3, deviation=0.25)
    above[:, 2].fill_(1.0)  # assigning would copy from the host
    put("x1", above)
    put("r1", draws.uniform(0.15, 0.5, clips)[:, None] * colour_of_light(draws, clips, 0.06))
    put("dark1", draws.uniform(0.3, 0.9, clips))
    put("ambient_r", draws.uniform(0.25, 0.6, clips)[:, None] * colour_of_light(draws, clips, 0.06))
    put("horizon_r", (draws.uniform(0.55, 0.98, clips, 1) + draws.normal(clips, 3, deviation=0.06)).clamp(0, 1))
    blue = draws.constant([0.35, 0.55, 0.88]) * draws.uniform(0.5, 1.1, clips, 1)
    grey = draws.uniform(0.5, 0.9, clips, 1).expand(clips, 3)
    mix = overcast[:, None]
    put("zenith_r", (blue * (1 - mix) + grey * mix + draws.normal(clips, 3, deviation=0.05)).clamp(0, 1))
    put("clouds", draws.uniform(0.0, 1.0, clips))
    put("cover", draws.uniform(0.4, 0.75, clips))
    put("fog", draws.log_uniform(0.0008, 0.012, clips) * draws.chance(0.5, clips))
    return row


def with_height(path: Path, z: Tensor, shift: Tensor) -> Path:
    """The path with camera heights z [B, S] and its x and y moved by ``shift`` [B, 2]."""
    position = torch.cat([path.position[..., :2] + shift[:, None], z[..., None]], -1)
    return Path(position, path.yaw, path.pitch, path.roll, path.step)
