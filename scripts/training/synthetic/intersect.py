"""Ray intersections in plain torch, with the formulas of kernels.py.

All functions take the ray as origin o and direction r, each three broadcastable tensors, in the primitive's
unit cube, and return ray parameters.
"""

import torch
from torch import Tensor

from training.synthetic.primitives import BARS, BLOB, BOX, FAR, FRUSTUM, LATTICE

Vector = tuple[Tensor, Tensor, Tensor]
_SMALL = 1e-8


def _away_from_zero(x: Tensor) -> Tensor:
    return torch.where(x.abs() < _SMALL, _SMALL, x)


def box(o: Vector, r: Vector, kx: float, ky: float) -> tuple[Tensor, Tensor, Tensor]:
    """Entry, exit and entry face of the box whose x and y extents shrink by k * (z + 1)."""
    sz = _away_from_zero(r[2])
    c0, c1 = (-1.0 - o[2]) / sz, (1.0 - o[2]) / sz
    low, high = torch.minimum(c0, c1), torch.maximum(c0, c1)
    face = torch.where(sz > 0, 5, 4)
    for side, (axis, sign, k) in enumerate(((0, 1.0, kx), (0, -1.0, kx), (1, 1.0, ky), (1, -1.0, ky))):
        start = sign * o[axis] + k * (o[2] + 1.0) - 1.0
        slope = _away_from_zero(sign * r[axis] + k * r[2])
        cross = -start / slope
        entering = (slope < 0) & (cross > low)
        low = torch.where(entering, cross, low)
        face = torch.where(entering, side, face)
        high = torch.where((slope > 0) & (cross < high), cross, high)
    return low, high, face


def frustum(o: Vector, r: Vector, k: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same for a round frustum of radius 1 - k * (z + 1)."""
    sz = _away_from_zero(r[2])
    s0, s1 = (-1.0 - o[2]) / sz, (1.0 - o[2]) / sz
    slab_low, slab_high = torch.minimum(s0, s1), torch.maximum(s0, s1)
    radius = 1.0 - k * (o[2] + 1.0)
    qa = _away_from_zero(r[0] * r[0] + r[1] * r[1] - k * k * r[2] * r[2])
    qb = o[0] * r[0] + o[1] * r[1] + k * r[2] * radius
    qc = o[0] * o[0] + o[1] * o[1] - radius * radius
    root = qb * qb - qa * qc
    width = root.clamp_min(0.0).sqrt()
    t0, t1 = (-qb - width) / qa, (-qb + width) / qa
    first, last = torch.minimum(t0, t1), torch.maximum(t0, t1)
    steep, away = qa < 0, k * r[2] > 0
    side_low = torch.where(steep, torch.where(away, -FAR, last), first)
    side_high = torch.where(steep, torch.where(away, first, FAR), last)
    low = torch.maximum(side_low, slab_low)
    high = torch.where((root < 0) & (qa > 0), low - 1.0, torch.minimum(side_high, slab_high))
    face = torch.where(slab_low > side_low, torch.where(sz > 0, 5, 4), 0)
    return low, high, face


def ellipsoid(o: Vector, r: Vector) -> tuple[Tensor, Tensor]:
    """Where rays from ``o`` along ``r`` enter and leave the unit sphere; the exit lies before the entry on a miss."""
    qa = r[0] * r[0] + r[1] * r[1] + r[2] * r[2] + 1e-20
    qb = o[0] * r[0] + o[1] * r[1] + o[2] * r[2]
    root = qb * qb - qa * (o[0] * o[0] + o[1] * o[1] + o[2] * o[2] - 1.0)
    width = root.clamp_min(0.0).sqrt()
    low = (-qb - width) / qa
    return low, torch.where(root > 0, (-qb + width) / qa, low - 1.0)


def sine(turns: Tensor) -> Tensor:
    """Parabolic approximation of sin(2 pi turns) within 0.06: few instructions, equal on every device."""
    p = turns - (turns + 0.5).floor()
    return p * (8.0 - 16.0 * p.abs())


def blob(o: Vector, r: Vector, low: Tensor, high: Tensor, amplitude: float, frequency: float) -> Tensor:
    """Sphere tracing of a lumpy ball inside the unit sphere; a miss moves the entry behind the exit."""
    speed = 0.6 / (r[0] * r[0] + r[1] * r[1] + r[2] * r[2] + 1e-20).sqrt()
    t = low.clamp_min(0.0)
    gap = torch.ones_like(t)
    for _ in range(16):
        x, y, z = (o[i] + t * r[i] for i in range(3))
        lumps = sine(frequency * x + 0.15) * sine(frequency * y + 0.3) * sine(frequency * z + 0.45)
        gap = (x * x + y * y + z * z).sqrt() - 1.0 + amplitude * (1.0 - lumps)
        t = t + gap * speed
    return torch.where((gap < 0.03) & (t < high), t, high + 1.0)


def is_solid(p: Vector, mask: int, frequency: float) -> Tensor:
    """Whether a perforated primitive has matter at points of its surface."""
    u, v = p[0] * frequency, p[2] * frequency
    bar = (u - u.floor() - 0.5).abs() > 0.34
    if mask == BARS:
        return bar
    if mask == LATTICE:
        return bar | ((v - v.floor() - 0.5).abs() > 0.34)
    q = (u, p[1] * frequency, v)
    return _curl(q, 0.33) + 0.7 * _curl(q, 0.75) > 0.1


def _curl(q: Vector, scale: float) -> Tensor:
    """A field whose zero set winds through space in all directions (the gyroid)."""
    s, c = [sine(scale * x) for x in q], [sine(scale * x + 0.25) for x in q]
    return s[0] * c[1] + s[1] * c[2] + s[2] * c[0]


def primitive(row: list[float], p: Vector, d: Vector, least: float) -> tuple[Tensor, Tensor]:
    """Ray parameter above least (FAR for a miss) and face, for world rays p + t d and a primitive's row."""

    def local(v: Vector, axis: int) -> Tensor:
        return row[3 * axis] * v[0] + row[3 * axis + 1] * v[1] + row[3 * axis + 2] * v[2]

    o = (local(p, 0) + row[9], local(p, 1) + row[10], local(p, 2) + row[11])
    r = (local(d, 0), local(d, 1), local(d, 2))
    kind, shape0, shape1, mask, frequency = int(row[12]), row[13], row[14], int(row[15]), row[16]
    if kind == BOX:
        low, high, face = box(o, r, shape0, shape1)
    elif kind == FRUSTUM:
        low, high, face = frustum(o, r, shape0)
    else:
        low, high = ellipsoid(o, r)
        face = torch.zeros_like(low, dtype=torch.int64)
        if kind == BLOB:
            near = low < high  # few rays meet the ball at all, and the march is long
            ox, oy, oz, rx, ry, rz = (x.expand(low.shape)[near] for x in (*o, *r))
            low = low.masked_scatter(near, blob((ox, oy, oz), (rx, ry, rz), low[near], high[near], shape0, shape1))
    t = torch.where((low < high) & (low > least), low, FAR)
    if mask:
        front = is_solid((o[0] + low * r[0], o[1] + low * r[1], o[2] + low * r[2]), mask, frequency)
        back = is_solid((o[0] + high * r[0], o[1] + high * r[1], o[2] + high * r[2]), mask, frequency)
        through = torch.where(back & (low < high) & (high > least), high, FAR)
        t = torch.where(front, t, through)
    return t, face


def height_at(heights: Tensor, x: Tensor, y: Tensor, corner: Tensor, cell: Tensor) -> Tensor:
    """Bilinear heights in metres at world x, y [B, P] of maps [B, G, G]; corner [B, 2], cell [B]."""
    batch, size, _ = heights.shape
    u = ((x - corner[:, 0:1]) / cell[:, None]).clamp(0.0, size - 1.001)
    v = ((y - corner[:, 1:2]) / cell[:, None]).clamp(0.0, size - 1.001)
    iu, iv = u.floor().to(torch.int64), v.floor().to(torch.int64)
    a, b = u - iu, v - iv
    flat = heights.reshape(batch, -1)
    at = iv * size + iu
    h00, h10 = flat.gather(1, at), flat.gather(1, at + 1)
    h01, h11 = flat.gather(1, at + size), flat.gather(1, at + size + 1)
    return (h00 * (1 - a) + h10 * a) * (1 - b) + (h01 * (1 - a) + h11 * a) * b
