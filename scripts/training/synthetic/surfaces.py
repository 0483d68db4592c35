"""Materials drawn from material types, and their columns in the table that shading reads."""

from dataclasses import fields

import torch
from torch import Tensor

from training.synthetic.draws import Draws
from training.synthetic.materials import MATERIAL_TYPES, MaterialType

_NAMES = tuple(field.name for field in fields(MaterialType))


def index_of(name: str) -> int:
    return list(MATERIAL_TYPES).index(name)


def material_table(draws: Draws) -> Tensor:
    """Ranges of all material types [types, numbers, 2]."""
    return draws.constant(
        [[getattr(material_type, name) for name in _NAMES] for material_type in MATERIAL_TYPES.values()]
    )


# Columns of a material, in this order; geometry follows in GEOMETRY_COLUMNS.
MATERIAL_COLUMNS = [
    "photo",
    "layer",
    "fit",
    "photo_frequency",
    "cos",
    "sin",
    "offset_u",
    "offset_v",
    "r0",
    "g0",
    "b0",
    "r1",
    "g1",
    "b1",
    "r2",
    "g2",
    "b2",
    "frequency",
    "aspect",
    "shift",
    "gap",
    "cells",
    "tint",
    "inner",
    "noise",
    "noise_scale",
    "stretch",
    "sharp",
    "waves",
    "wave_scale",
    "warp",
    "fade",
    "grain",
    "detail",
    "gloss",
    "glow",
    "seed",
]
GEOMETRY_COLUMNS = [
    "a0",
    "a1",
    "a2",
    "a3",
    "a4",
    "a5",
    "a6",
    "a7",
    "a8",
    "o0",
    "o1",
    "o2",
    "s0",
    "s1",
    "s2",
    "type",
    "shape0",
    "shape1",
]
COLUMN = {name: i for i, name in enumerate([*MATERIAL_COLUMNS, *GEOMETRY_COLUMNS])}


def _rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """HSV to RGB, [...] to [..., 3]."""
    ramps = [((hue * 6 + k) % 6 - 3).abs() - 1 for k in (0.0, 4.0, 2.0)]
    pure = torch.stack([ramp.clamp(0, 1) for ramp in ramps], -1)
    value, saturation = value[..., None], saturation[..., None]
    return value * (1 + saturation * (pure - 1))


def draw_materials(draws: Draws, ranges: Tensor, material_type: Tensor, photos: int, dull: Tensor) -> Tensor:
    """Materials [B, R, columns] of material types int64 [B, R].

    ranges: of material_table(). photos: how many tiles there are (0: patterns alone).
    dull [B, 1]: factor on all contrasts of a clip.
    """
    shape = tuple(material_type.shape)
    n = dict(zip(_NAMES, draws.between(ranges[material_type]).unbind(-1), strict=True))
    unit = [draws.uniform(0.0, 1.0, *shape) for _ in range(10)]
    has_photo = (unit[0] < n["photo"]).float() if photos else torch.zeros_like(unit[0])
    first = _rgb(n["hue"], n["saturation"], n["value"])
    second_hue = n["hue"] + (unit[1] - 0.5) * 0.08 + (unit[2] < 0.1).float() * unit[3]
    second_value = (n["value"] * n["contrast"]).clamp(0.02, 0.97)
    second = _rgb(second_hue, n["saturation"] * (0.6 + 0.6 * unit[4]), second_value)
    third = _rgb(n["hue"], n["saturation"] * 0.4, n["joint"])
    grey = n["value"][..., None].expand_as(first)
    tint = (0.8 + 0.35 * (0.6 * first + 0.4 * grey)).clamp(0.5, 1.2)
    first = torch.where(has_photo[..., None] > 0.5, tint, first)
    turn = torch.where(unit[5] < 0.25, n["turn"], torch.where(unit[5] < 0.6, 0.0, n["turn"].round() * 1.5708))
    columns = [
        has_photo,
        (unit[6] * max(photos, 1)).floor().clamp_max(max(photos - 1, 0)),
        (unit[7] < n["fit"]).float(),
        1.0 / n["photo_size"],
        turn.cos(),
        turn.sin(),
        unit[8] * 16.0,
        unit[9] * 16.0,
        *first.unbind(-1),
        *second.unbind(-1),
        *third.unbind(-1),
        1.0 / n["cell"],
        n["aspect"],
        n["shift"],
        n["gap"].clamp_min(0.0),
        n["cells"].clamp_min(0.0),
        n["tint"].clamp_min(0.0) * dull,
        n["inner"].clamp_min(0.0),
        n["noise"],
        n["noise_scale"],
        n["stretch"],
        n["sharp"],
        n["waves"].clamp_min(0.0),
        n["wave_scale"],
        n["warp"],
        dull.expand(shape),
        n["grain"] * dull,
        n["detail"].clamp_min(0.0) * dull,
        n["gloss"].clamp_min(0.0),
        n["glow"].clamp_min(0.0),
        (unit[3] * 30000.0).floor(),
    ]
    return torch.stack(columns, -1)
