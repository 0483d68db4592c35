"""Textures as pure functions of surface coordinates: noise, one general pattern, and photo tiles with mip maps.

Written for torch.compile: element by element, no branch, so that all of it becomes one kernel.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor

TILE_SIZE, LEVELS = 256, 6


def hash_cells(ix: Tensor, iy: Tensor, seed: Tensor) -> Tensor:
    """Uniform 0..1 from integer cells (int32, wrapping)."""
    h = ix * 374761393 + iy * 668265263 + seed * 1274126177
    h = (h ^ (h >> 13)) * 1274126177
    h = (h ^ (h >> 15)) * 668265263
    h = h ^ (h >> 16)
    return (h & 65535).to(torch.float32) * (1 / 65535.0)


def value_noise(u: Tensor, v: Tensor, seed: Tensor) -> Tensor:
    """Smooth noise 0..1 with one random value at each integer point."""
    fu, fv = u.floor(), v.floor()
    iu, iv = fu.to(torch.int32), fv.to(torch.int32)
    a, b = u - fu, v - fv
    a, b = a * a * (3 - 2 * a), b * b * (3 - 2 * b)
    low = hash_cells(iu, iv, seed) * (1 - a) + hash_cells(iu + 1, iv, seed) * a
    high = hash_cells(iu, iv + 1, seed) * (1 - a) + hash_cells(iu + 1, iv + 1, seed) * a
    return low * (1 - b) + high * b


def fractal_noise(u: Tensor, v: Tensor, seed: Tensor, footprint: Tensor, octaves: int) -> Tensor:
    """Noise around 0.5; octaves finer than a pixel (footprint: pixel size in units of u) fade out."""
    total = torch.zeros_like(u)
    weight, sum_of_weights = 1.0, 0.0
    for octave in range(octaves):
        scale = 2.0**octave
        fade = (1.5 - 2.0 * scale * footprint).clamp(0, 1)
        total = total + weight * fade * (value_noise(u * scale, v * scale, seed + octave) - 0.5)
        sum_of_weights += weight
        weight *= 0.6
    return 0.5 + total * (1.7 / sum_of_weights)


def finest_noise(u: Tensor, v: Tensor, seed: Tensor, pixel: Tensor) -> Tensor:
    """Noise -1..1 of three to six pixels' length at any distance (pixel: pixel size in units of u).

    Real surfaces show more the closer one looks. Where nothing finer than the pattern appears, smooth pictures mean
    a narrow field of view and busy ones a wide one, which is true of renderings alone.
    """
    level = torch.log2(1 / (6 * pixel + 1e-6)).clamp(-8, 16)
    octave = level.floor()
    share = level - octave
    coarse, number = torch.exp2(octave), octave.to(torch.int32)
    low = value_noise(u * coarse, v * coarse, seed + number)
    high = value_noise(u * (2 * coarse), v * (2 * coarse), seed + number + 1)
    return 2 * (low + (high - low) * share) - 1


def pattern(m: dict[str, Tensor], u: Tensor, v: Tensor, pixel: Tensor) -> tuple[list[Tensor], Tensor]:
    """Colour of a material's pattern, and a factor of grain, at surface coordinates u, v.

    m: the material's columns; u, v in cells; pixel: the size of a pixel in cells.
    """
    seed = m["seed"].to(torch.int32)
    rows = v * m["aspect"]
    row = rows.floor()
    column = u + m["shift"] * (row - 2 * (row * 0.5).floor())
    cell = column.floor()
    fu, fv = column - cell, rows - row
    pixel_v = pixel * m["aspect"]
    tone = hash_cells(cell.to(torch.int32), row.to(torch.int32), seed)
    other = hash_cells(cell.to(torch.int32), row.to(torch.int32), seed + 191)
    fade = (1.6 - 2 * torch.maximum(pixel, pixel_v)).clamp(0, 1)
    # Joints: distances to the cell's edges, in cell widths.
    edge = torch.minimum(0.5 - (fu - 0.5).abs(), (0.5 - (fv - 0.5).abs()) / m["aspect"])
    joint = ((m["gap"] - edge) / (pixel + 0.01) + 0.5).clamp(0, 1) * (m["gap"] > 0) * fade
    half = 0.5 * m["inner"]
    inside = torch.minimum(half - (fu - 0.5).abs(), (half - (fv - 0.5).abs()) / m["aspect"])
    pane = (inside / (pixel + 0.01) + 0.5).clamp(0, 1) * (m["inner"] > 0.05) * fade

    scale = m["noise_scale"]
    noise = fractal_noise(u * scale, v * scale * m["stretch"], seed + 7, pixel * scale, 4)
    sharp = 0.5 + ((noise - 0.5) * m["sharp"]).clamp(-0.5, 0.5)
    phase = (v * m["wave_scale"] + m["warp"] * (noise - 0.5)) * (2 * math.pi)
    wave = torch.sin(phase) * (1.5 - 3 * pixel * m["wave_scale"]).clamp(0, 1)
    mix = 0.5 + m["noise"] * (sharp - 0.5) + fade * m["cells"] * (tone - 0.5) + 0.5 * m["waves"] * wave
    mix = (0.5 + (mix - 0.5) * m["fade"]).clamp(0, 1.2)
    hue = m["tint"] * fade
    colours = []
    for channel, shade in zip("rgb", (tone, other, (tone * 7.31 + other * 3.7) % 1.0), strict=True):
        base = m[channel + "0"] + (m[channel + "1"] - m[channel + "0"]) * mix + hue * (shade - 0.5)
        deep = m[channel + "2"]
        base = base + (deep - base) * joint * m["fade"]
        colours.append(base + (deep * (0.5 + other) - base) * pane * m["fade"])
    fine = value_noise(u * scale * 13.7, v * scale * 13.7, seed + 9) - 0.5
    fine = fine * (1.5 - 28 * pixel * scale).clamp(0, 1)
    finest = finest_noise(u, v, seed + 31, pixel)
    grain = 1 + m["grain"] * (fine + 0.8 * (noise - 0.5)) + m["detail"] * finest
    return colours, grain


@dataclass
class Tiles:
    """Photo tiles with their mip maps, one int32 a texel (red in the lowest byte).

    texels: flat, level after level, tile after tile; starts int32 [LEVELS].
    """

    texels: Tensor
    starts: Tensor
    count: int


@lru_cache(maxsize=2)
def load_tiles(path: Path | None, device: torch.device) -> Tiles:
    """Tiles of scripts/data/make_tiles.py (npz: JPEG bytes `data`, `length` of each), or none without a path."""
    if path is None:
        blank = torch.zeros(4, dtype=torch.int32, device=device)
        return Tiles(blank, torch.zeros(LEVELS, dtype=torch.int32, device=device), 0)
    with np.load(path) as archive:
        data, length = archive["data"], archive["length"]
    images = np.empty((len(length), TILE_SIZE, TILE_SIZE, 3), np.uint8)
    ends = np.cumsum(length)
    for i, end in enumerate(ends):
        decoded = cv2.imdecode(data[end - length[i] : end], cv2.IMREAD_COLOR)
        assert decoded is not None
        images[i] = decoded[..., ::-1]
    levels: list[list[Tensor]] = [[] for _ in range(LEVELS)]
    for chunk in torch.from_numpy(images).split(64):
        current = chunk.to(device).permute(0, 3, 1, 2).float()
        for level in levels:
            texel = current.round().clamp(0, 255).to(torch.int32)
            level.append((texel[:, 0] | (texel[:, 1] << 8) | (texel[:, 2] << 16)).reshape(-1))
            current = torch.nn.functional.avg_pool2d(current, 2)
    flat = [torch.cat(level) for level in levels]
    starts = np.cumsum([0, *(len(level) for level in flat[:-1])])
    return Tiles(torch.cat(flat), torch.tensor(starts, dtype=torch.int32, device=device), len(length))


def photo(texels: Tensor, starts: Tensor, layer: Tensor, u: Tensor, v: Tensor, level: Tensor) -> list[Tensor]:
    """Bilinear colour of a tile mirrored to fill the plane, from the nearest mip level. u, v in tiles."""
    level = (level + 0.5).floor().clamp(0, LEVELS - 1).to(torch.int32)
    size = torch.bitwise_right_shift(torch.full_like(level, TILE_SIZE), level)
    u = 1 - (1 - (u - 2 * (u * 0.5).floor())).abs()
    v = 1 - (1 - (v - 2 * (v * 0.5).floor())).abs()
    x, y = u * size - 0.5, (1 - v) * size - 0.5
    fx, fy = x.floor(), y.floor()
    a, b = x - fx, y - fy
    last = size - 1
    x0, y0 = fx.to(torch.int32), fy.to(torch.int32)
    xs = [torch.minimum((x0 + i).clamp_min(0), last) for i in (0, 1)]
    ys = [torch.minimum((y0 + i).clamp_min(0), last) for i in (0, 1)]
    # Without tiles the only texels are a few blank ones.
    start = starts[level.long()] + layer * size * size
    limit = texels.shape[0] - 1
    weights = ((1 - a) * (1 - b), a * (1 - b), (1 - a) * b, a * b)
    corners = [texels[(start + yy * size + xx).long().clamp_max(limit)] for yy in ys for xx in xs]
    return [
        sum((w * ((c >> bits) & 255) for w, c in zip(weights, corners, strict=True)), torch.zeros_like(u)) * (1 / 255.0)
        for bits in (0, 8, 16)
    ]
