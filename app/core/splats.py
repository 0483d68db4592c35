"""Gaussian splats of a scene, and their file in the PLY layout of 3D Gaussian splatting (Kerbl et al. 2023).

A file holds, for each splat: ``x, y, z``; normals, which are 0; ``f_dc_*``, the colour of degree 0 of its spherical
harmonics; ``f_rest_*``, those of higher degree, all of red, then green, then blue; ``opacity`` as a logit; ``scale_*``
as logarithms; ``rot_*``, a quaternion w, x, y, z. All are little-endian float32.
"""

import io
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.input_file import open_regular
from stream_recon.app.core.transforms import rotation_matrix
from stream_recon.configs.errors import OutputError

SH_0 = 0.28209479177387814
"""Value of the spherical harmonic of degree 0."""
MAX_HEADER_BYTES = 1 << 14
COEFFICIENTS = {0: 1, 1: 4, 2: 9, 3: 16}
"""Number of spherical harmonics up to each degree."""


@dataclass(frozen=True)
class Splats:
    """Gaussians of a scene in world axes."""

    means: NDArray[np.float32]  # [N, 3]
    scales: NDArray[np.float32]
    """[N, 3] logarithms of the standard deviations along the axes."""
    quats: NDArray[np.float32]
    """[N, 4] rotations from the axes to the world, w first, of any length but 0."""
    opacities: NDArray[np.float32]
    """[N] logits."""
    sh: NDArray[np.float32]
    """[N, K, 3] spherical harmonics of red, green and blue; K is 1, 4, 9 or 16."""

    def __len__(self) -> int:
        return len(self.means)

    @property
    def sh_degree(self) -> int:
        return next(degree for degree, count in COEFFICIENTS.items() if count == self.sh.shape[1])

    @property
    def rgb(self) -> NDArray[np.float32]:
        """Colours [N, 3] from 0 to 1, seen from all sides alike."""
        return np.asarray((0.5 + SH_0 * self.sh[:, 0]).clip(0, 1), np.float32)

    @property
    def alpha(self) -> NDArray[np.float32]:
        """Opacities [N] from 0 to 1."""
        return np.asarray(1 / (1 + np.exp(-self.opacities.astype(np.float64))), np.float32)

    @property
    def covariances(self) -> NDArray[np.float32]:
        """[N, 3, 3]."""
        axes = rotation_matrix(np.roll(self.quats, -1, axis=1)) * np.exp(self.scales)[:, None]
        return np.asarray(axes @ np.swapaxes(axes, 1, 2), np.float32)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> "Splats":
        """Splats at ``rows`` (numbers or a mask)."""
        return Splats(self.means[rows], self.scales[rows], self.quats[rows], self.opacities[rows], self.sh[rows])

    def most_visible(self, max_count: int) -> "Splats":
        """At most ``max_count`` splats: those of the largest area times opacity, in their order."""
        if len(self) <= max_count:
            return self
        area = np.sort(self.scales, axis=1)[:, 1:].sum(axis=1)
        weight = area + np.log(np.maximum(self.alpha, 1e-12))
        return self.take(np.sort(np.argpartition(-weight, max_count)[:max_count]))

    def scaled(self, centre: NDArray[np.floating], scale: float) -> "Splats":
        """The splats in a world where a point p is at ``p * scale + centre``."""
        means = self.means.astype(np.float64) * scale + centre
        return replace(self, means=means.astype(np.float32), scales=self.scales + np.float32(np.log(scale)))


def property_names(sh_degree: int) -> list[str]:
    """Names of the values of a splat in their order in a file."""
    rest = 3 * (COEFFICIENTS[sh_degree] - 1)
    return [
        *("x", "y", "z", "nx", "ny", "nz"),
        *(f"f_dc_{k}" for k in range(3)),
        *(f"f_rest_{k}" for k in range(rest)),
        "opacity",
        *(f"scale_{k}" for k in range(3)),
        *(f"rot_{k}" for k in range(4)),
    ]


def write_splats(file: BinaryIO, splats: Splats) -> None:
    """Write a PLY file. Raises OSError."""
    names = property_names(splats.sh_degree)
    head = "".join(f"property float {name}\n" for name in names)
    file.write(
        f"ply\nformat binary_little_endian 1.0\ncomment stream-recon\nelement vertex {len(splats)}\n{head}"
        "end_header\n".encode("ascii")
    )
    table = np.zeros((len(splats), len(names)), "<f4")
    rest = 9 + 3 * (splats.sh.shape[1] - 1)
    table[:, :3] = splats.means
    table[:, 6:9] = splats.sh[:, 0]
    table[:, 9:rest] = np.swapaxes(splats.sh[:, 1:], 1, 2).reshape(len(splats), -1)
    table[:, rest] = splats.opacities
    table[:, rest + 1 : rest + 4] = splats.scales
    table[:, rest + 4 :] = splats.quats / np.linalg.norm(splats.quats, axis=1, keepdims=True)
    file.write(table.tobytes())


def read_splats(path: Path) -> Splats:
    """Read a PLY file of splats. Raises OutputError where it is missing, damaged, or has other points."""
    try:
        with open_regular(path) as file:
            return _read(file)
    except (OSError, ValueError) as error:
        raise OutputError(f"{path} has no Gaussian splats that can be read: {error}") from error


def splats_bytes(splats: Splats) -> bytes:
    """The content of a PLY file."""
    file = io.BytesIO()
    write_splats(file, splats)
    return file.getvalue()


def _read(file: BinaryIO) -> Splats:
    count, names = _read_header(file)
    known = (d for d in COEFFICIENTS if set(property_names(d)) - _NORMALS == names.keys() - _NORMALS)
    degree = next(known, None)
    if degree is None:
        raise ValueError("it has other values than splats have")
    start, size = file.tell(), count * 4 * len(names)
    if file.seek(0, os.SEEK_END) - start < size:
        raise ValueError("it is cut off")
    file.seek(start)
    table = np.frombuffer(file.read(size), "<f4").reshape(count, len(names)).astype(np.float32)

    def columns(*properties: str) -> NDArray[np.float32]:
        return np.ascontiguousarray(table[:, [names[name] for name in properties]])

    higher_names = [f"f_rest_{k}" for k in range(3 * (COEFFICIENTS[degree] - 1))]
    dc = columns("f_dc_0", "f_dc_1", "f_dc_2")[:, None]
    higher = np.swapaxes(columns(*higher_names).reshape(count, 3, -1), 1, 2) if degree else dc[:, :0]
    splats = Splats(
        columns("x", "y", "z"),
        columns("scale_0", "scale_1", "scale_2"),
        columns("rot_0", "rot_1", "rot_2", "rot_3"),
        columns("opacity")[:, 0],
        np.concatenate([dc, higher], axis=1),
    )
    if not all(np.isfinite(part).all() for part in vars(splats).values()):
        raise ValueError("a value is not finite")
    if count and (np.linalg.norm(splats.quats, axis=1) < 1e-12).any():
        raise ValueError("a rotation is 0")
    return splats


_NORMALS = {"nx", "ny", "nz"}


def _read_header(file: BinaryIO) -> tuple[int, dict[str, int]]:
    """Number of splats, and the column of each of their values; the file is then at the first of them."""
    header = re.match(rb"ply\s*\n(.*?\n)??end_header\s*?\n", file.read(MAX_HEADER_BYTES), re.DOTALL)
    count, names = -1, dict[str, int]()
    for line in header[1].decode("ascii", "replace").splitlines() if header and header[1] else ():
        match line.split():
            case ["format", *form] if form != ["binary_little_endian", "1.0"]:
                raise ValueError("it is not binary and little-endian")
            case ["element", "vertex", number] if count < 0 and number.isdecimal():
                count = int(number)
            case ["element", *_]:
                raise ValueError("it has other elements than splats")
            case ["property", "float", name] if name not in names:
                names[name] = len(names)
            case ["property", *_]:
                raise ValueError("it has other values than splats have")
    if header is None or count < 0:
        raise ValueError("it is no PLY file of splats")
    file.seek(header.end())
    return count, names
