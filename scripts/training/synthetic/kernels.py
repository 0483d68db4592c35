# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Triton kernels of the ray caster. The torch twin in raycast.py computes the same numbers.

One program handles a tile of TILE_WIDTH x TILE_HEIGHT pixels with 2x2 rays each. A first kernel lists, for each
tile, the primitives whose bounding sphere meets the cone around the tile's rays; the caster visits those alone.
"""

import triton
import triton.language as tl

_TW = tl.constexpr(16)
_TH = tl.constexpr(8)
_FAR = tl.constexpr(1.0e4)
_NEAR = tl.constexpr(0.02)
_COLUMNS = tl.constexpr(24)
_AIR = tl.constexpr(5)


@triton.jit
def _box(ox, oy, oz, rx, ry, rz, kx, ky):
    """Entry, exit and entry face of the unit box whose x and y extents shrink by k * (z + 1)."""
    small = 1e-8
    sz = tl.where(tl.abs(rz) < small, small, rz)
    low0 = (-1.0 - oz) / sz
    high0 = (1.0 - oz) / sz
    low = tl.minimum(low0, high0)
    high = tl.maximum(low0, high0)
    face = tl.where(sz > 0, 5, 4)
    for side in tl.static_range(4):
        sign = 1.0 - 2.0 * (side % 2)
        if side < 2:
            start = sign * ox + kx * (oz + 1.0) - 1.0
            slope = sign * rx + kx * rz
        else:
            start = sign * oy + ky * (oz + 1.0) - 1.0
            slope = sign * ry + ky * rz
        slope = tl.where(tl.abs(slope) < small, small, slope)
        cross = -start / slope
        entering = (slope < 0) & (cross > low)
        low = tl.where(entering, cross, low)
        face = tl.where(entering, side, face)
        high = tl.where((slope > 0) & (cross < high), cross, high)
    return low, high, face


@triton.jit
def _frustum(ox, oy, oz, rx, ry, rz, k):
    """The same for a round frustum: radius 1 - k * (z + 1), a cylinder where k is 0."""
    small = 1e-8
    sz = tl.where(tl.abs(rz) < small, small, rz)
    slab0 = (-1.0 - oz) / sz
    slab1 = (1.0 - oz) / sz
    slab_low = tl.minimum(slab0, slab1)
    slab_high = tl.maximum(slab0, slab1)
    radius = 1.0 - k * (oz + 1.0)
    qa = rx * rx + ry * ry - k * k * rz * rz
    qa = tl.where(tl.abs(qa) < small, small, qa)
    qb = ox * rx + oy * ry + k * rz * radius
    qc = ox * ox + oy * oy - radius * radius
    root = qb * qb - qa * qc
    width = tl.sqrt(tl.maximum(root, 0.0))
    t0 = (-qb - width) / qa
    t1 = (-qb + width) / qa
    first = tl.minimum(t0, t1)
    last = tl.maximum(t0, t1)
    steep = qa < 0
    away = k * rz > 0
    side_low = tl.where(steep, tl.where(away, -_FAR, last), first)
    side_high = tl.where(steep, tl.where(away, first, _FAR), last)
    empty = (root < 0) & (qa > 0)
    low = tl.maximum(side_low, slab_low)
    high = tl.where(empty, low - 1.0, tl.minimum(side_high, slab_high))
    face = tl.where(slab_low > side_low, tl.where(sz > 0, 5, 4), 0)
    return low, high, face


@triton.jit
def _ellipsoid(ox, oy, oz, rx, ry, rz):
    qa = rx * rx + ry * ry + rz * rz + 1e-20
    qb = ox * rx + oy * ry + oz * rz
    root = qb * qb - qa * (ox * ox + oy * oy + oz * oz - 1.0)
    width = tl.sqrt(tl.maximum(root, 0.0))
    low = (-qb - width) / qa
    high = tl.where(root > 0, (-qb + width) / qa, low - 1.0)
    return low, high


@triton.jit
def _sine(turns):
    p = turns - tl.floor(turns + 0.5)
    return p * (8.0 - 16.0 * tl.abs(p))


@triton.jit
def _blob(ox, oy, oz, rx, ry, rz, low, high, amplitude, frequency):
    """Sphere tracing of a lumpy ball inside the unit sphere; a miss moves the entry behind the exit."""
    speed = 0.6 / tl.sqrt(rx * rx + ry * ry + rz * rz + 1e-20)
    t = tl.maximum(low, 0.0)
    gap = tl.full(t.shape, 1.0, tl.float32)
    for _ in range(16):
        x = ox + t * rx
        y = oy + t * ry
        z = oz + t * rz
        lumps = _sine(frequency * x + 0.15) * _sine(frequency * y + 0.3) * _sine(frequency * z + 0.45)
        gap = tl.sqrt(x * x + y * y + z * z) - 1.0 + amplitude * (1.0 - lumps)
        t += gap * speed
    return tl.where((gap < 0.03) & (t < high), t, high + 1.0)


@triton.jit
def _curl(x, y, z):
    return _sine(x) * _sine(y + 0.25) + _sine(y) * _sine(z + 0.25) + _sine(z) * _sine(x + 0.25)


@triton.jit
def _is_solid(x, y, z, mask, frequency):
    """Whether a perforated primitive has matter at a surface point of its unit cube."""
    u = x * frequency
    v = z * frequency
    bar = tl.abs(u - tl.floor(u) - 0.5) > 0.34
    lattice = bar | (tl.abs(v - tl.floor(v) - 0.5) > 0.34)
    w = y * frequency
    leaf = _curl(0.33 * u, 0.33 * w, 0.33 * v) + 0.7 * _curl(0.75 * u, 0.75 * w, 0.75 * v) > 0.1
    return tl.where(mask == 1.0, bar, tl.where(mask == 2.0, lattice, leaf))


@triton.jit
def _hit(row, px, py, pz, dx, dy, dz, least):
    """Ray parameter (above least) and face of a primitive, _FAR for a miss. row points to its columns."""
    a0 = tl.load(row)
    a1 = tl.load(row + 1)
    a2 = tl.load(row + 2)
    a3 = tl.load(row + 3)
    a4 = tl.load(row + 4)
    a5 = tl.load(row + 5)
    a6 = tl.load(row + 6)
    a7 = tl.load(row + 7)
    a8 = tl.load(row + 8)
    ox = a0 * px + a1 * py + a2 * pz + tl.load(row + 9)
    oy = a3 * px + a4 * py + a5 * pz + tl.load(row + 10)
    oz = a6 * px + a7 * py + a8 * pz + tl.load(row + 11)
    rx = a0 * dx + a1 * dy + a2 * dz
    ry = a3 * dx + a4 * dy + a5 * dz
    rz = a6 * dx + a7 * dy + a8 * dz
    kind = tl.load(row + 12)
    shape0 = tl.load(row + 13)
    shape1 = tl.load(row + 14)
    mask = tl.load(row + 15)
    if kind == 0.0:
        low, high, face = _box(ox, oy, oz, rx, ry, rz, shape0, shape1)
    elif kind == 1.0:
        low, high, face = _frustum(ox, oy, oz, rx, ry, rz, shape0)
    else:
        low, high = _ellipsoid(ox, oy, oz, rx, ry, rz)
        face = tl.zeros(low.shape, tl.int32)
        if kind == 3.0:
            low = _blob(ox, oy, oz, rx, ry, rz, low, high, shape0, shape1)
    t = tl.where((low < high) & (low > least), low, _FAR)
    if mask > 0.0:
        frequency = tl.load(row + 16)
        front = _is_solid(ox + low * rx, oy + low * ry, oz + low * rz, mask, frequency)
        back = _is_solid(ox + high * rx, oy + high * ry, oz + high * rz, mask, frequency)
        through = tl.where(back & (low < high) & (high > least), high, _FAR)
        t = tl.where(front, t, through)
    return t, face


@triton.jit
def _height_at(heights, x, y, x0, y0, cell, G: tl.constexpr):
    u = tl.minimum(tl.maximum((x - x0) / cell, 0.0), G - 1.001)
    v = tl.minimum(tl.maximum((y - y0) / cell, 0.0), G - 1.001)
    iu = tl.floor(u).to(tl.int32)
    iv = tl.floor(v).to(tl.int32)
    a = u - iu.to(tl.float32)
    b = v - iv.to(tl.float32)
    corner = heights + iv * G + iu
    h00 = tl.load(corner)
    h10 = tl.load(corner + 1)
    h01 = tl.load(corner + G)
    h11 = tl.load(corner + G + 1)
    return (h00 * (1 - a) + h10 * a) * (1 - b) + (h01 * (1 - a) + h11 * a) * b


@triton.jit
def _terrain(heights, px, py, pz, dx, dy, dz, x0, y0, cell, G: tl.constexpr):
    """March over a height map with steps that grow with distance, then bisect."""
    scale = 1.0 / tl.sqrt(dx * dx + dy * dy + dz * dz)
    t = tl.full(dx.shape, 0.0, tl.float32)
    before = tl.full(dx.shape, 0.0, tl.float32)
    below = tl.full(dx.shape, 0, tl.int32)
    for _ in range(80):
        gap = pz + t * dz - _height_at(heights, px + t * dx, py + t * dy, x0, y0, cell, G)
        below = tl.where(gap < 0, 1, below)
        step = tl.maximum(0.8 * gap, 0.02 + 0.03 * t) * scale
        before = tl.where(below == 1, before, t)
        t = tl.where(below == 1, t, t + step)
    low = before
    high = t
    for _ in range(9):
        middle = 0.5 * (low + high)
        gap = pz + middle * dz - _height_at(heights, px + middle * dx, py + middle * dy, x0, y0, cell, G)
        low = tl.where(gap < 0, low, middle)
        high = tl.where(gap < 0, middle, high)
    return tl.where((below == 1) & (high > _NEAR), high, _FAR)


@triton.jit
def _room(air, px, py, pz, dx, dy, dz, WALL: tl.constexpr):
    """Ray parameter at which a ray leaves the union of the air boxes, and the key of the wall there."""
    small = 1e-8
    ix = 1.0 / tl.where(tl.abs(dx) < small, small, dx)
    iy = 1.0 / tl.where(tl.abs(dy) < small, small, dy)
    iz = 1.0 / tl.where(tl.abs(dz) < small, small, dz)
    out = tl.full(dx.shape, 0.0, tl.float32)
    key = tl.full(dx.shape, -1, tl.int32)
    for again in range(10):  # the air boxes twice, since a ray may leave them in any order
        index = again % 5
        box = air + index * 7
        flag = tl.load(box + 6)
        if flag > 0.0:
            x0 = (tl.load(box) - px) * ix
            x1 = (tl.load(box + 3) - px) * ix
            y0 = (tl.load(box + 1) - py) * iy
            y1 = (tl.load(box + 4) - py) * iy
            z0 = (tl.load(box + 2) - pz) * iz
            z1 = (tl.load(box + 5) - pz) * iz
            low = tl.maximum(tl.maximum(tl.minimum(x0, x1), tl.minimum(y0, y1)), tl.minimum(z0, z1))
            hx = tl.maximum(x0, x1)
            hy = tl.maximum(y0, y1)
            hz = tl.maximum(z0, z1)
            high = tl.minimum(tl.minimum(hx, hy), hz)
            face = tl.where(
                high == hz, tl.where(dz > 0, 4, 5), tl.where(high == hx, tl.where(dx > 0, 0, 1), tl.where(dy > 0, 2, 3))
            )
            further = (low <= out + 1e-3) & (high > out + 1e-4) & (low < high)
            wall = tl.where(index == 0, WALL, tl.where(index == 2, WALL + 4, WALL + 3))
            level = tl.where(face == 5, WALL + 1, tl.where(face == 4, WALL + 2, wall))
            level = tl.where((index == 1) | (index > 2), wall, level)
            new = tl.where(flag == 2.0, -1, level * 8 + face)
            out = tl.where(further, high, out)
            key = tl.where(further, new, key)
    return tl.where(key < 0, _FAR, out), key


@triton.jit
def list_tiles(primitives, counts, views, lists, lengths, tiles, tiles_x, width, height, N: tl.constexpr) -> None:
    """For each tile, the primitives whose bounding sphere meets the cone around the tile."""
    tile = tl.program_id(0)
    frame = tl.program_id(1)
    view = views + frame * 16
    clip = tl.load(view + 14).to(tl.int32)
    n = tl.arange(0, N)
    row = primitives + (clip * N + n) * _COLUMNS
    vx = tl.load(row + 17) - tl.load(view + 9)
    vy = tl.load(row + 18) - tl.load(view + 10)
    vz = tl.load(row + 19) - tl.load(view + 11)
    radius = tl.load(row + 20)
    # The same in camera coordinates.
    cx = tl.load(view) * vx + tl.load(view + 3) * vy + tl.load(view + 6) * vz
    cy = tl.load(view + 1) * vx + tl.load(view + 4) * vy + tl.load(view + 7) * vz
    cz = tl.load(view + 2) * vx + tl.load(view + 5) * vy + tl.load(view + 8) * vz
    fx = tl.load(view + 12)
    fy = tl.load(view + 13)
    left = ((tile % tiles_x) * _TW - 0.5 * width) / fx
    top = ((tile // tiles_x) * _TH - 0.5 * height) / fy
    ax = left + 0.5 * _TW / fx
    ay = top + 0.5 * _TH / fy
    norm = 1.0 / tl.sqrt(ax * ax + ay * ay + 1.0)
    cosine = norm * 0.0 + 1.0
    for corner in tl.static_range(4):
        ux = left + (corner % 2) * _TW / fx
        uy = top + (corner // 2) * _TH / fy
        dot = (ux * ax + uy * ay + 1.0) * norm / tl.sqrt(ux * ux + uy * uy + 1.0)
        cosine = tl.minimum(cosine, dot)
    sine = tl.sqrt(tl.maximum(1.0 - cosine * cosine, 0.0))
    along = (cx * ax + cy * ay + cz) * norm
    across = tl.sqrt(tl.maximum(cx * cx + cy * cy + cz * cz - along * along, 0.0))
    near = (across * cosine - along * sine <= radius * 1.001 + 1e-3) & (along > -radius)
    near = near & (n < tl.load(counts + clip))
    slot = tl.cumsum(near.to(tl.int32), 0) - 1
    base = frame * tiles + tile
    tl.store(lists + base * N + slot, n.to(tl.int16), mask=near)
    tl.store(lengths + base, tl.sum(near.to(tl.int32), 0))


@triton.jit
def cast_tiles(
    primitives,
    views,
    air,
    ground,
    heights,
    lists,
    lengths,
    t_first,
    key_first,
    share,
    t_second,
    key_second,
    tiles,
    tiles_x,
    width,
    height,
    N: tl.constexpr,
    G: tl.constexpr,
) -> None:
    """Nearest hits of the 4 rays of each pixel, voted into a first and a second surface."""
    tile = tl.program_id(0)
    frame = tl.program_id(1)
    view = views + frame * 16
    clip = tl.load(view + 14).to(tl.int32)
    pixel = tl.arange(0, 128)[:, None]
    ray = tl.arange(0, 4)[None, :]
    u = (tile % tiles_x) * _TW + pixel % _TW + (ray % 2) * 0.5 + 0.25
    v = (tile // tiles_x) * _TH + pixel // _TW + (ray // 2) * 0.5 + 0.25
    cx = (u - 0.5 * width) / tl.load(view + 12)
    cy = (v - 0.5 * height) / tl.load(view + 13)
    dx = tl.load(view) * cx + tl.load(view + 1) * cy + tl.load(view + 2)
    dy = tl.load(view + 3) * cx + tl.load(view + 4) * cy + tl.load(view + 5)
    dz = tl.load(view + 6) * cx + tl.load(view + 7) * cy + tl.load(view + 8)
    px = tl.load(view + 9)
    py = tl.load(view + 10)
    pz = tl.load(view + 11)
    best = tl.full([128, 4], _FAR, tl.float32)
    key = tl.full([128, 4], -1, tl.int32)
    if tl.load(air + clip * _AIR * 7 + 6) > 0.0:
        best, key = _room(air + clip * _AIR * 7, px, py, pz, dx, dy, dz, N)
    mode = tl.load(ground + clip * 4)
    if mode == 1.0:
        floor = tl.where(dz < -1e-6, -pz / tl.minimum(dz, -1e-6), _FAR)
        hit = (floor > _NEAR) & (floor < 600.0)
        best = tl.where(hit, floor, best)
        key = tl.where(hit, (N + 5) * 8 + 4, key)
    if mode == 2.0:
        floor = _terrain(
            heights + clip * G * G,
            px,
            py,
            pz,
            dx,
            dy,
            dz,
            tl.load(ground + clip * 4 + 1),
            tl.load(ground + clip * 4 + 2),
            tl.load(ground + clip * 4 + 3),
            G,
        )
        best = floor
        key = tl.where(floor < _FAR, (N + 5) * 8 + 4, -1)
    base = frame * tiles + tile
    length = tl.load(lengths + base)
    i = 0
    while i < length:
        n = tl.load(lists + base * N + i).to(tl.int32)
        t, face = _hit(primitives + (clip * N + n) * _COLUMNS, px, py, pz, dx, dy, dz, _NEAR)
        closer = t < best
        best = tl.where(closer, t, best)
        key = tl.where(closer, n * 8 + face, key)
        i += 1
    same = (key[:, :, None] == key[:, None, :]).to(tl.int32)
    votes = tl.sum(same, 2) * 8 + (3 - ray)
    top = tl.max(votes, 1)
    first = tl.sum(tl.where(votes == top[:, None], key, 0), 1)
    mine = key == first[:, None]
    number = tl.sum(mine.to(tl.int32), 1)
    others = tl.where(mine, -1, votes)
    next_top = tl.max(others, 1)
    second = tl.sum(tl.where((others == next_top[:, None]) & (others >= 0), key, 0), 1)
    second = tl.where(next_top < 0, first, second)
    yours = key == second[:, None]
    t1 = tl.sum(tl.where(mine, best, 0.0), 1) / number
    t2 = tl.sum(tl.where(yours, best, 0.0), 1) / tl.sum(yours.to(tl.int32), 1)
    at = base * 128 + tl.arange(0, 128)
    tl.store(t_first + at, t1)
    tl.store(key_first + at, first)
    tl.store(share + at, number.to(tl.float32) * 0.25)
    tl.store(t_second + at, t2)
    tl.store(key_second + at, second)


@triton.jit
def cast_shadows(
    primitives, counts, lights, points, clips, visible, total, N: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """Whether points see the two lights of their clip. Every point of a block may be of another clip."""
    block = tl.program_id(0)
    light = tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    px = tl.load(points + at, mask=inside, other=0.0)
    py = tl.load(points + total + at, mask=inside, other=0.0)
    pz = tl.load(points + 2 * total + at, mask=inside, other=0.0)
    own = tl.load(clips + at, mask=inside, other=-1)
    seen = tl.full([BLOCK], 1.0, tl.float32)
    last = tl.max(own, 0)
    lowest = tl.min(tl.where(own < 0, last, own), 0)
    if last >= 0:
        clip = lowest
        while clip <= last:
            member = own == clip
            number = tl.sum(member.to(tl.int32), 0)
            if number > 0:
                # A sphere around this clip's points of the block.
                big = 1.0e6
                x0 = tl.min(tl.where(member, px, big), 0)
                x1 = tl.max(tl.where(member, px, -big), 0)
                y0 = tl.min(tl.where(member, py, big), 0)
                y1 = tl.max(tl.where(member, py, -big), 0)
                z0 = tl.min(tl.where(member, pz, big), 0)
                z1 = tl.max(tl.where(member, pz, -big), 0)
                mx = 0.5 * (x0 + x1)
                my = 0.5 * (y0 + y1)
                mz = 0.5 * (z0 + z1)
                size = 0.5 * tl.sqrt((x1 - x0) * (x1 - x0) + (y1 - y0) * (y1 - y0) + (z1 - z0) * (z1 - z0))
                lamp = lights + (clip * 2 + light) * 4
                near = tl.load(lamp + 3)
                dx = tl.load(lamp) - px * near
                dy = tl.load(lamp + 1) - py * near
                dz = tl.load(lamp + 2) - pz * near
                ax = tl.load(lamp) - mx * near
                ay = tl.load(lamp + 1) - my * near
                az = tl.load(lamp + 2) - mz * near
                reach = tl.where(near > 0.5, 0.999, 1.0e4)
                count = tl.load(counts + clip)
                n = 0
                while n < count:
                    row = primitives + (clip * N + n) * _COLUMNS
                    sx = tl.load(row + 17) - mx
                    sy = tl.load(row + 18) - my
                    sz = tl.load(row + 19) - mz
                    radius = tl.load(row + 20) + size
                    s = (sx * ax + sy * ay + sz * az) / (ax * ax + ay * ay + az * az + 1e-9)
                    s = tl.minimum(tl.maximum(s, 0.0), reach)
                    gx = sx - s * ax
                    gy = sy - s * ay
                    gz = sz - s * az
                    if gx * gx + gy * gy + gz * gz < radius * radius * 1.001:
                        t, _ = _hit(row, px, py, pz, dx, dy, dz, 1e-3)
                        seen = tl.where(member & (t < reach), 0.0, seen)
                    n += 1
            clip += 1
    tl.store(visible + light * total + at, seen, mask=inside)
