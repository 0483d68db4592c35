"""Files of a stitched result, made from those of its chunks without decoding or unprojecting anything again.

Depth files are linked as they are: the cameras have the factor for their depth. The cloud is that of the chunks,
transformed to one coordinate system and thinned again to one point per voxel.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.batch.chunks import AlignedChunks
from stream_recon.app.batch.manifest import Checksum, recorded_files
from stream_recon.app.core.cores import usable_cores
from stream_recon.app.core.input_file import read_file
from stream_recon.app.core.output_file import write_new
from stream_recon.app.core.ply import Vertices, positions, select_vertices
from stream_recon.app.core.transforms import Similarity, transform_points
from stream_recon.app.core.voxels import VoxelTable, first_of_each
from stream_recon.app.result.cameras import CameraFiles, FrameCamera
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.depth import DEPTH_FOLDER, depth_path
from stream_recon.app.result.files import PlyFile, in_order, output_errors, stored_points
from stream_recon.app.run.health import HealthMonitor, LowQualityInterval, low_quality_intervals, recorded_pictures
from stream_recon.configs.errors import OutputError

BLOCK_POINTS = 250_000
"""Points transformed at a time: 15 bytes each, some 4 MB, so that all threads together take little memory."""
MAX_CLOUD_THREADS = 32
"""Most threads for the cloud: more would wait for the writer."""
LINK_THREADS = 8
"""Threads that link or copy depth files: on a network drive, each waits."""


class StitchedCloud:
    """Cloud to which chunks are added in order; one point per voxel of the stitched result. Close it."""

    def __init__(self, folder: Path, voxel: float, block_points: int = BLOCK_POINTS) -> None:
        """Begin the cloud's file in ``folder``; ``voxel`` is the voxel's edge. Raises OutputError."""
        self._block_points = block_points
        self._voxels, self._ply = VoxelTable(voxel), PlyFile(folder / POINTS_NAME)
        self._threads = min(usable_cores(), MAX_CLOUD_THREADS)
        self._pool = ThreadPoolExecutor(self._threads, "cloud")

    def add(self, chunk: Path, T_world_chunk: Similarity) -> None:
        """Add the points of a chunk's folder. Raises OutputError."""
        path = chunk / POINTS_NAME
        count = len(stored_points(path))
        blocks = ((path, begin, T_world_chunk) for begin in range(0, count, self._block_points))
        for vertices, keys in in_order(self._pool, self._transform, blocks, 2 * self._threads):
            self._ply.append_vertices(select_vertices(vertices, self._voxels.take_new_keys(keys)))

    def _transform(self, path: Path, begin: int, T_world_chunk: Similarity) -> tuple[Vertices, NDArray[np.uint64]]:
        """The first of one block's points in each voxel, in world coordinates, and their voxel keys."""
        vertices = np.array(stored_points(path)[begin : begin + self._block_points])
        keys = self._voxels.keys(_transform_in_place(vertices, T_world_chunk))
        first = first_of_each(keys)
        return select_vertices(vertices, first), keys[first]

    def close(self) -> None:
        self._pool.shutdown()
        self._ply.close()


def _transform_in_place(vertices: Vertices, transform: Similarity) -> NDArray[np.float32]:
    """Transform points in place. Returns their new positions, [N, 3]."""
    xyz = transform_points(transform.matrix, positions(vertices))
    for axis, name in enumerate("xyz"):
        vertices[name] = xyz[:, axis]
    return xyz


class StitchedFiles:
    """All files but ``run.json``, written as chunks come. Close it."""

    def __init__(self, folder: Path, voxel: float) -> None:
        """Begin the files in ``folder``. Raises OutputError."""
        self.cameras: list[FrameCamera] = []
        """Cameras written, in the order of their frames."""
        self._segment_offset = 0
        """Added to a chunk's segment numbers, which it counts from its beginning."""
        self.checksums: dict[str, Checksum] = {}
        """Checksums of the depth files, by their names in the folder."""
        self._folder = folder
        with output_errors(folder):
            (folder / DEPTH_FOLDER).mkdir(exist_ok=True)
        with ExitStack() as stack:
            self._files = CameraFiles(folder)
            stack.callback(self._files.close)
            self._cloud = StitchedCloud(folder, voxel)
            stack.callback(self._cloud.close)
            self._pool = stack.enter_context(ThreadPoolExecutor(LINK_THREADS, "stitch"))
            self.close = stack.pop_all().close

    def add_points(self, aligned: AlignedChunks, number: int) -> None:
        """Add the cloud of a chunk; each once, in order. Raises OutputError."""
        self._cloud.add(aligned.chunks[number].folder, aligned.transforms[number])

    def add_frames(self, aligned: AlignedChunks, number: int) -> None:
        """Add the frames of a chunk whose overlaps are known; each once, in order. Raises OutputError."""
        chunk, transform = aligned.chunks[number].folder, aligned.transforms[number]
        checksums, cameras = recorded_files(chunk), list(aligned.frames_of(number))
        if not cameras:
            return
        if number:
            before = next(c for c in aligned.chunks[number - 1].cameras if c.index == cameras[0].index)
            self._segment_offset += before.segment - cameras[0].segment
        files = self._pool.map(lambda camera: _link_depth(camera.index, chunk, self._folder, checksums), cameras)
        finals = transform.move_pose(np.stack([camera.T_world_camera for camera in cameras]))
        causals = transform.move_pose(np.stack([camera.T_world_camera_causal for camera in cameras]))
        for camera, final, causal in zip(cameras, finals, causals, strict=True):
            stitched = replace(
                camera,
                T_world_camera=final,
                T_world_camera_causal=causal,
                depth_scale=camera.depth_scale * transform.scale,
                depth_scale_causal=camera.depth_scale_causal * transform.scale,
                segment=camera.segment + self._segment_offset,
            )
            self.cameras.append(stitched)
            self._files.append(stitched)
        self.checksums.update(files)


def _link_depth(index: int, chunk: Path, folder: Path, checksums: Mapping[str, Checksum]) -> tuple[str, Checksum]:
    """Link or copy a frame's depth file. Returns its name in the folder, and its checksum. Raises OutputError."""
    source, target = depth_path(chunk, index), depth_path(folder, index)
    name = target.relative_to(folder).as_posix()
    if name not in checksums:
        raise OutputError(f"{source} is missing")
    try:
        target.hardlink_to(source)
    except FileNotFoundError as error:
        raise OutputError(f"{source} is missing") from error
    except OSError:
        # Not every file system has hard links.
        with output_errors(target):
            write_new(target, read_file(source))
    return name, checksums[name]


def stitched_health(aligned: AlignedChunks) -> dict[str, Any]:
    """``health`` of ``run.json``, of each chunk for the frames taken from it."""
    spans: list[LowQualityInterval] = []
    last = -1
    for number, chunk in enumerate(aligned.chunks):
        cameras = list(aligned.frames_of(number))
        health = chunk.run.get("health")
        for span in low_quality_intervals(health) if isinstance(health, dict) else []:
            inside = [camera for camera in cameras if span.first <= camera.index <= span.last]
            if not inside:
                continue
            part = LowQualityInterval(
                inside[0].index, inside[-1].index, inside[0].timestamp, inside[-1].timestamp, len(inside), span.why
            )
            if spans and inside[0] is cameras[0] and spans[-1].last == last:
                # It continues across the boundary of two chunks.
                before = spans.pop()
                part = replace(before, last=part.last, end=part.end, frames=before.frames + part.frames)
            spans.append(part)
        last = cameras[-1].index if cameras else last
    # A picture of two chunks counts twice: its share is what matters.
    return HealthMonitor(spans, [recorded_pictures(chunk.run) for chunk in aligned.chunks]).summary()


def stitched_segments(aligned: AlignedChunks) -> tuple[dict[str, Any], ...]:
    """``segments`` of ``run.json``: those whose first frame was taken from the chunk that recorded them."""
    stitched: list[dict[str, Any]] = []
    for number, chunk in enumerate(aligned.chunks):
        indices = {camera.index for camera in aligned.frames_of(number)}
        segments = chunk.run.get("segments")
        stitched += [entry for entry in (segments if isinstance(segments, list) else []) if entry["index"] in indices]
    return tuple(stitched)
