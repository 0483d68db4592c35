"""Primitives and materials of a layout's objects; objects that block the camera are removed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from training.synthetic.draws import Draws
from training.synthetic.layout import Layout
from training.synthetic.parts import GROUPS, MAX_PARTS, Catalogue, Objects
from training.synthetic.primitives import BOX, COLUMNS, FRUSTUM, ROWS, SLOTS
from training.synthetic.surfaces import COLUMN, GEOMETRY_COLUMNS, MATERIAL_COLUMNS, draw_materials, index_of


@dataclass
class Assembly:
    """primitives [B, SLOTS, COLUMNS], count int32 [B], materials [B, ROWS, columns]."""

    primitives: Tensor
    count: Tensor
    materials: Tensor


# Rows of a rotation that brings a primitive's own axes to the object's: z lies along object axis 0, 1 or 2.
_AXES = [
    [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]],
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]],
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
]
_ORDER = [[2, 1, 0], [0, 2, 1], [0, 1, 2]]


@dataclass
class _Placed:
    """Parts in the world, [B, K, ...]."""

    centre: Tensor
    half: Tensor
    rotation: Tensor
    part: Tensor
    present: Tensor


def _place(draws: Draws, catalogue: Catalogue, objects: Objects) -> _Placed:
    clips, number = objects.template.shape
    part = catalogue.parts[objects.template]  # [B, O, MAX_PARTS, columns]
    size = objects.size[:, :, None]
    offset = part[..., 2:5] * size
    centre = objects.position[:, :, None] + (objects.rotation[:, :, None] @ offset[..., None])[..., 0]
    half = part[..., 5:8] * size + part[..., 8:11]
    axis = part[..., 11].long()
    half = half.gather(-1, draws.constant(_ORDER, torch.int64)[axis])
    rotation = objects.rotation[:, :, None] @ draws.constant(_AXES)[axis]
    present = (part[..., 0] > 0.5) & objects.present[:, :, None]
    total = number * MAX_PARTS
    return _Placed(
        centre.reshape(clips, total, 3),
        half.reshape(clips, total, 3).clamp_min(0.002),
        rotation.reshape(clips, total, 3, 3),
        part.reshape(clips, total, -1),
        present.reshape(clips, total),
    )


def clearance(inverse: Tensor, centre: Tensor, half: Tensor, path: Tensor) -> Tensor:
    """Smallest distance from camera positions [B, S, 3] to boxes [B, K]: a lower bound, negative inside."""
    # R^T (p - c) = R^T p - R^T c keeps the largest tensor at [B, K, S, 3].
    local = torch.einsum("bkij,bsj->bksi", inverse, path) - (inverse @ centre[..., None])[..., None, :, 0]
    outside = local.abs() - half[:, :, None]
    return outside.amax(-1).amin(-1)


def _affine(half: Tensor, rotation: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """World to unit cube: A [..., 3, 3] and b [..., 3]."""
    A = rotation.transpose(-1, -2) / half[..., None]
    return A, -(A @ centre[..., None])[..., 0]


def assemble(draws: Draws, catalogue: Catalogue, layout: Layout, photos: int) -> Assembly:
    """Primitives and materials of a layout. An object is removed if any part of it blocks a camera."""
    objects, path = layout.objects, layout.path.position
    placed = _place(draws, catalogue, objects)
    clips = path.shape[0]
    kind = placed.part[..., 1]
    # Negative tapers widen upwards.
    taper = torch.where(kind[..., None] <= FRUSTUM, placed.part[..., 12:14], 0.0)
    taper = torch.where(kind[..., None] == FRUSTUM, taper[..., :1], taper)
    widen = torch.cat([(1 - 2 * taper).clamp_min(1.0), torch.ones_like(taper[..., :1])], -1)
    reach = placed.half * widen
    gap = clearance(placed.rotation.transpose(-1, -2), placed.centre, reach, path)
    blocked = (gap < layout.keep_clear[:, None]) & placed.present
    blocked = blocked.view(clips, -1, MAX_PARTS).any(-1).repeat_interleave(MAX_PARTS, 1)
    alive = placed.present & ~blocked
    order = (~alive).to(torch.int8).argsort(dim=1, stable=True)[:, :SLOTS]
    count = alive.sum(1, dtype=torch.int32).clamp_max(SLOTS)

    def take(x: Tensor) -> Tensor:
        index = order.view(clips, SLOTS, *[1] * (x.dim() - 2)).expand(-1, -1, *x.shape[2:])
        return x.gather(1, index)

    part, half, centre, rotation = (take(x) for x in (placed.part, placed.half, placed.centre, placed.rotation))
    A, b = _affine(half, rotation, centre)
    radius = take(reach).norm(dim=-1, keepdim=True)
    radius = torch.where(part[..., 1:2] > FRUSTUM, half.amax(-1, keepdim=True), radius)
    shape = part[..., 12:14]
    row = [A.flatten(2), b, part[..., 1:2], shape, part[..., 15:17], centre, radius]
    primitives = torch.cat(row, -1)
    primitives = torch.nn.functional.pad(primitives, (0, COLUMNS - primitives.shape[-1]))

    owner = objects.look.gather(1, order // MAX_PARTS) * GROUPS + part[..., 14].long()
    materials = _materials(draws, catalogue, objects, owner, layout.material_types, photos)
    geometry = torch.cat([A.flatten(2), b, half, part[..., 1:2], shape], -1)
    start = len(MATERIAL_COLUMNS)
    materials[:, :SLOTS, start : start + len(GEOMETRY_COLUMNS)] = geometry
    return Assembly(primitives, count, materials)


def _materials(
    draws: Draws, catalogue: Catalogue, objects: Objects, owner: Tensor, surroundings: Tensor, photos: int
) -> Tensor:
    """Materials of all rows [B, ROWS, columns]; the surroundings' geometry is the world's own."""
    clips, number = objects.template.shape
    options = catalogue.material_types[objects.template]  # [B, O, GROUPS, 6]
    pick = draws.integer(options.shape[-1], clips, number, GROUPS)
    material_type = options.gather(-1, pick[..., None])[..., 0].long().view(clips, -1)
    material_type = torch.cat([material_type, surroundings], 1)
    # Some clips, and some objects of all clips, have random materials: usual colours must not be required.
    odd = draws.chance(0.07, clips, 1) | draws.chance(0.08, *material_type.shape)
    material_type = torch.where(odd, index_of("wild"), material_type)
    dull = torch.where(draws.chance(0.25, clips, 1), draws.uniform(0.1, 0.5, clips, 1), 1.0)
    drawn = draw_materials(draws, catalogue.ranges, material_type, photos, dull)
    rows = drawn.gather(1, owner[..., None].expand(-1, -1, drawn.shape[-1]))
    flat = drawn.new_zeros(clips, ROWS - SLOTS, len(GEOMETRY_COLUMNS))
    start = len(MATERIAL_COLUMNS)
    for name in ("a0", "a4", "a8", "s0", "s1", "s2"):
        flat[..., COLUMN[name] - start].fill_(1.0)  # assigning would copy from the host
    flat[..., COLUMN["type"] - start].fill_(float(BOX))
    around = torch.cat([drawn[:, number * GROUPS :], flat], -1)
    blank = drawn.new_zeros(clips, SLOTS, len(GEOMETRY_COLUMNS))
    return torch.cat([torch.cat([rows, blank], -1), around], 1)
