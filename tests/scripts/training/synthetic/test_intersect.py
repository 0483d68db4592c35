"""Every primitive against a brute-force search along the ray."""

import math

import pytest
import torch
from torch import Tensor

from training.synthetic import intersect
from training.synthetic.primitives import BARS, BLOB, BOX, COLUMNS, ELLIPSOID, FAR, FRUSTUM, LATTICE, LEAVES


def inside(kind: int, k: tuple[float, float], p: Tensor) -> Tensor:
    """Whether points [..., 3] are in the primitive's unit shape."""
    x, y, z = p.unbind(-1)
    if kind == BOX:
        return (z.abs() <= 1) & (x.abs() <= 1 - k[0] * (z + 1)) & (y.abs() <= 1 - k[1] * (z + 1))
    if kind == FRUSTUM:
        return (z.abs() <= 1) & (x * x + y * y <= (1 - k[0] * (z + 1)) ** 2)
    return x * x + y * y + z * z <= 1


def row(kind: int, k: tuple[float, float], mask: int = 0, frequency: float = 0.0) -> list[float]:
    values = [0.0] * COLUMNS
    values[0] = values[4] = values[8] = 1.0
    values[12:17] = [float(kind), *k, float(mask), frequency]
    return values


def rays() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    start = torch.nn.functional.normalize(torch.randn(400, 3, generator=generator), dim=-1) * 4
    target = torch.rand(400, 3, generator=generator) * 2.4 - 1.2
    return start, torch.nn.functional.normalize(target - start, dim=-1)


@pytest.mark.parametrize(
    ("kind", "k"),
    [
        (BOX, (0.0, 0.0)),
        (BOX, (0.45, 0.1)),
        (BOX, (-0.1, 0.2)),
        (FRUSTUM, (0.0, 0.0)),
        (FRUSTUM, (0.4, 0.0)),
        (FRUSTUM, (-0.2, 0.0)),
        (ELLIPSOID, (0.0, 0.0)),
    ],
)
def test_first_hit_is_where_the_ray_enters(kind: int, k: tuple[float, float]) -> None:
    start, direction = rays()
    t, _ = intersect.primitive(row(kind, k), start.unbind(1), direction.unbind(1), 0.0)  # type: ignore[arg-type]
    steps = torch.linspace(0, 8, 4001)
    along = start[:, None] + steps[:, None] * direction[:, None]
    hit = inside(kind, k, along)
    first = torch.where(hit.any(1), steps[hit.float().argmax(1)], FAR)
    # Grazing rays may fall between two steps of the search.
    agree = (t - first).abs() < 0.004
    assert agree.float().mean() > 0.985
    assert (t < FAR).float().mean() > 0.2


def test_a_lumpy_ball_lies_between_its_bounds() -> None:
    start, direction = rays()
    t, _ = intersect.primitive(row(BLOB, (0.2, 0.6)), start.unbind(1), direction.unbind(1), 0.0)  # type: ignore[arg-type]
    hit = t < FAR
    assert hit.float().mean() > 0.1
    radius = (start + t[:, None] * direction)[hit].norm(dim=-1)
    assert radius.max() < 1.04 and radius.min() > 0.55


@pytest.mark.parametrize("mask", [BARS, LATTICE, LEAVES])
def test_perforations_let_some_rays_through(mask: int) -> None:
    start, direction = rays()
    kind = ELLIPSOID if mask == LEAVES else BOX
    solid, _ = intersect.primitive(row(kind, (0.0, 0.0)), start.unbind(1), direction.unbind(1), 0.0)  # type: ignore[arg-type]
    holed, _ = intersect.primitive(row(kind, (0.0, 0.0), mask, 4.0), start.unbind(1), direction.unbind(1), 0.0)  # type: ignore[arg-type]
    share = (holed < FAR).float().mean() / (solid < FAR).float().mean()
    assert 0.2 < share < 0.98
    assert (holed >= solid).all()


def test_heights_are_bilinear() -> None:
    heights = torch.tensor([[[0.0, 1.0], [2.0, 3.0]]])
    x, y = torch.tensor([[1.0, 2.0, 1.5]]), torch.tensor([[5.0, 5.0, 6.0]])
    got = intersect.height_at(heights, x, y, torch.tensor([[1.0, 5.0]]), torch.tensor([2.0]))
    torch.testing.assert_close(got, torch.tensor([[0.0, 0.5, 1.25]]), atol=3e-3, rtol=0)


def test_the_parabola_is_near_the_sine() -> None:
    turns = torch.linspace(-3, 3, 500)
    assert (intersect.sine(turns) - torch.sin(2 * math.pi * turns)).abs().max() < 0.06
