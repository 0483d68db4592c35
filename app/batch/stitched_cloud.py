"""The cloud of a stitched result: those of its windows, moved into one world and thinned anew.

Which points are new has to be seen in order, but in each part of the table of voxels for itself. Moving points need not
be done in order, and writing is left to another thread: numpy works on all three without Python's lock.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
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
MOST_THREADS = 32
MOST_PARTS_BITS = 4


def write_cloud(folder: Path, joined: Joined, voxel: float) -> None:
    """Write it into ``folder``, one point a voxel of the stitched unit. Raises OutputError."""
    voxels, ply = VoxelTable(voxel), PlyFile(folder / POINTS_NAME)
    threads = min(os.cpu_count() or 1, MOST_THREADS)
    bits = min(threads.bit_length() - 1, MOST_PARTS_BITS)

    def move(vertices: Vertices, transform: Similarity) -> tuple[Vertices, NDArray[np.uint64], list[NDArray[np.intp]]]:
        keys = voxels.keys(_move_points(vertices, transform))
        first = first_of_each(keys)
        keys = keys[first]
        return taken(vertices, first), keys, voxels.parts(keys, bits)

    def append(vertices: Vertices, new: Sequence[Future[NDArray[np.intp]]]) -> None:
        indices = np.concatenate([part.result() for part in new])
        # In the order in which they came, whatever part of the table they belong to.
        indices.sort()
        ply.append_vertices(taken(vertices, indices))

    def new_in(keys: NDArray[np.uint64], part: NDArray[np.intp]) -> NDArray[np.intp]:
        return part[voxels.take_new_keys(keys[part])]

    chunks = (
        (vertices, transform)
        for window, transform in zip(joined.windows, joined.transforms, strict=True)
        for vertices in _clouds(window.folder / POINTS_NAME)
    )
    try:
        with ExitStack() as stack:
            movers = stack.enter_context(ThreadPoolExecutor(threads, "cloud"))
            writer = stack.enter_context(ThreadPoolExecutor(1, "ply"))
            # A thread for each part of the table: it meets its voxels in their order.
            lookers = [stack.enter_context(ThreadPoolExecutor(1, "voxels")) for _ in range(1 << bits)]
            new = (
                (vertices, [looker.submit(new_in, keys, part) for looker, part in zip(lookers, parts, strict=True)])
                for vertices, keys, parts in in_order(movers, move, chunks, ahead=2 * threads)
            )
            for _ in in_order(writer, append, new, ahead=2 * threads):
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
