"""The files of a stitched result, made from those of its windows without decoding or unprojecting anything again.

Depth files are taken over as they are: the cameras say what their depth has to be multiplied with.

The cloud of a stitched result: those of its windows, moved into one world and thinned anew.

Which points are new has to be seen in order, but in each part of the table of voxels for itself. Everything else about
points is done out of order and only written in it: numpy works on them without Python's lock.

What the windows' runs told of themselves, as one run of the whole would have told it.
"""

import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.batch.chunks import AlignedChunks
from stream_recon.app.batch.manifest import Mark, recorded_files
from stream_recon.app.core.ply import Vertices, positions, taken
from stream_recon.app.core.transforms import Similarity, transform_points
from stream_recon.app.core.voxels import VoxelTable, first_of_each
from stream_recon.app.pipeline.health import HealthMonitor, LowQualityInterval, low_quality_intervals
from stream_recon.app.result.cameras import Camera, CameraFiles
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.depth import DEPTH_FOLDER, depth_path
from stream_recon.app.result.files import PlyFile, in_order, output_errors, stored_points
from stream_recon.configs.errors import OutputError

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
            self._evaluators = stack.enter_context(ThreadPoolExecutor(threads, "gather"))
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
        for vertices in in_order(self._evaluators, _gather, looked_up, self._ahead):
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


THREADS = 8


class StitchedFiles:
    """All but ``run.json``, written as windows come. Close it."""

    def __init__(self, folder: Path, voxel: float) -> None:
        """Begin the files in ``folder``. Raises OutputError."""
        self.cameras: list[Camera] = []
        """Those written, in the order of their frames."""
        self._segment = 0
        """What a window's own numbers of stretches are raised by: it counts them from its beginning."""
        self.marks: dict[str, Mark] = {}
        """Marks of the depth files taken over, by their names in the folder."""
        self._folder = folder
        with output_errors(folder):
            (folder / DEPTH_FOLDER).mkdir(exist_ok=True)
        with ExitStack() as stack:
            self._files = CameraFiles(folder)
            stack.callback(self._files.close)
            self._cloud = StitchedCloud(folder, voxel)
            stack.callback(self._cloud.close)
            self._pool = stack.enter_context(ThreadPoolExecutor(THREADS, "stitch"))
            self.close = stack.pop_all().close

    def add_points(self, joined: AlignedChunks, number: int) -> None:
        """Take over the cloud of a window; each once, in their order. Raises OutputError."""
        self._cloud.add(joined.windows[number].folder, joined.transforms[number])

    def add_frames(self, joined: AlignedChunks, number: int) -> None:
        """Take over the frames of a window whose seams are known; each once, in their order.

        Raises:
            OutputError: no room, or a damaged window.
        """
        window, transform = joined.windows[number].folder, joined.transforms[number]
        marks, cameras = recorded_files(window), list(joined.frames_of(number))
        if not cameras:
            return
        if number:
            before = next(c for c in joined.windows[number - 1].cameras if c.index == cameras[0].index)
            self._segment += before.segment - cameras[0].segment
        files = self._pool.map(lambda camera: _take_over(camera.index, window, self._folder, marks), cameras)
        lasts = transform.move_pose(np.stack([camera.T_world_camera for camera in cameras]))
        firsts = transform.move_pose(np.stack([camera.T_world_camera_causal for camera in cameras]))
        for camera, last, first in zip(cameras, lasts, firsts, strict=True):
            joined_camera = replace(
                camera,
                T_world_camera=last,
                T_world_camera_causal=first,
                depth_scale=camera.depth_scale * transform.scale,
                depth_scale_causal=camera.depth_scale_causal * transform.scale,
                segment=camera.segment + self._segment,
            )
            self.cameras.append(joined_camera)
            self._files.append(joined_camera)
        self.marks.update(files)


def _take_over(index: int, window: Path, folder: Path, marks: Mapping[str, Mark]) -> tuple[str, Mark]:
    """Give a frame's depth file a second name, or copy it; its name in the folder, and its mark. Raises OutputError."""
    source, target = depth_path(window, index), depth_path(folder, index)
    name = target.relative_to(folder).as_posix()
    if name not in marks:
        raise OutputError(f"{source} is missing")
    try:
        target.hardlink_to(source)
    except FileNotFoundError as error:
        raise OutputError(f"{source} is missing") from error
    except OSError:
        # Not every file system can.
        with output_errors(target):
            shutil.copyfile(source, target)
    return name, marks[name]


def stitched_health(joined: AlignedChunks) -> dict[str, Any]:
    """Of ``run.json``: each window counts for the frames that were taken from it."""
    values: list[float] = []
    spans: list[LowQualityInterval] = []
    last = -1
    for number, window in enumerate(joined.windows):
        cameras = list(joined.frames_of(number))
        values += [camera.health for camera in cameras if camera.health is not None]
        told = window.run.get("health")
        for span in low_quality_intervals(told) if isinstance(told, dict) else []:
            inside = [camera for camera in cameras if span.first <= camera.index <= span.last]
            if not inside:
                continue
            part = _span(span.why, inside)
            if spans and inside[0] is cameras[0] and spans[-1].last == last:
                # It goes on over the seam.
                before = spans.pop()
                part = dataclasses.replace(before, last=part.last, end=part.end, frames=before.frames + part.frames)
            spans.append(part)
        last = cameras[-1].index if cameras else last
    return HealthMonitor(values, spans).summary()


def stitched_segments(joined: AlignedChunks) -> tuple[dict[str, Any], ...]:
    """Of ``run.json``: those that begin with a frame that was taken from the window that told of them."""
    return tuple(_segments(joined))


def _segments(joined: AlignedChunks) -> Iterator[dict[str, Any]]:
    for number, window in enumerate(joined.windows):
        taken = {camera.index for camera in joined.frames_of(number)}
        told = window.run.get("segments")
        yield from (segment for segment in (told if isinstance(told, list) else []) if segment["index"] in taken)


def _span(why: str, cameras: Sequence[Camera]) -> LowQualityInterval:
    first, last = cameras[0], cameras[-1]
    return LowQualityInterval(first.index, last.index, first.timestamp, last.timestamp, len(cameras), why)
