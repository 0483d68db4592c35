"""A box to cut a scene by, and points and triangles cut by it.

A box lies in upright axes: those of the program's GLB files (x right, y up, z backward), turned about y.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.gltf import Primitive
from stream_recon.configs.errors import ConfigError

FORM = "X0,X1,Y0,Y1,Z0,Z1[,TURN]"
"""Text form of a box: borders in the unit of the result, and degrees."""


@dataclass(frozen=True)
class Box:
    """Borders of a box in the axes of GLB files, turned by ``turn_deg`` about the y axis."""

    low: tuple[float, float, float]
    high: tuple[float, float, float]
    turn_deg: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Box":
        """The box of a text, see `FORM`. Raises ConfigError."""
        try:
            x0, x1, y0, y1, z0, z1, *turn = (float(part) for part in text.split(","))
        except ValueError:
            raise ConfigError(f"--box {text}: use subject or {FORM}, such as -1,1,0,2.5,-3,0") from None
        numbers = np.array([x0, x1, y0, y1, z0, z1, *turn])
        if len(turn) > 1 or not np.isfinite(numbers).all() or not (x0 < x1 and y0 < y1 and z0 < z1):
            raise ConfigError(f"--box {text}: use {FORM} with X0 < X1, Y0 < Y1 and Z0 < Z1")
        return cls((x0, y0, z0), (x1, y1, z1), turn[0] if turn else 0.0)

    @property
    def text(self) -> str:
        """The box as `parse` reads it, to a ten-thousandth of its size."""
        size = max(h - low for low, h in zip(self.low, self.high, strict=True))
        digits = max(0, 4 - int(np.floor(np.log10(max(size, 1e-12)))))
        borders = [f"{value:.{digits}f}" for pair in zip(self.low, self.high, strict=True) for value in pair]
        return ",".join([*borders, f"{self.turn_deg:g}"] if self.turn_deg else borders)

    @cached_property
    def R_box_gltf(self) -> NDArray[np.float64]:
        """Rotation [3, 3] from the axes of GLB files to those of the box."""
        angle = np.radians(self.turn_deg)
        c, s = np.cos(angle), np.sin(angle)
        return np.array([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]])

    def planes(self, R_gltf_world: NDArray[np.floating]) -> NDArray[np.float64]:
        """The six sides [6, 4] in the world: a point p is inside where each (n, d) has n.p + d >= 0."""
        R = self.R_box_gltf @ R_gltf_world
        low = np.concatenate([R, -np.array(self.low)[:, None]], axis=1)
        high = np.concatenate([-R, np.array(self.high)[:, None]], axis=1)
        return np.concatenate([low, high])

    def corners(self, R_gltf_world: NDArray[np.floating]) -> NDArray[np.float64]:
        """The corners [8, 3] in the world; bits of the number are the sides along x, y, z."""
        bits = (np.arange(8)[:, None] >> np.arange(3)) & 1
        return np.where(bits, self.high, self.low) @ (self.R_box_gltf @ R_gltf_world)

    def contains(self, xyz: NDArray[np.floating], R_gltf_world: NDArray[np.floating]) -> NDArray[np.bool_]:
        """Which points [N, 3] of the world are inside or on the border."""
        local = np.asarray(xyz, np.float64) @ (self.R_box_gltf @ R_gltf_world).T
        return np.asarray(((local >= self.low) & (local <= self.high)).all(axis=1))


def cut_triangles(
    xyz: NDArray[np.floating], faces: NDArray[np.integer], values: NDArray[np.floating], planes: NDArray[np.floating]
) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.float64]]:
    """Triangles cut along planes; what is behind a plane is left out.

    Args:
        xyz: positions [N, 3].
        faces: [M, 3].
        values: what vertices have besides [N, k]; it is interpolated where an edge is cut.
        planes: [P, 4], see `Box.planes`.

    Returns:
        Positions, faces and values of the rest, without unused vertices.
    """
    rows = np.concatenate([np.asarray(xyz, np.float64), np.asarray(values, np.float64)], axis=1)
    kept: NDArray[np.int64] = np.asarray(faces, np.int64)
    for plane in np.asarray(planes, np.float64):
        rows, kept = _cut(rows, kept, rows[:, :3] @ plane[:3] + plane[3])
    used, numbers = np.unique(kept, return_inverse=True)
    rows = rows[used]
    return rows[:, :3], numbers.reshape(-1, 3).astype(np.int32), rows[:, 3:]


def cut_primitive(primitive: Primitive, planes: NDArray[np.floating]) -> Primitive:
    """A primitive of triangles or points cut along planes of its axes [P, 4]; its texture stays as it is."""
    if primitive.faces is None:
        inside = (primitive.xyz @ planes[:, :3].T + planes[:, 3] >= 0).all(axis=1)
        rgb = None if primitive.rgb is None else primitive.rgb[inside]
        return replace(primitive, xyz=primitive.xyz[inside], rgb=rgb)
    none = np.zeros((len(primitive.xyz), 0))
    unsure = None if primitive.unsure is None else primitive.unsure[:, None]
    parts = [none if part is None else part for part in (primitive.uv, unsure, primitive.rgb)]
    xyz, faces, values = cut_triangles(primitive.xyz, primitive.faces, np.concatenate(parts, axis=1), planes)
    first, second = np.cumsum([part.shape[1] for part in parts[:2]])
    return replace(
        primitive,
        xyz=xyz.astype(np.float32),
        faces=faces,
        uv=None if primitive.uv is None else values[:, :first].astype(np.float32),
        unsure=None if unsure is None else values[:, first].astype(np.float32),
        rgb=None if primitive.rgb is None else np.rint(values[:, second:]).astype(np.uint8),
    )


def _cut(
    rows: NDArray[np.float64], faces: NDArray[np.int64], distance: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Vertices and faces in front of a plane. ``distance`` [N]: signed, of the vertices."""
    inside = distance >= 0
    count = inside[faces].sum(axis=1)
    one, two = faces[count == 1], faces[count == 2]
    # The corner that is alone on its side comes first; the order of the corners stays.
    lone = np.concatenate([inside[one].argmax(axis=1), inside[two].argmin(axis=1)])
    turned = np.take_along_axis(np.concatenate([one, two]), (lone[:, None] + np.arange(3)) % 3, axis=1)
    a, b, c = turned.T
    ends = np.sort(np.concatenate([np.stack([a, b], axis=1), np.stack([a, c], axis=1)]), axis=1)
    edges, which = np.unique(ends, axis=0, return_inverse=True)
    u, v = edges.T
    share = (distance[u] / (distance[u] - distance[v]))[:, None] if len(edges) else np.zeros((0, 1))
    ab, ac = (len(rows) + which.reshape(2, -1)) if len(ends) else np.zeros((2, 0), np.int64)
    rows = np.concatenate([rows, rows[u] + share * (rows[v] - rows[u])])
    first, second = slice(0, len(one)), slice(len(one), None)
    parts = [
        faces[count == 3],
        np.stack([a[first], ab[first], ac[first]], axis=1),
        np.stack([ab[second], b[second], c[second]], axis=1),
        np.stack([ab[second], c[second], ac[second]], axis=1),
    ]
    return rows, np.concatenate(parts)
