"""The files of a stitched result, made from those of its windows without decoding or unprojecting anything again.

That is what keeps a split video fast: depths are scaled where they lie in their files.
"""

import multiprocessing
import os
import struct
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from stream_recon.app.batch.depth_scaling import DepthScale
from stream_recon.app.batch.manifest import Mark, mark_of, recorded_files
from stream_recon.app.batch.orphans import live_with_parent
from stream_recon.app.batch.seams import Joined
from stream_recon.app.batch.stitched_cloud import write_cloud
from stream_recon.app.output.cameras import Camera, CameraFiles
from stream_recon.app.output.depth import DEPTH_FOLDER, depth_path
from stream_recon.app.output.files import output_errors
from stream_recon.configs.errors import OutputError

FRAMES_A_PROCESS = 500
"""Fewer are not worth the start of another process, which takes half a second."""
MAX_PROCESSES = 16
PORTION = 100
"""Frames handed to a process at a time."""


@dataclass(frozen=True)
class Stitched:
    """What was written."""

    cameras: list[Camera]
    """In the order of their frames."""
    marks: dict[str, Mark]
    """Of the depth files, by their names in the folder."""


def write_files(folder: Path, joined: Joined, voxel: float) -> Stitched:
    """Write all but ``run.json``: depth files in the stitched unit, cameras and cloud, side by side.

    Raises:
        OutputError: no room, or a damaged window.
    """
    with output_errors(folder):
        (folder / DEPTH_FOLDER).mkdir(exist_ok=True)
    carriers = [
        _Carrier(window.folder, folder, transform.scale)
        for window, transform in zip(joined.windows, joined.transforms, strict=True)
    ]
    frames = [(number, camera.index) for number, camera in joined.frames()]
    with _pool(len(frames)) as pool:
        cameras = pool.submit(_write_cameras, folder, joined)
        carried = [
            pool.submit(carriers[number].carry, [index for _, index in portion])
            for number, group in groupby(frames, key=itemgetter(0))
            for portion in _portions(list(group))
        ]
        write_cloud(folder, joined, voxel)
        return Stitched(cameras.result(), dict(mark for marks in carried for mark in marks.result()))


def _pool(frames: int) -> Executor:
    """For files so small that threads would spend their time in waiting for the interpreter's lock."""
    processes = min(frames // FRAMES_A_PROCESS, os.cpu_count() or 1, MAX_PROCESSES)
    if processes < 2:
        return ThreadPoolExecutor(1, "stitch")
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=live_with_parent)


def _portions(frames: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    for begin in range(0, len(frames), PORTION):
        yield frames[begin : begin + PORTION]


def _write_cameras(folder: Path, joined: Joined) -> list[Camera]:
    cameras = []
    files = CameraFiles(folder)
    try:
        for number, camera in joined.frames():
            transform = joined.transforms[number]
            last = transform.move_pose(camera.T_world_camera)
            first = transform.move_pose(camera.T_world_camera_first)
            cameras.append(replace(camera, T_world_camera=last, T_world_camera_first=first))
            files.append(cameras[-1])
    finally:
        files.close()
    return cameras


class _Carrier:
    """Brings depth files from a window's folder into the result's, whose unit is ``scale`` times smaller."""

    def __init__(self, window: Path, folder: Path, scale: float) -> None:
        """Raises OutputError."""
        self._window = window
        self._folder = folder
        self._scale = DepthScale(scale) if scale != 1 else None
        self._marks = recorded_files(window)

    def carry(self, indices: Sequence[int]) -> list[tuple[str, Mark]]:
        """Names and marks of the files of some frames. Raises OutputError."""
        return [self._carry(index) for index in indices]

    def _carry(self, index: int) -> tuple[str, Mark]:
        """Name and mark of a frame's file. Raises OutputError."""
        source, target = depth_path(self._window, index), depth_path(self._folder, index)
        name = target.relative_to(self._folder).as_posix()
        if self._scale is None and _linked(source, target):
            return name, self._marks[name]
        try:
            content = bytearray(source.read_bytes())
            if self._scale is not None:
                self._scale.apply(content)
        except (OSError, KeyError, ValueError, struct.error, zipfile.BadZipFile) as error:
            raise OutputError(f"{source} is missing or damaged: {error}") from error
        with output_errors(target):
            target.write_bytes(content)
        return name, mark_of(content)


def _linked(source: Path, target: Path) -> bool:
    """Give a file a second name; False where the file system cannot."""
    try:
        target.hardlink_to(source)
    except OSError:
        return False
    return True
