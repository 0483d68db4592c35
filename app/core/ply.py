"""Coloured points: layout and header in the PLY format (Turk, 1994), binary little-endian, and uniform samples."""

import numpy as np
from numpy.typing import NDArray

CHANNELS = ("red", "green", "blue")
VERTEX = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("red", "u1"), ("green", "u1"), ("blue", "u1")])
"""Layout of one vertex in the file."""
Vertices = NDArray[np.void]
"""Points [N] with dtype `VERTEX`."""
COUNT_DIGITS = 20
"""Characters for the vertex count and its filler: a 64-bit count fits, and the header keeps its length."""


def header(count: int) -> bytes:
    """Header of a file with ``count`` vertices; its length does not depend on the count."""
    number = str(count)
    filler = "." * (COUNT_DIGITS - len(number))
    properties = "".join(f"property float {n}\n" for n in "xyz")
    properties += "".join(f"property uchar {n}\n" for n in CHANNELS)
    return (
        f"ply\nformat binary_little_endian 1.0\ncomment stream-recon {filler}\n"
        f"element vertex {number}\n{properties}end_header\n"
    ).encode("ascii")


def vertices_of(xyz: NDArray[np.float32], rgb: NDArray[np.uint8]) -> Vertices:
    """Vertices of points [N, 3] with colours [N, 3]."""
    vertices = np.empty(len(xyz), VERTEX)
    for axis, name in enumerate("xyz"):
        vertices[name] = xyz[:, axis]
    for channel, name in enumerate(CHANNELS):
        vertices[name] = rgb[:, channel]
    return vertices


def positions(vertices: Vertices) -> NDArray[np.float32]:
    """Positions [N, 3] of vertices."""
    return np.stack([vertices[axis] for axis in "xyz"], axis=1)


def colours(vertices: Vertices) -> NDArray[np.uint8]:
    """Colours [N, 3] of vertices."""
    return np.stack([vertices[channel] for channel in CHANNELS], axis=1)


def select_vertices(vertices: Vertices, indices: NDArray[np.intp]) -> Vertices:
    """Vertices at ``indices``, copied as bytes: numpy's own copy, field by field, takes ten times as long."""
    return vertices.view(np.dtype((np.void, VERTEX.itemsize))).take(indices)


def subsample(vertices: Vertices, max_count: int) -> Vertices:
    """A uniform sample of at most ``max_count`` points, in their order."""
    return np.array(vertices) if len(vertices) <= max_count else vertices[uniform_indices(len(vertices), max_count)]


def uniform_indices(count: int, max_count: int) -> NDArray[np.intp]:
    """Ascending indices below ``count``: all, or one random index in each of ``max_count`` equal intervals.

    Regular steps would alias with the rows of images, and make visible patterns.
    """
    if count <= max_count or max_count < 1:
        return np.arange(min(count, max(max_count, 0)))
    jitter = np.random.default_rng(0).random(max_count)
    return ((np.arange(max_count) + jitter) * (count / max_count)).astype(np.intp).clip(0, count - 1)
