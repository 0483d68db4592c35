# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Rotations, rigid transforms and small solves on scalars, for Triton kernels.

A transform is a tuple of 12 scalars: the rotation row by row, then the translation. Matrices are tuples of 9. Formulas
are those of `models.pose` and `odometry.pnp`.
"""

from typing import Any

import triton
import triton.language as tl

ONE_BINARY: dict[str, Any] = {
    "do_not_specialize": (
        *(f"{name}_{axis}" for name in ("own", "target") for axis in ("channel", "row", "column")),
        *("row_stride", "height", "width", "cell", "last_cell", "spacing", "first_cell", "is_final"),
    ),
    "do_not_specialize_on_alignment": (
        *("codes", "pose", "poses", "motion", "support", "change", "log_scale", "last_scale", "last_pose", "last_head"),
        *("history_count", "references", "reference_rows", "counts", "motion_out", "support_out", "scale_out"),
        *("change_out", "pose_out", "out", "b2", "c2", "weigh_bias"),
    ),
}
"""Options of `triton.jit`: layouts and sizes of maps, and the alignment of pointers from which only scalars are read,
differ between batches, frames and rounds, but are no reason to compile a kernel again, which takes seconds."""


@triton.jit
def quaternion_matrix(x, y, z, w):
    """Rotation matrix of a quaternion of any length but zero."""
    s = 2.0 / tl.maximum(x * x + y * y + z * z + w * w, 1e-12)
    return (1.0 - s * (y * y + z * z), s * (x * y - z * w), s * (x * z + y * w),
            s * (x * y + z * w), 1.0 - s * (x * x + z * z), s * (y * z - x * w),
            s * (x * z - y * w), s * (y * z + x * w), 1.0 - s * (x * x + y * y))  # fmt: skip


@triton.jit
def load_pose(code):
    """The transform of a pose code in memory."""
    R = quaternion_matrix(tl.load(code + 3), tl.load(code + 4), tl.load(code + 5), tl.load(code + 6))
    return (R[0], R[1], R[2], R[3], R[4], R[5], R[6], R[7], R[8],
            tl.load(code), tl.load(code + 1), tl.load(code + 2))  # fmt: skip


@triton.jit
def load_transform(at):
    """12 scalars in memory."""
    return (tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3), tl.load(at + 4), tl.load(at + 5),
            tl.load(at + 6), tl.load(at + 7), tl.load(at + 8),
            tl.load(at + 9), tl.load(at + 10), tl.load(at + 11))  # fmt: skip


@triton.jit
def store_transform(at, T):
    for i in tl.static_range(12):
        tl.store(at + i, T[i])


@triton.jit
def turn(R, x, y, z):
    """R times a vector."""
    return (R[0] * x + R[1] * y + R[2] * z, R[3] * x + R[4] * y + R[5] * z, R[6] * x + R[7] * y + R[8] * z)


@triton.jit
def turn_back(R, x, y, z):
    """R transposed times a vector."""
    return (R[0] * x + R[3] * y + R[6] * z, R[1] * x + R[4] * y + R[7] * z, R[2] * x + R[5] * y + R[8] * z)


@triton.jit
def product(A, B):
    """A B"""
    a = turn(A, B[0], B[3], B[6])
    b = turn(A, B[1], B[4], B[7])
    c = turn(A, B[2], B[5], B[8])
    return (a[0], b[0], c[0], a[1], b[1], c[1], a[2], b[2], c[2])


@triton.jit
def product_back(A, B):
    """A transposed times B"""
    a = turn_back(A, B[0], B[3], B[6])
    b = turn_back(A, B[1], B[4], B[7])
    c = turn_back(A, B[2], B[5], B[8])
    return (a[0], b[0], c[0], a[1], b[1], c[1], a[2], b[2], c[2])


@triton.jit
def with_translation(R, x, y, z):
    """The transform of a rotation and a translation."""
    return (R[0], R[1], R[2], R[3], R[4], R[5], R[6], R[7], R[8], x, y, z)


@triton.jit
def compose(A, B):
    """A B of transforms."""
    t = turn(A, B[9], B[10], B[11])
    return with_translation(product(A, B), t[0] + A[9], t[1] + A[10], t[2] + A[11])


@triton.jit
def relative(A, B):
    """The inverse of A, times B."""
    t = turn_back(A, B[9] - A[9], B[10] - A[10], B[11] - A[11])
    return with_translation(product_back(A, B), t[0], t[1], t[2])


@triton.jit
def rotation_exp(x, y, z):
    """Rotation matrix of a rotation vector (Rodrigues)."""
    angle = tl.sqrt(x * x + y * y + z * z)
    safe = tl.maximum(angle, 1e-12)
    half = tl.sin(safe * 0.5) / (safe * 0.5)
    a = tl.sin(safe) / safe
    b = 0.5 * half * half
    return (1.0 - b * (y * y + z * z), b * x * y - a * z, b * x * z + a * y,
            b * x * y + a * z, 1.0 - b * (x * x + z * z), b * y * z - a * x,
            b * x * z - a * y, b * y * z + a * x, 1.0 - b * (x * x + y * y))  # fmt: skip


@triton.jit
def rotation_log(R):
    """Rotation vector of a rotation matrix by an angle below pi.

    The angle is a rough one, good to 5 thousandths, after one step of Newton's method: its error is the third power.
    """
    x, y, z = 0.5 * (R[7] - R[5]), 0.5 * (R[2] - R[6]), 0.5 * (R[3] - R[1])
    sine = tl.sqrt(x * x + y * y + z * z)
    cosine = 0.5 * (R[0] + R[4] + R[8] - 1.0)
    size = tl.maximum(tl.sqrt(sine * sine + cosine * cosine), 1e-12)
    sine_one, cosine_one = sine / size, cosine / size
    low = tl.minimum(sine_one, tl.abs(cosine_one)) / tl.maximum(tl.maximum(sine_one, tl.abs(cosine_one)), 1e-12)
    octant = low * (0.7853982 + 0.273 * (1.0 - low))
    acute = tl.where(sine_one > tl.abs(cosine_one), 1.5707964 - octant, octant)
    rough = tl.where(cosine_one < 0.0, 3.1415927 - acute, acute)
    angle = rough + sine_one * tl.cos(rough) - cosine_one * tl.sin(rough)
    factor = angle / tl.maximum(sine, 1e-9)
    return (x * factor, y * factor, z * factor)


@triton.jit
def store_code(code, T, fov_from):
    """Store a transform as a pose code with the fields of view of the code at ``fov_from``."""
    d0 = 1.0 + T[0] - T[4] - T[8]
    d1 = 1.0 - T[0] + T[4] - T[8]
    d2 = 1.0 - T[0] - T[4] + T[8]
    d3 = 1.0 + T[0] + T[4] + T[8]
    s01, s02, s12 = T[1] + T[3], T[2] + T[6], T[5] + T[7]
    m0, m1, m2 = T[7] - T[5], T[2] - T[6], T[3] - T[1]
    # The candidate with the largest divisor; the first one of equals.
    is0 = d0 >= tl.maximum(d1, tl.maximum(d2, d3))
    is1 = d1 >= tl.maximum(d2, d3)
    is2 = d2 >= d3
    x = tl.where(is0, d0, tl.where(is1, s01, tl.where(is2, s02, m0)))
    y = tl.where(is0, s01, tl.where(is1, d1, tl.where(is2, s12, m1)))
    z = tl.where(is0, s02, tl.where(is1, s12, tl.where(is2, d2, m2)))
    w = tl.where(is0, m0, tl.where(is1, m1, tl.where(is2, m2, d3)))
    scale = 1.0 / tl.maximum(tl.sqrt(x * x + y * y + z * z + w * w), 1e-12)
    scale = tl.where(w < 0.0, -scale, scale)
    tl.store(code, T[9])
    tl.store(code + 1, T[10])
    tl.store(code + 2, T[11])
    tl.store(code + 3, x * scale)
    tl.store(code + 4, y * scale)
    tl.store(code + 5, z * scale)
    tl.store(code + 6, w * scale)
    tl.store(code + 7, tl.load(fov_from + 7))
    tl.store(code + 8, tl.load(fov_from + 8))


@triton.jit
def load_focal(code, H: tl.constexpr, W: tl.constexpr):
    """Focal lengths (x, y) in pixels of a pose code in memory."""
    vertical = 0.5 * tl.minimum(tl.maximum(tl.load(code + 7), 1e-3), 3.1)
    horizontal = 0.5 * tl.minimum(tl.maximum(tl.load(code + 8), 1e-3), 3.1)
    return (0.5 * W * tl.cos(horizontal) / tl.sin(horizontal), 0.5 * H * tl.cos(vertical) / tl.sin(vertical))


@triton.jit
def add_products(n, w, a):
    """27 sums with the weighted products of 7 values: for each of the first 6, with itself and all after it."""
    b0, b1, b2, b3, b4, b5 = w * a[0], w * a[1], w * a[2], w * a[3], w * a[4], w * a[5]
    return (n[0] + b0 * a[0], n[1] + b0 * a[1], n[2] + b0 * a[2], n[3] + b0 * a[3], n[4] + b0 * a[4],
            n[5] + b0 * a[5], n[6] + b0 * a[6],
            n[7] + b1 * a[1], n[8] + b1 * a[2], n[9] + b1 * a[3], n[10] + b1 * a[4], n[11] + b1 * a[5],
            n[12] + b1 * a[6],
            n[13] + b2 * a[2], n[14] + b2 * a[3], n[15] + b2 * a[4], n[16] + b2 * a[5], n[17] + b2 * a[6],
            n[18] + b3 * a[3], n[19] + b3 * a[4], n[20] + b3 * a[5], n[21] + b3 * a[6],
            n[22] + b4 * a[4], n[23] + b4 * a[5], n[24] + b4 * a[6],
            n[25] + b5 * a[5], n[26] + b5 * a[6])  # fmt: skip


@triton.jit
def no_products(zero):
    """27 sums of nothing."""
    return (zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero,
            zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero)  # fmt: skip


@triton.jit
def total_products(n):
    """27 vectors -> their sums."""
    return (tl.sum(n[0], 0), tl.sum(n[1], 0), tl.sum(n[2], 0), tl.sum(n[3], 0), tl.sum(n[4], 0), tl.sum(n[5], 0),
            tl.sum(n[6], 0), tl.sum(n[7], 0), tl.sum(n[8], 0), tl.sum(n[9], 0), tl.sum(n[10], 0), tl.sum(n[11], 0),
            tl.sum(n[12], 0), tl.sum(n[13], 0), tl.sum(n[14], 0), tl.sum(n[15], 0), tl.sum(n[16], 0),
            tl.sum(n[17], 0), tl.sum(n[18], 0), tl.sum(n[19], 0), tl.sum(n[20], 0), tl.sum(n[21], 0),
            tl.sum(n[22], 0), tl.sum(n[23], 0), tl.sum(n[24], 0), tl.sum(n[25], 0), tl.sum(n[26], 0))  # fmt: skip


@triton.jit
def factor3(a, b, c, d, e, f):
    """L D L^T of a symmetric 3x3 matrix (upper triangle row by row) -> three divisors, three entries of L."""
    l10, l20 = b / a, c / a
    d1 = d - l10 * b
    part = e - l10 * c
    l21 = part / d1
    return (a, d1, f - l20 * c - l21 * part, l10, l20, l21)


@triton.jit
def solve3(f, x, y, z):
    """The solution of a factored system."""
    y = y - f[3] * x
    z = (z - f[4] * x - f[5] * y) / f[2]
    y = y / f[1] - f[5] * z
    return (x / f[0] - f[3] * y - f[4] * z, y, z)


@triton.jit
def newton_step(n, damping):
    """The damped Gauss-Newton step of 27 sums: see `pnp.newton_step`. Solved in blocks of three."""
    mean = 1e-6 * ((n[0] + n[7] + n[13] + n[18] + n[22] + n[25]) / 6.0 + 1e-9)
    grow = 1.0 + damping
    top = factor3(grow * n[0] + mean, n[1], n[2], grow * n[7] + mean, n[8], grow * n[13] + mean)
    # Columns of the block between the halves are (3, 9, 14), (4, 10, 15), (5, 11, 16); the gradient's upper half is
    # (6, 12, 17), its lower half (21, 24, 26).
    a = solve3(top, n[3], n[9], n[14])
    b = solve3(top, n[4], n[10], n[15])
    c = solve3(top, n[5], n[11], n[16])
    g = solve3(top, n[6], n[12], n[17])
    low = factor3(
        grow * n[18] + mean - (n[3] * a[0] + n[9] * a[1] + n[14] * a[2]),
        n[19] - (n[3] * b[0] + n[9] * b[1] + n[14] * b[2]),
        n[20] - (n[3] * c[0] + n[9] * c[1] + n[14] * c[2]),
        grow * n[22] + mean - (n[4] * b[0] + n[10] * b[1] + n[15] * b[2]),
        n[23] - (n[4] * c[0] + n[10] * c[1] + n[15] * c[2]),
        grow * n[25] + mean - (n[5] * c[0] + n[11] * c[1] + n[16] * c[2]),
    )
    t = solve3(
        low,
        n[21] - (n[3] * g[0] + n[9] * g[1] + n[14] * g[2]),
        n[24] - (n[4] * g[0] + n[10] * g[1] + n[15] * g[2]),
        n[26] - (n[5] * g[0] + n[11] * g[1] + n[16] * g[2]),
    )
    return (
        a[0] * t[0] + b[0] * t[1] + c[0] * t[2] - g[0],
        a[1] * t[0] + b[1] * t[1] + c[1] * t[2] - g[1],
        a[2] * t[0] + b[2] * t[1] + c[2] * t[2] - g[2],
        -t[0],
        -t[1],
        -t[2],
    )


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
