"""The cloud of a stitched result: those of its windows, moved into one world and thinned anew.

Which points are new has to be seen in order, but in each part of the table of voxels for itself. Everything else about
points is done out of order and only written in it: numpy works on them without Python's lock.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.ply import Vertices, positions, taken
from stream_recon.app.core.transforms import Similarity, transform_points
from stream_recon.app.core.voxels import VoxelTable, first_of_each
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.in_order import in_order
from stream_recon.app.result.ply import PlyFile, stored_points

CHUNK = 250_000
"""Points moved at a time."""
MOST_THREADS = 32
MOST_PARTS_BITS = 4


class StitchedCloud:
    """A cloud that windows are added to in their order; one point a voxel of the stitched unit. Close it."""

    def __init__(self, folder: Path, voxel: float) -> None:
        """Begin the file of the cloud in ``folder``. Raises OutputError."""
        self._voxels, self._ply = VoxelTable(voxel), PlyFile(folder / POINTS_NAME)
        threads = min(os.cpu_count() or 1, MOST_THREADS)
        self._bits = min(threads.bit_length() - 1, MOST_PARTS_BITS)
        self._ahead = 2 * threads
        with ExitStack() as stack:
            stack.callback(self._ply.close)
            self._movers = stack.enter_context(ThreadPoolExecutor(threads, "cloud"))
            # They wait for the lookers, which must not wait for them: hence not in the movers' threads.
            self._gatherers = stack.enter_context(ThreadPoolExecutor(threads, "gather"))
            # A thread for each part of the table: it meets its voxels in their order.
            self._lookers = [stack.enter_context(ThreadPoolExecutor(1, "voxels")) for _ in range(1 << self._bits)]
            self.close = stack.pop_all().close

    def add(self, window: Path, transform: Similarity) -> None:
        """Take in the points of a window's folder, which ``transform`` moves. Raises OutputError."""
        path = window / POINTS_NAME
        count = len(stored_points(path))
        chunks = ((path, begin, transform) for begin in range(0, count, CHUNK))
        looked_up = (
            (
                vertices,
                [looker.submit(self._new_in, keys, part) for looker, part in zip(self._lookers, parts, strict=True)],
            )
            for vertices, keys, parts in in_order(self._movers, self._move, chunks, self._ahead)
        )
        for vertices in in_order(self._gatherers, _gather, looked_up, self._ahead):
            self._ply.append_vertices(vertices)

    def _move(
        self, path: Path, begin: int, transform: Similarity
    ) -> tuple[Vertices, NDArray[np.uint64], list[NDArray[np.intp]]]:
        vertices = np.array(stored_points(path)[begin : begin + CHUNK])
        keys = self._voxels.keys(_move_points(vertices, transform))
        first = first_of_each(keys)
        keys = keys[first]
        return taken(vertices, first), keys, self._voxels.parts(keys, self._bits)

    def _new_in(self, keys: NDArray[np.uint64], part: NDArray[np.intp]) -> NDArray[np.intp]:
        return part[self._voxels.take_new_keys(keys[part])]


def _gather(vertices: Vertices, new: Sequence[Future[NDArray[np.intp]]]) -> Vertices:
    indices = np.concatenate([part.result() for part in new])
    # In the order in which they came, whatever part of the table they belong to.
    indices.sort()
    return taken(vertices, indices)


def _move_points(vertices: Vertices, transform: Similarity) -> NDArray[np.float32]:
    """Move points in place; where they are now, [N, 3]."""
    xyz = transform_points(transform.matrix, positions(vertices))
    for axis, name in enumerate("xyz"):
        vertices[name] = xyz[:, axis]
    return xyz
