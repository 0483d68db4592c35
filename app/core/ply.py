"""Coloured points in the PLY format (Turk, 1994), binary little-endian: layout and header for whoever writes them."""

import numpy as np
from numpy.typing import NDArray

VERTEX = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("red", "u1"), ("green", "u1"), ("blue", "u1")])
Vertices = NDArray[np.void]
"""Points [N], laid out as `VERTEX` without gaps between them."""
# Room for the count: the comment in front of it shrinks as the number gets longer.
COUNT_DIGITS = 20


def header(count: int) -> bytes:
    """The header of a file with ``count`` vertices; always of the same length."""
    number = str(count)
    filler = "." * (COUNT_DIGITS - len(number))
    properties = "".join(f"property float {n}\n" for n in "xyz")
    properties += "".join(f"property uchar {n}\n" for n in ("red", "green", "blue"))
    return (
        f"ply\nformat binary_little_endian 1.0\ncomment stream-recon {filler}\n"
        f"element vertex {number}\n{properties}end_header\n"
    ).encode("ascii")


def vertices_of(xyz: NDArray[np.float32], rgb: NDArray[np.uint8]) -> Vertices:
    """Points [N, 3] with colours [N, 3] as they lie in a file."""
    vertices = np.empty(len(xyz), VERTEX)
    for axis, name in enumerate("xyz"):
        vertices[name] = xyz[:, axis]
    for channel, name in enumerate(("red", "green", "blue")):
        vertices[name] = rgb[:, channel]
    return vertices


def positions(vertices: Vertices) -> NDArray[np.float32]:
    """Where points are, [N, 3]."""
    return np.stack([vertices[axis] for axis in "xyz"], axis=1)


def taken(vertices: Vertices, indices: NDArray[np.intp]) -> Vertices:
    """Some of the points, copied as bytes: field by field, as numpy would otherwise, takes ten times as long."""
    return vertices.view(np.dtype((np.void, VERTEX.itemsize))).take(indices)
