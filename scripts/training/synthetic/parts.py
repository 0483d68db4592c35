"""Templates of objects: boxes of some size, filled with parts in fractions of it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from training.synthetic.draws import Draws
from training.synthetic.materials import MATERIAL_TYPES
from training.synthetic.primitives import BLOB, BOX, ELLIPSOID, FRUSTUM
from training.synthetic.surfaces import material_table

GROUPS = 3  # materials of an object
MAX_PARTS = 12
Triple = tuple[float, float, float]
Range = tuple[float, float]


@dataclass(frozen=True)
class Part:
    """One primitive of an object.

    centre: fractions of the object's size; x and y from its middle (-0.5..0.5), z from its bottom (0..1).
    half: half extents as fractions of the size, plus `thick` in metres. axis: 2, or the object axis along which
    the primitive's own z lies. shape: tapers per unit of z (0..0.5), or a blob's amplitude and frequency.
    group: which of the object's materials. mask and frequency: a perforation.
    """

    kind: int
    centre: Triple
    half: Triple
    thick: Triple = (0.0, 0.0, 0.0)
    axis: int = 2
    shape: tuple[float, float] = (0.0, 0.0)
    group: int = 0
    mask: int = 0
    frequency: float = 0.0

    def row(self) -> list[float]:
        head = [float(self.kind), *self.centre, *self.half, *self.thick]
        return [*head, float(self.axis), *self.shape, float(self.group), float(self.mask), self.frequency]


def box(centre: Triple, half: Triple, thick: Triple = (0.0, 0.0, 0.0), **rest: object) -> Part:
    return Part(BOX, centre, half, thick, **rest)  # type: ignore[arg-type]


def rod(centre: Triple, half: Triple, thick: Triple = (0.0, 0.0, 0.0), **rest: object) -> Part:
    """A cylinder or frustum."""
    return Part(FRUSTUM, centre, half, thick, **rest)  # type: ignore[arg-type]


def ball(centre: Triple, half: Triple, thick: Triple = (0.0, 0.0, 0.0), **rest: object) -> Part:
    return Part(ELLIPSOID, centre, half, thick, **rest)  # type: ignore[arg-type]


def lump(centre: Triple, half: Triple, thick: Triple = (0.0, 0.0, 0.0), **rest: object) -> Part:
    """A lumpy ball: cushions, stones, foliage."""
    rest.setdefault("shape", (0.12, 0.5))
    return Part(BLOB, centre, half, thick, **rest)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Template:
    """A kind of object. size: ranges of width, depth and height in metres. material_types: for each group, the names of
    types to choose from. surface: height of a top that carries objects, as a fraction (0: none)."""

    name: str
    size: tuple[Range, Range, Range]
    parts: tuple[Part, ...]
    material_types: tuple[tuple[str, ...], ...]
    surface: float = 0.0


class Catalogue:
    """Templates as tensors, so that objects of a whole batch are built by gathers."""

    def __init__(self, templates: tuple[Template, ...], draws: Draws) -> None:
        self.names = [template.name for template in templates]
        assert len(set(self.names)) == len(self.names)
        names = list(MATERIAL_TYPES)
        parts, material_types = [], []
        for template in templates:
            assert len(template.parts) <= MAX_PARTS, template.name
            rows = [[1.0, *part.row()] for part in template.parts]
            rows += [[0.0] * len(rows[0])] * (MAX_PARTS - len(rows))
            parts.append(rows)
            groups = []
            for group in range(GROUPS):
                options = template.material_types[min(group, len(template.material_types) - 1)]
                groups.append([float(names.index(options[i % len(options)])) for i in range(6)])
            material_types.append(groups)
        self.parts = draws.constant(parts)  # [T, MAX_PARTS, columns]
        self.size = draws.constant([template.size for template in templates])  # [T, 3, 2]
        self.material_types = draws.constant(material_types)  # [T, GROUPS, 6]
        self.surface = draws.constant([template.surface for template in templates])
        self.ranges = material_table(draws)  # [material_types, numbers, 2]

    def choose(self, draws: Draws, weights: dict[str, float], *shape: int) -> Tensor:
        """Template indices drawn with the given weights."""
        index = draws.constant([self.names.index(name) for name in weights], torch.int64)
        return index[draws.choice(list(weights.values()), *shape)]


@dataclass
class Objects:
    """Objects of a batch of clips. template int64 [B, O]; position [B, O, 3] of the bottom's middle in metres;
    size [B, O, 3]; R_world_object [B, O, 3, 3]; present bool [B, O]; look int64 [B, O]: the object whose materials
    this one shares, mostly itself."""

    template: Tensor
    position: Tensor
    size: Tensor
    rotation: Tensor
    present: Tensor
    look: Tensor


def join(groups: list[Objects]) -> Objects:
    """The objects of several groups, in order: later ones are dropped when slots run out."""
    looks, before = [], 0
    for group in groups:
        looks.append(group.look + before)
        before += group.look.shape[1]
    return Objects(
        torch.cat([g.template for g in groups], 1),
        torch.cat([g.position for g in groups], 1),
        torch.cat([g.size for g in groups], 1),
        torch.cat([g.rotation for g in groups], 1),
        torch.cat([g.present for g in groups], 1),
        torch.cat(looks, 1),
    )


def about_z(angle: Tensor) -> Tensor:
    """Rotation matrices [..., 3, 3] by an angle in radians."""
    c, s, zero, one = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    rows = [c, -s, zero, s, c, zero, zero, zero, one]
    return torch.stack(rows, -1).view(*angle.shape, 3, 3)
