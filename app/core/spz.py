"""Gaussian splats in the format SPZ, version 2 (https://github.com/nianticlabs/spz): a tenth of the size of PLY.

A gzip stream of a header of 16 bytes, then all positions (24-bit fixed point), opacities, colours, scales and rotations
(8 bits a value), and spherical harmonics (8 bits, of which the lowest are 0). Axes are x right, y up, z backward;
worlds here are x right, y down, z forward.
"""

import gzip
import struct

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.splats import COEFFICIENTS, Splats

MAGIC, VERSION = 0x5053474E, 2
HEADER = struct.Struct("<IIIBBBB")
"""Magic, version, number of splats, degree of the spherical harmonics, fractional bits, flags, 0."""
ANTIALIASED = 1
"""Flag: the splats were trained with compensated opacity of small ones."""
MAX_FRACTION_BITS = 12
FIXED_LIMIT = (1 << 23) - 1
"""Largest coordinate in fixed point."""
COLOUR_RANGE = 0.15
"""Colours of degree 0 are stored by this factor about 0.5."""
SH_BITS = {1: 5, 2: 4, 3: 4}
"""Bits kept of the spherical harmonics of a degree."""
FLIPPED_SH = np.array([1, -1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, -1, 1, -1, 1], np.float32)
"""Sign of each spherical harmonic where y and z are negated."""
FLIPPED = np.array([1, -1, -1], np.float32)
"""Sign of each coordinate, and of the x, y, z of a quaternion, there."""


def spz_bytes(splats: Splats, *, antialiased: bool = False) -> bytes:
    """The content of a file."""
    bits = _fraction_bits(splats.means)
    degree = splats.sh_degree
    flags = ANTIALIASED if antialiased else 0
    parts = [
        HEADER.pack(MAGIC, VERSION, len(splats), degree, bits, flags, 0),
        _fixed_point(splats.means * FLIPPED, bits),
        # Readers turn 0 and 255 into infinite logits.
        _levels((255 * splats.alpha).clip(1, 254)),
        _levels(255 * (COLOUR_RANGE * splats.sh[:, 0] + 0.5)),
        _levels(16 * (splats.scales + 10)),
        _rotations(splats.quats),
        _harmonics(splats.sh, degree),
    ]
    return gzip.compress(b"".join(parts), 9, mtime=0)


def _fraction_bits(means: NDArray[np.float32]) -> int:
    """Bits after the point, so that the farthest splat fits."""
    farthest = float(np.abs(means).max(initial=0.0))
    bits = MAX_FRACTION_BITS
    while bits > 0 and farthest * (1 << bits) > FIXED_LIMIT:
        bits -= 1
    return bits


def _fixed_point(means: NDArray[np.float32], bits: int) -> bytes:
    fixed = np.rint(means.astype(np.float64) * (1 << bits)).clip(-FIXED_LIMIT, FIXED_LIMIT).astype("<i4")
    return bytes(fixed.reshape(-1, 1).view(np.uint8).reshape(-1, 4)[:, :3].tobytes())


def _levels(values: NDArray[np.floating]) -> bytes:
    return bytes(np.rint(values).clip(0, 255).astype(np.uint8).tobytes())


def _rotations(quats: NDArray[np.float32]) -> bytes:
    """x, y, z of unit quaternions of which w is not negative."""
    unit = quats / np.linalg.norm(quats, axis=1, keepdims=True)
    unit = np.where(unit[:, :1] < 0, -unit, unit)
    return _levels(127.5 * unit[:, 1:] * FLIPPED + 127.5)


def _harmonics(sh: NDArray[np.float32], degree: int) -> bytes:
    count = COEFFICIENTS[degree]
    levels = np.rint(128 * sh[:, 1:count] * FLIPPED_SH[1:count, None]) + 128
    for k in range(1, count):
        # The middle of a step of the kept bits, as other writers have it.
        step = 1 << (8 - SH_BITS[int(k**0.5)])
        levels[:, k - 1] = (levels[:, k - 1] + step // 2) // step * step
    return _levels(levels)
