"""Batched ray caster: nearest surfaces of every pixel, and shadows. Triton on a GPU, torch on a CPU.

Training needs the kernels: torch takes .9 s a frame of 224x168 on one core, and a step has 384 frames.
Pixels are stored tile by tile (TILE_HEIGHT x TILE_WIDTH), so that neighbours in memory are neighbours in the
image; `Tiling` converts. Each pixel casts 2x2 rays, which vote for a first surface (the label) and a second one.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from training.synthetic import intersect
from training.synthetic.primitives import (
    AIR_BOXES,
    AIR_OFF,
    AIR_WINDOW,
    CEILING,
    FAR,
    FLOOR,
    GROUND,
    GROUND_PLANE,
    GROUND_TERRAIN,
    NEAR,
    PORTAL,
    SLOTS,
    SPHERE,
    WALL,
    WALL_BEYOND,
    SyntheticScene,
    Views,
)

TILE_WIDTH, TILE_HEIGHT = 16, 8
TILE = TILE_WIDTH * TILE_HEIGHT
Backend = Literal["torch", "triton"]


@dataclass(frozen=True)
class Tiling:
    """How the pixels of an image lie in memory; the last tiles of a row and a column may stick out."""

    height: int
    width: int

    @property
    def columns(self) -> int:
        return math.ceil(self.width / TILE_WIDTH)

    @property
    def rows(self) -> int:
        return math.ceil(self.height / TILE_HEIGHT)

    @property
    def pixels(self) -> int:
        return self.rows * self.columns * TILE

    def to_tiles(self, image: Tensor) -> Tensor:
        """[F, rows * TILE_HEIGHT, columns * TILE_WIDTH] -> [F, pixels]."""
        frames = image.shape[0]
        view = image.reshape(frames, self.rows, TILE_HEIGHT, self.columns, TILE_WIDTH)
        return view.permute(0, 1, 3, 2, 4).reshape(frames, self.pixels)

    def to_image(self, tiles: Tensor) -> Tensor:
        """[F, pixels] -> [F, height, width]."""
        frames = tiles.shape[0]
        view = tiles.view(frames, self.rows, self.columns, TILE_HEIGHT, TILE_WIDTH).permute(0, 1, 3, 2, 4)
        image = view.reshape(frames, self.rows * TILE_HEIGHT, self.columns * TILE_WIDTH)
        return image[:, : self.height, : self.width]


@dataclass
class Hits:
    """Surfaces seen by pixels, flat [F * pixels]: depth along the optical axis in metres (FAR: none),
    key = row * 8 + face (-1: none) int32, and the share of the pixel's rays that hit the first surface."""

    depth: Tensor
    key: Tensor
    share: Tensor
    second_depth: Tensor
    second_key: Tensor


def cast(scene: SyntheticScene, views: Views, backend: Backend) -> Hits:
    """Nearest surfaces of all pixels of all frames."""
    return _cast_triton(scene, views) if backend == "triton" else _cast_torch(scene, views)


def shadows(scene: SyntheticScene, lights: Tensor, points: Tensor, clips: Tensor, backend: Backend) -> Tensor:
    """Whether points see the two lights of their clip, float32 0 or 1 [2, P].

    lights [B, 2, 4]: position and 1, or direction and 0; points [3, P] in metres; clips int32 [P].
    """
    if backend == "triton":
        return _shadows_triton(scene, lights, points, clips)
    return _shadows_torch(scene, lights, points, clips)


def _cast_triton(scene: SyntheticScene, views: Views) -> Hits:
    import triton

    from training.synthetic import kernels

    tiling = Tiling(views.height, views.width)
    device, frames = views.table.device, views.table.shape[0]
    tiles = tiling.rows * tiling.columns
    lists = torch.empty(frames * tiles, SLOTS, dtype=torch.int16, device=device)
    lengths = torch.empty(frames * tiles, dtype=torch.int32, device=device)
    size = (tiles, tiling.columns, views.width, views.height)
    primitives = scene.primitives.contiguous()
    kernels.list_tiles[(tiles, frames)](
        primitives, scene.count, views.table, lists, lengths, *size, N=triton.next_power_of_2(SLOTS)
    )
    flat = frames * tiling.pixels
    depth, share, second_depth = (torch.empty(flat, device=device) for _ in range(3))
    key, second_key = (torch.empty(flat, dtype=torch.int32, device=device) for _ in range(2))
    kernels.cast_tiles[(tiles, frames)](
        primitives,
        views.table,
        scene.air.contiguous(),
        scene.ground.contiguous(),
        scene.heights.contiguous(),
        lists,
        lengths,
        depth,
        key,
        share,
        second_depth,
        second_key,
        *size,
        N=SLOTS,
        G=scene.heights.shape[-1],
        num_warps=4,
    )
    return Hits(depth, key, share, second_depth, second_key)


def _shadows_triton(scene: SyntheticScene, lights: Tensor, points: Tensor, clips: Tensor) -> Tensor:
    import triton

    from training.synthetic import kernels

    total, block = clips.shape[0], 512
    visible = torch.empty(2, total, device=points.device)
    kernels.cast_shadows[(triton.cdiv(total, block), 2)](
        scene.primitives.contiguous(),
        scene.count,
        lights.contiguous(),
        points.contiguous(),
        clips.contiguous(),
        visible,
        total,
        N=SLOTS,
        BLOCK=block,
        num_warps=4,
    )
    return visible


def _cast_torch(scene: SyntheticScene, views: Views) -> Hits:
    tiling = Tiling(views.height, views.width)
    parts: list[tuple[Tensor, ...]] = []
    for frame in range(views.table.shape[0]):
        depth, key = _cast_frame(scene, views, views.table[frame], tiling)
        parts.append(tuple(tiling.to_tiles(x[None])[0] for x in _vote(depth, key)))
    columns = [torch.cat(column) for column in zip(*parts, strict=True)]
    depth, key, share, second_depth, second_key = columns
    return Hits(depth, key.to(torch.int32), share, second_depth, second_key.to(torch.int32))


def _vote(depth: Tensor, key: Tensor) -> tuple[Tensor, ...]:
    """Rays [2 * rows, 2 * columns] of an image to first and second surfaces of its pixels."""

    def rays(x: Tensor) -> Tensor:  # [rows, columns, 4]
        rows, columns = x.shape[0] // 2, x.shape[1] // 2
        return x.view(rows, 2, columns, 2).permute(0, 2, 1, 3).reshape(rows, columns, 4)

    t, k = rays(depth), rays(key)
    votes = (k[..., :, None] == k[..., None, :]).sum(-1) * 8 + 3 - torch.arange(4)
    first = k.gather(-1, votes.argmax(-1, keepdim=True))
    mine = k == first
    others = torch.where(mine, -1, votes)
    second = torch.where(mine.all(-1, keepdim=True), first, k.gather(-1, others.argmax(-1, keepdim=True)))
    yours = k == second
    number = mine.sum(-1)
    t1 = (t * mine).sum(-1) / number
    t2 = (t * yours).sum(-1) / yours.sum(-1)
    return t1, first[..., 0], number / 4, t2, second[..., 0]


def _cast_frame(scene: SyntheticScene, views: Views, view: Tensor, tiling: Tiling) -> tuple[Tensor, Tensor]:
    """Depth and key of the rays of one frame, [2 * rows * TILE_HEIGHT, 2 * columns * TILE_WIDTH]."""
    values: list[float] = view.tolist()
    rotation, position, fx, fy, clip = values[:9], values[9:12], values[12], values[13], int(values[14])
    height, width = 2 * tiling.rows * TILE_HEIGHT, 2 * tiling.columns * TILE_WIDTH
    cx = ((torch.arange(width) + 0.5) / 2 - views.width / 2)[None, :] / fx
    cy = ((torch.arange(height) + 0.5) / 2 - views.height / 2)[:, None] / fy
    d = [rotation[3 * i] * cx + rotation[3 * i + 1] * cy + rotation[3 * i + 2] for i in range(3)]
    p = [torch.tensor(x) for x in position]
    best, key = _surroundings(scene, clip, p, d)
    rows = scene.primitives[clip, : int(scene.count[clip])].tolist()
    for n, row in enumerate(rows):
        window = _window(row[SPHERE : SPHERE + 4], values, views, height, width)
        if window is None:
            continue
        part = tuple(x[window] for x in d)
        t, face = intersect.primitive(row, (p[0], p[1], p[2]), (part[0], part[1], part[2]), NEAR)
        closer = t < best[window]
        best[window] = torch.where(closer, t, best[window])
        key[window] = torch.where(closer, n * 8 + face, key[window])
    return best, key


def _window(
    sphere: list[float], view: list[float], views: Views, height: int, width: int
) -> tuple[slice, slice] | None:
    """The rays that may meet a sphere, as slices of the grid of rays."""
    offset = [sphere[i] - view[9 + i] for i in range(3)]
    centre = [sum(view[3 * i + j] * offset[i] for i in range(3)) for j in range(3)]
    radius = sphere[3] * 1.001 + 1e-3
    if centre[2] < -radius:
        return None
    if centre[2] <= radius * 1.01:
        return slice(0, height), slice(0, width)
    slices: list[slice] = []
    for axis, focal, size, rays in ((1, view[13], views.height, height), (0, view[12], views.width, width)):
        x, z = centre[axis], centre[2]
        spread = radius * math.sqrt(max(x * x + z * z - radius * radius, 0.0))
        bounds = [((x * z + s * spread) / (z * z - radius * radius) * focal + size / 2) * 2 for s in (-1, 1)]
        low, high = max(0, math.floor(bounds[0]) - 1), min(rays, math.ceil(bounds[1]) + 1)
        if low >= high:
            return None
        slices.append(slice(low, high))
    return slices[0], slices[1]


def _surroundings(scene: SyntheticScene, clip: int, p: list[Tensor], d: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Walls of the air boxes, ground plane or terrain."""
    best = torch.full(d[2].shape, FAR)
    key = torch.full(d[2].shape, -1, dtype=torch.int64)
    if float(scene.air[clip, 0, 6]) > 0:
        best, key = _rooms(scene.air[clip], p, d)
    mode, x0, y0, cell = scene.ground[clip].tolist()
    if mode == GROUND_PLANE:
        floor = torch.where(d[2] < -1e-6, -p[2] / d[2].clamp_max(-1e-6), FAR)
        hit = (floor > NEAR) & (floor < 600.0)
        best, key = torch.where(hit, floor, best), torch.where(hit, GROUND * 8 + 4, key)
    if mode == GROUND_TERRAIN:
        best = _terrain(scene.heights[clip], p, d, torch.tensor([[x0, y0]]), torch.tensor([cell]))
        key = torch.where(best < FAR, GROUND * 8 + 4, -1)
    return best, key


def _rooms(air: Tensor, p: list[Tensor], d: list[Tensor]) -> tuple[Tensor, Tensor]:
    inverse = [1.0 / torch.where(x.abs() < 1e-8, 1e-8, x) for x in d]
    out = torch.zeros_like(d[2])
    key = torch.full(out.shape, -1, dtype=torch.int64)
    boxes = air.tolist()
    for again in range(2 * AIR_BOXES):
        index = again % AIR_BOXES
        box = boxes[index]
        if box[6] == AIR_OFF:
            continue
        ends = [((box[i] - p[i]) * inverse[i], (box[i + 3] - p[i]) * inverse[i]) for i in range(3)]
        low = torch.stack([torch.minimum(*pair) for pair in ends]).amax(0)
        hx, hy, hz = (torch.maximum(*pair) for pair in ends)
        high = torch.minimum(torch.minimum(hx, hy), hz)
        sideways = torch.where(high == hx, torch.where(d[0] > 0, 0, 1), torch.where(d[1] > 0, 2, 3))
        face = torch.where(high == hz, torch.where(d[2] > 0, 4, 5), sideways)
        further = (low <= out + 1e-3) & (high > out + 1e-4) & (low < high)
        row = torch.full_like(face, {0: WALL, 2: WALL_BEYOND}.get(index, PORTAL))
        if index in (0, 2):
            row = torch.where(face == 5, FLOOR, torch.where(face == 4, CEILING, row))
        new = torch.full_like(face, -1) if box[6] == AIR_WINDOW else row * 8 + face
        out, key = torch.where(further, high, out), torch.where(further, new, key)
    return torch.where(key < 0, FAR, out), key


def _terrain(heights: Tensor, p: list[Tensor], d: list[Tensor], corner: Tensor, cell: Tensor) -> Tensor:
    shape = d[2].shape
    dx, dy, dz = (x.expand(shape).reshape(1, -1) for x in d)

    def gap(t: Tensor) -> Tensor:
        ground = intersect.height_at(heights[None], p[0] + t * dx, p[1] + t * dy, corner, cell)
        return p[2] + t * dz - ground

    scale = (dx * dx + dy * dy + dz * dz).rsqrt()
    t, before = torch.zeros_like(dx), torch.zeros_like(dx)
    below = torch.zeros_like(dx, dtype=torch.bool)
    for _ in range(80):
        g = gap(t)
        below = below | (g < 0)
        step = torch.maximum(0.8 * g, 0.02 + 0.03 * t) * scale
        before = torch.where(below, before, t)
        t = torch.where(below, t, t + step)
    low, high = before, t
    for _ in range(9):
        middle = 0.5 * (low + high)
        under = gap(middle) < 0
        low, high = torch.where(under, low, middle), torch.where(under, middle, high)
    return torch.where(below & (high > NEAR), high, FAR).view(shape)


def _shadows_torch(scene: SyntheticScene, lights: Tensor, points: Tensor, clips: Tensor) -> Tensor:
    visible = torch.ones(2, clips.shape[0])
    for clip in clips.unique().tolist():
        member = (clips == clip).nonzero()[:, 0]
        rows = scene.primitives[clip, : int(scene.count[clip])].tolist()
        for light in range(2):
            visible[light, member] = _lit(rows, points[:, member], lights[clip, light])
    return visible


def _lit(rows: list[list[float]], points: Tensor, lamp: Tensor) -> Tensor:
    """Which points [3, P] see one lamp [4]."""
    reach = 0.999 if float(lamp[3]) > 0.5 else FAR
    toward = lamp[:3, None] - points * lamp[3]
    length = (toward * toward).sum(0) + 1e-9
    seen = torch.ones(points.shape[1])
    for row in rows:
        to = torch.tensor(row[SPHERE : SPHERE + 3])[:, None] - points
        along = ((to * toward).sum(0) / length).clamp(0.0, reach)
        off = to - along * toward
        near = ((off * off).sum(0) < row[SPHERE + 3] ** 2 * 1.001).nonzero()[:, 0]
        p, d = points[:, near], toward[:, near]
        t, _ = intersect.primitive(row, (p[0], p[1], p[2]), (d[0], d[1], d[2]), 1e-3)
        seen[near] = torch.where(t < reach, 0.0, seen[near])
    return seen
