"""The cloud of a stitched result: those of its windows, moved into one world and thinned anew.

Which points are new has to be seen in order. Moving them, which takes most of the time, need not be done in order, and
writing is left to another thread: numpy works on both without Python's lock.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.batch.seams import Joined
from stream_recon.app.output.cloud import POINTS_NAME
from stream_recon.app.output.files import output_errors
from stream_recon.app.output.in_order import in_order
from stream_recon.app.output.ply import PlyFile
from stream_recon.app.ply import VERTEX, Vertices, positions, taken
from stream_recon.app.transforms import Similarity, transform_points
from stream_recon.app.voxels import VoxelTable, first_of_each

CHUNK = 250_000
"""Points moved at a time."""
THREADS = 8


def write_cloud(folder: Path, joined: Joined, voxel: float) -> None:
    """Write it into ``folder``, one point a voxel of the stitched unit. Raises OutputError."""
    voxels, ply = VoxelTable(voxel), PlyFile(folder / POINTS_NAME)

    def move(vertices: Vertices, transform: Similarity) -> tuple[Vertices, NDArray[np.uint64]]:
        keys = voxels.keys(_move_points(vertices, transform))
        first = first_of_each(keys)
        return taken(vertices, first), keys[first]

    def append(vertices: Vertices, indices: NDArray[np.intp]) -> None:
        ply.append_vertices(taken(vertices, indices))

    chunks = (
        (vertices, transform)
        for window, transform in zip(joined.windows, joined.transforms, strict=True)
        for vertices in _clouds(window.folder / POINTS_NAME)
    )
    try:
        with ThreadPoolExecutor(THREADS, "cloud") as movers, ThreadPoolExecutor(1, "ply") as writer:
            moved = in_order(movers, move, chunks, ahead=2 * THREADS)
            new = ((vertices, voxels.take_new_keys(keys)) for vertices, keys in moved)
            for _ in in_order(writer, append, new, ahead=2 * THREADS):
                pass
    finally:
        ply.close()


def _clouds(path: Path) -> Iterator[Vertices]:
    """The points of a file written by `PlyFile`, some at a time."""
    with output_errors(path), path.open("rb") as file:
        for line in file:
            if line == b"end_header\n":
                break
        while data := bytearray(file.read(CHUNK * VERTEX.itemsize)):
            yield np.frombuffer(data, VERTEX, count=len(data) // VERTEX.itemsize)


def _move_points(vertices: Vertices, transform: Similarity) -> NDArray[np.float32]:
    """Move points in place; where they are now, [N, 3]."""
    xyz = transform_points(transform.matrix, positions(vertices))
    for axis, name in enumerate("xyz"):
        vertices[name] = xyz[:, axis]
    return xyz
