"""The files of a stitched result, made from those of its windows without decoding or unprojecting anything again.

Depth files are taken over as they are: the cameras say what their depth has to be multiplied with.
"""

import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from stream_recon.app.batch.alignment import AlignedChunks
from stream_recon.app.batch.manifest import Mark, recorded_files
from stream_recon.app.batch.stitched_cloud import StitchedCloud
from stream_recon.app.result.cameras import Camera, CameraFiles
from stream_recon.app.result.depth import DEPTH_FOLDER, depth_path
from stream_recon.app.result.files import output_errors
from stream_recon.configs.errors import OutputError

THREADS = 8


class StitchedFiles:
    """All but ``run.json``, written as windows come. Close it."""

    def __init__(self, folder: Path, voxel: float) -> None:
        """Begin the files in ``folder``. Raises OutputError."""
        self.cameras: list[Camera] = []
        """Those written, in the order of their frames."""
        self._stretch = 0
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
            self._stretch += before.stretch - cameras[0].stretch
        files = self._pool.map(lambda camera: _take_over(camera.index, window, self._folder, marks), cameras)
        lasts = transform.move_pose(np.stack([camera.T_world_camera for camera in cameras]))
        firsts = transform.move_pose(np.stack([camera.T_world_camera_first for camera in cameras]))
        for camera, last, first in zip(cameras, lasts, firsts, strict=True):
            joined_camera = replace(
                camera,
                T_world_camera=last,
                T_world_camera_first=first,
                depth_scale=camera.depth_scale * transform.scale,
                depth_scale_first=camera.depth_scale_first * transform.scale,
                stretch=camera.stretch + self._stretch,
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
