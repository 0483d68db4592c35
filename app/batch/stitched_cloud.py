"""The cloud of a stitched result: those of its windows, moved into one world and thinned anew.

Which points are new has to be seen in order. Moving them, which takes most of the time, need not be done in order, and
writing is left to another thread: numpy works on both without Python's lock.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.batch.seams import Joined
from stream_recon.app.output.files import output_errors
from stream_recon.app.output.ply import VERTEX, PlyFile
from stream_recon.app.output.writer import POINTS_NAME
from stream_recon.app.transforms import Similarity, transform_points
from stream_recon.app.voxels import VoxelTable, first_of_each

CHUNK = 250_000
"""Points moved at a time."""
THREADS = 8

Vertices = NDArray[np.void]
Result = TypeVar("Result")


def write_cloud(folder: Path, joined: Joined, voxel: float) -> None:
    """Write it into ``folder``, one point a voxel of the stitched unit. Raises OutputError."""
    voxels, ply = VoxelTable(voxel), PlyFile(folder / POINTS_NAME)

    def move(vertices: Vertices, transform: Similarity) -> tuple[Vertices, NDArray[np.uint64]]:
        keys = voxels.keys(_move_points(vertices, transform))
        first = first_of_each(keys)
        return _taken(vertices, first), keys[first]

    def append(vertices: Vertices, indices: NDArray[np.intp]) -> None:
        ply.append_vertices(_taken(vertices, indices))

    chunks = (
        (vertices, transform)
        for window, transform in zip(joined.windows, joined.transforms, strict=True)
        for vertices in _clouds(window.folder / POINTS_NAME)
    )
    try:
        with ThreadPoolExecutor(THREADS, "cloud") as movers, ThreadPoolExecutor(1, "ply") as writer:
            moved = _in_order(movers, move, chunks)
            new = ((vertices, voxels.take_new_keys(keys)) for vertices, keys in moved)
            for _ in _in_order(writer, append, new):
                pass
    finally:
        ply.close()


def _in_order(
    pool: Executor, work: Callable[..., Result], arguments: Iterable[tuple[Any, ...]], ahead: int = 2 * THREADS
) -> Iterator[Result]:
    """As the pool's own ``map``, which would read all of the arguments at once."""
    waiting: deque[Future[Result]] = deque()
    for some in arguments:
        waiting.append(pool.submit(work, *some))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


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
    xyz = transform_points(transform.matrix, np.stack([vertices[axis] for axis in "xyz"], axis=1))
    for axis, name in enumerate("xyz"):
        vertices[name] = xyz[:, axis]
    return xyz


def _taken(vertices: Vertices, indices: NDArray[np.intp]) -> Vertices:
    """Some of the points, copied as bytes: field by field, as numpy would otherwise, takes ten times as long."""
    return vertices.view(np.dtype((np.void, VERTEX.itemsize))).take(indices)
