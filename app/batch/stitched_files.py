"""The files of a stitched result, made from those of its windows without decoding or unprojecting anything again.

That is what keeps a split video fast: pictures are copied as they are, depths scaled, clouds moved and thinned anew.
"""

import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.batch.seams import Joined, moved_pose
from stream_recon.app.camera_files import Camera, CameraFiles
from stream_recon.app.depth_files import DEPTH_FOLDER, FLOAT16_MAX, depth_path
from stream_recon.app.metrics import Similarity
from stream_recon.app.output_files import output_errors, replace_file
from stream_recon.app.ply import VERTEX, PlyFile, VoxelTable
from stream_recon.app.writers import POINTS_NAME
from stream_recon.configs.errors import OutputError

DEPTH_THREADS = 8
CLOUD_CHUNK = 1_000_000
"""Points moved at a time."""


def write_cameras(folder: Path, joined: Joined) -> list[Camera]:
    """Write ``cameras.json`` and ``trajectory.txt``; gives the frames in order. Raises OutputError."""
    cameras = []
    files = CameraFiles(folder)
    try:
        for number, camera in joined.frames():
            transform = joined.transforms[number]
            last = moved_pose(camera.T_world_camera, transform)
            first = moved_pose(camera.T_world_camera_first, transform)
            cameras.append(replace(camera, T_world_camera=last, T_world_camera_first=first))
            files.append(cameras[-1])
    finally:
        files.close()
    return cameras


def write_depths_and_cloud(folder: Path, joined: Joined, voxel: float) -> None:
    """Write each frame's depth file, in the stitched unit, and ``points.ply``, side by side. Raises OutputError."""
    with output_errors(folder):
        (folder / DEPTH_FOLDER).mkdir(exist_ok=True)

    def copy(frame: tuple[int, Camera]) -> None:
        number, camera = frame
        source = depth_path(joined.windows[number].folder, camera.index)
        _scale_depth(source, depth_path(folder, camera.index), joined.transforms[number].scale)

    with ThreadPoolExecutor(DEPTH_THREADS, "stitch") as pool:
        copies = pool.map(copy, joined.frames())
        _write_cloud(folder, joined, voxel)
        for _ in copies:
            pass


def _scale_depth(source: Path, target: Path, scale: float) -> None:
    try:
        with np.load(source, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        depth = arrays["depth"].astype(np.float32) * np.float32(scale)
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise OutputError(f"{source} is missing or damaged: {error}") from error
    arrays["depth"] = np.clip(depth, 0, FLOAT16_MAX).astype(np.float16)
    replace_file(target, lambda file: np.savez(file, allow_pickle=False, **arrays))


def _write_cloud(folder: Path, joined: Joined, voxel: float) -> None:
    """From the windows' clouds, which were thinned in their own units."""
    voxels, ply = VoxelTable(voxel), PlyFile(folder / POINTS_NAME)
    try:
        for window, transform in zip(joined.windows, joined.transforms, strict=True):
            for vertices in _clouds(window.folder / POINTS_NAME):
                xyz = _moved_points(vertices, transform)
                new = voxels.take_new(xyz)
                rgb = np.stack([vertices[channel][new] for channel in ("red", "green", "blue")], axis=1)
                ply.append(xyz[new], rgb)
    finally:
        ply.close()


def _clouds(path: Path) -> Iterator[NDArray[np.void]]:
    """The points of a file written by `PlyFile`, some at a time."""
    with output_errors(path), path.open("rb") as file:
        for line in file:
            if line == b"end_header\n":
                break
        while data := file.read(CLOUD_CHUNK * VERTEX.itemsize):
            yield np.frombuffer(data, VERTEX, count=len(data) // VERTEX.itemsize)


def _moved_points(vertices: NDArray[np.void], transform: Similarity) -> NDArray[np.float32]:
    xyz = np.stack([vertices[axis] for axis in "xyz"], axis=1).astype(np.float64)
    return transform.apply(xyz).astype(np.float32)
