"""Colour of surface samples: normals, textures, two lights with shadows, ambient occlusion of corners, fog and sky.

One pure function per step over flat samples [P], which torch.compile fuses to one kernel.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from training.synthetic.primitives import BLOB, BOX, ELLIPSOID, FAR, FRUSTUM, GROUND, KEY_FACES, ROWS
from training.synthetic.raycast import TILE, TILE_HEIGHT, TILE_WIDTH
from training.synthetic.surfaces import COLUMN
from training.synthetic.textures import fractal_noise, pattern, photo

# Columns of a clip's row of light and air.
LIGHT_COLUMNS = [
    "x0",
    "y0",
    "z0",
    "near0",
    "r0",
    "g0",
    "b0",
    "dark0",
    "x1",
    "y1",
    "z1",
    "near1",
    "r1",
    "g1",
    "b1",
    "dark1",
    "ambient_r",
    "ambient_g",
    "ambient_b",
    "low_x",
    "low_y",
    "low_z",
    "high_x",
    "high_y",
    "high_z",
    "corners",
    "horizon_r",
    "horizon_g",
    "horizon_b",
    "zenith_r",
    "zenith_g",
    "zenith_b",
    "clouds",
    "cover",
    "fog",
    "terrain",
    "map_x",
    "map_y",
    "cell",
    "sun",
]
LIGHT = {name: i for i, name in enumerate(LIGHT_COLUMNS)}


@dataclass
class Surroundings:
    """Inputs of shading: views [F, 16], materials [B * ROWS, columns], lights [B, len(LIGHT_COLUMNS)],
    slopes [B, G, G, 2] of the terrain, photo texels and their levels' starts,
    grid int32 [4]: pixels of a frame, tile columns, width, height."""

    views: Tensor
    materials: Tensor
    lights: Tensor
    slopes: Tensor
    texels: Tensor
    starts: Tensor
    grid: Tensor


def _pixel_rays(index: Tensor, s: Surroundings) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Frame, direction (depth 1 along the optical axis) and camera position of flat pixel indices."""
    pixels, columns, width, height = s.grid.unbind(0)
    frame = index // pixels
    in_frame = index - frame * pixels
    tile = in_frame // TILE
    inner = in_frame - tile * TILE
    tile_y = tile // columns
    x = (tile - tile_y * columns) * TILE_WIDTH + inner % TILE_WIDTH + 0.5
    y = tile_y * TILE_HEIGHT + inner // TILE_WIDTH + 0.5
    view = [s.views[:, i][frame] for i in range(15)]
    cx, cy = (x - 0.5 * width) / view[12], (y - 0.5 * height) / view[13]
    direction = [view[3 * i] * cx + view[3 * i + 1] * cy + view[3 * i + 2] for i in range(3)]
    return frame, direction, view


def _local(m: dict[str, Tensor], p: list[Tensor]) -> list[Tensor]:
    return [
        m[f"a{3 * i}"] * p[0] + m[f"a{3 * i + 1}"] * p[1] + m[f"a{3 * i + 2}"] * p[2] + m[f"o{i}"] for i in range(3)
    ]


def _blob_gradient(q: list[Tensor], amplitude: Tensor, frequency: Tensor) -> list[Tensor]:
    length = (q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + 1e-9).rsqrt()
    turns = [frequency * q[i] + 0.15 * (i + 1) for i in range(3)]
    offset = [x - (x + 0.5).floor() for x in turns]
    sine = [x * (8.0 - 16.0 * x.abs()) for x in offset]
    slope = [8.0 - 32.0 * x.abs() for x in offset]
    k = amplitude * frequency
    return [
        q[0] * length - k * slope[0] * sine[1] * sine[2],
        q[1] * length - k * sine[0] * slope[1] * sine[2],
        q[2] * length - k * sine[0] * sine[1] * slope[2],
    ]


def _slope(s: Surroundings, light: list[Tensor], clip: Tensor, p: list[Tensor]) -> list[Tensor]:
    """Bilinear slope of the terrain in x and y."""
    size = s.slopes.shape[1]
    # Where there is no terrain its cells have no size: 0 / 0 would be no index at all.
    cell = light[LIGHT["cell"]].clamp_min(1e-6)
    u = ((p[0] - light[LIGHT["map_x"]]) / cell).clamp(0.0, size - 1.001)
    v = ((p[1] - light[LIGHT["map_y"]]) / cell).clamp(0.0, size - 1.001)
    iu, iv = u.floor(), v.floor()
    a, b = u - iu, v - iv
    at = (clip * size + iv.to(torch.int32)) * size + iu.to(torch.int32)
    flat = s.slopes.view(-1, 2)
    slope = []
    for axis in range(2):
        h00, h10 = flat[:, axis][at], flat[:, axis][at + 1]
        h01, h11 = flat[:, axis][at + size], flat[:, axis][at + size + 1]
        slope.append((h00 * (1 - a) + h10 * a) * (1 - b) + (h01 * (1 - a) + h11 * a) * b)
    return slope


def _normal(m: dict[str, Tensor], q: list[Tensor], face: Tensor, direction: list[Tensor]) -> list[Tensor]:
    """Unit normals in world axes, toward the camera."""
    kind = m["type"]
    k0, k1 = m["shape0"], m["shape1"]
    sign = 1.0 - 2.0 * (face % 2)
    zero = torch.zeros_like(k0)
    box = [
        torch.where(face < 2, sign, zero),
        torch.where((face >= 2) & (face < 4), sign, zero),
        torch.where(face < 2, k0, torch.where(face < 4, k1, sign)),
    ]
    cap = face >= 4
    round_z = k0 * (1 - k0 * (q[2] + 1))
    tube = [
        torch.where(cap, zero, q[0]),
        torch.where(cap, zero, q[1]),
        torch.where(cap, torch.ones_like(zero), round_z),
    ]
    lumps = _blob_gradient(q, torch.where(kind == BLOB, k0, zero), k1)
    n = [
        torch.where(
            kind == BOX, box[i], torch.where(kind == FRUSTUM, tube[i], torch.where(kind == ELLIPSOID, q[i], lumps[i]))
        )
        for i in range(3)
    ]
    # A normal is a gradient: it transforms with the transpose of the map to the unit cube.
    return [m[f"a{i}"] * n[0] + m[f"a{i + 3}"] * n[1] + m[f"a{i + 6}"] * n[2] for i in range(3)]


def _unit_toward(n: list[Tensor], direction: list[Tensor]) -> list[Tensor]:
    scale = (n[0] * n[0] + n[1] * n[1] + n[2] * n[2] + 1e-20).rsqrt()
    away = n[0] * direction[0] + n[1] * direction[1] + n[2] * direction[2] > 0
    scale = torch.where(away, -scale, scale)
    return [x * scale for x in n]


def surface_points(index: Tensor, depth: Tensor, key: Tensor, s: Surroundings) -> tuple[Tensor, Tensor]:
    """Points [3, P] in metres, moved slightly toward the camera, and clips int32 [P], for shadow rays."""
    _, direction, view = _pixel_rays(index, s)
    t = torch.where(key >= 0, depth, 50.0)
    t = t - (0.003 + 0.003 * t)
    points = torch.stack([view[9 + i] + direction[i] * t for i in range(3)])
    return points, view[14].to(torch.int32)


def shade(index: Tensor, depth: Tensor, key: Tensor, visible: Tensor, s: Surroundings) -> Tensor:
    """Linear-ish RGB [3, P] of samples: flat pixel index, depth in metres, key, and visibility [2, P] of lights."""
    _, direction, view = _pixel_rays(index, s)
    hit = key >= 0
    row, face = key.clamp_min(0) // KEY_FACES, key.clamp_min(0) % KEY_FACES
    clip = view[14].to(torch.int32)
    record = clip * ROWS + row
    m = {name: s.materials[:, i][record] for name, i in COLUMN.items()}
    light = [s.lights[:, i][clip] for i in range(len(LIGHT_COLUMNS))]
    t = torch.where(hit, depth, 50.0)
    p = [view[9 + i] + direction[i] * t for i in range(3)]
    q = _local(m, p)
    normal = _normal(m, q, face, direction)
    slope = _slope(s, light, clip, p)
    terrain = (light[LIGHT["terrain"]] > 0.5) & (row == GROUND)
    normal = [
        torch.where(terrain, x, y) for x, y in zip((-slope[0], -slope[1], torch.ones_like(t)), normal, strict=True)
    ]
    normal = _unit_toward(normal, direction)
    ray = (direction[0] ** 2 + direction[1] ** 2 + direction[2] ** 2).rsqrt()
    facing = -(normal[0] * direction[0] + normal[1] * direction[1] + normal[2] * direction[2]) * ray
    pixel = t / view[12] / facing.clamp(0.2, 1.0)  # metres
    albedo = _albedo(m, q, face, pixel, s)
    glow = m["glow"]
    radiance = _light(m, light, p, normal, direction, ray, visible, albedo)
    radiance = [torch.where(glow > 0, torch.maximum(r, glow * a), r) for r, a in zip(radiance, albedo, strict=True)]
    sky = _sky(light, direction, ray, clip)
    haze = 1 - torch.exp(-t * light[LIGHT["fog"]])
    result = []
    for channel, colour in zip("rgb", radiance, strict=True):
        horizon = light[LIGHT["horizon_" + channel]]
        result.append(colour + (horizon - colour) * haze)
    return torch.stack([torch.where(hit, c, b) for c, b in zip(result, sky, strict=True)])


def _albedo(m: dict[str, Tensor], q: list[Tensor], face: Tensor, pixel: Tensor, s: Surroundings) -> list[Tensor]:
    size = [m["s0"], m["s1"], m["s2"]]
    metres = [q[i] * size[i] for i in range(3)]
    curved = (m["type"] == ELLIPSOID) | (m["type"] == BLOB) | ((m["type"] == FRUSTUM) & (face < 4))
    girth = torch.atan2(q[1], q[0]) * torch.maximum(size[0], size[1])
    u = torch.where(face < 2, metres[1], metres[0])
    v = torch.where(face < 4, metres[2], metres[1])
    fit_u = torch.where(face < 2, q[1], q[0])
    fit_v = torch.where(face < 4, q[2], q[1])
    u, v = torch.where(curved, girth, u), torch.where(curved, metres[2], v)
    # Faces of one object must not repeat each other.
    far = m["offset_u"] + torch.where(curved, 0.0, 3.137 * face)
    ru, rv = m["cos"] * u - m["sin"] * v, m["sin"] * u + m["cos"] * v
    fit = (m["fit"] > 0.5) & ~curved
    frequency = m["photo_frequency"]
    pu = torch.where(fit, fit_u * 0.5 + 0.5, ru * frequency + far)
    pv = torch.where(fit, fit_v * 0.5 + 0.5, rv * frequency + m["offset_v"])
    biggest = torch.maximum(size[0], torch.maximum(size[1], size[2]))
    level = torch.log2((pixel * 256 * torch.where(fit, 0.5 / biggest, frequency)).clamp_min(1e-3)) - 0.3
    image = photo(s.texels, s.starts, m["layer"].to(torch.int32), pu, pv, level)
    cells = m["frequency"]
    colours, grain = pattern(m, ru * cells + far * 3, rv * cells + m["offset_v"] * 3, pixel * cells)
    is_photo = m["photo"] > 0.5
    return [
        (torch.where(is_photo, i * m[c + "0"], x) * grain).clamp(0.01, 1.2)
        for c, i, x in zip("rgb", image, colours, strict=True)
    ]


def _light(
    m: dict[str, Tensor],
    light: list[Tensor],
    p: list[Tensor],
    normal: list[Tensor],
    direction: list[Tensor],
    ray: Tensor,
    visible: Tensor,
    albedo: list[Tensor],
) -> list[Tensor]:
    # Corners of the room, where ambient light does not reach.
    corners = torch.ones_like(ray)
    for i, axis in enumerate("xyz"):
        for bound, sign in (("low_", 1.0), ("high_", -1.0)):
            distance = (sign * (p[i] - light[LIGHT[bound + axis]])).clamp_min(0.0)
            corners = corners * (1 - 0.35 * torch.exp(-distance * 4.0) * (1 - normal[i].abs()))
    corners = 1 + (corners - 1) * light[LIGHT["corners"]]
    upward = 0.8 + 0.2 * normal[2]
    total = [light[LIGHT["ambient_" + c]] * corners * upward for c in "rgb"]
    gloss = torch.zeros_like(ray)
    for number in ("0", "1"):
        near = light[LIGHT["near" + number]]
        to = [light[LIGHT[axis + number]] - p[i] * near for i, axis in enumerate("xyz")]
        square = to[0] ** 2 + to[1] ** 2 + to[2] ** 2
        scale = (square + 1e-6).rsqrt()
        strength = torch.where(near > 0.5, 8.0 / (4.0 + square), torch.ones_like(square))
        shadow = 1 - light[LIGHT["dark" + number]] * (1 - visible[int(number)])
        strength = strength * shadow
        cosine = ((normal[0] * to[0] + normal[1] * to[1] + normal[2] * to[2]) * scale).clamp_min(0)
        half = [to[i] * scale - direction[i] * ray for i in range(3)]
        bright = (half[0] ** 2 + half[1] ** 2 + half[2] ** 2 + 1e-6).rsqrt()
        mirror = ((normal[0] * half[0] + normal[1] * half[1] + normal[2] * half[2]) * bright).clamp_min(0)
        gloss = gloss + mirror**24 * strength * light[LIGHT["r" + number]]
        total = [x + light[LIGHT[c + number]] * cosine * strength for x, c in zip(total, "rgb", strict=True)]
    return [a * x + m["gloss"] * gloss for a, x in zip(albedo, total, strict=True)]


def _sky(light: list[Tensor], direction: list[Tensor], ray: Tensor, clip: Tensor) -> list[Tensor]:
    up = direction[2] * ray
    blend = (up * 1.8 + 0.15).clamp(0, 1)
    stretch = ray / (up.abs() + 0.25) * 2.5
    noise = fractal_noise(direction[0] * stretch, direction[1] * stretch, clip + 77, torch.zeros_like(up), 4)
    cloud = ((noise - light[LIGHT["cover"]]) * 3).clamp(0, 1) * light[LIGHT["clouds"]] * (up > 0)
    result = []
    for channel in "rgb":
        low, high = light[LIGHT["horizon_" + channel]], light[LIGHT["zenith_" + channel]]
        clear = low + (high - low) * blend
        result.append(clear + (0.95 - clear) * cloud)
    return result


def no_surface(depth: Tensor) -> Tensor:
    """Depth with 0 where there is no surface."""
    return torch.where(depth < min(FAR, 600.0), depth, torch.zeros_like(depth))
