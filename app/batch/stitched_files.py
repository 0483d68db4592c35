"""The files of a stitched result, made from those of its windows without decoding or unprojecting anything again.

Depth files are taken over as they are: the cameras say what their depth has to be multiplied with.
"""

import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from stream_recon.app.batch.manifest import Mark, recorded_files
from stream_recon.app.batch.seams import Joined
from stream_recon.app.batch.stitched_cloud import write_cloud
from stream_recon.app.output.cameras import Camera, CameraFiles
from stream_recon.app.output.depth import DEPTH_FOLDER, depth_path
from stream_recon.app.output.files import output_errors
from stream_recon.configs.errors import OutputError

THREADS = 8


@dataclass(frozen=True)
class Stitched:
    """What was written."""

    cameras: list[Camera]
    """Cameras in the order of their frames."""
    marks: dict[str, Mark]
    """Marks of the depth files, by their names in the folder."""


def write_files(folder: Path, joined: Joined, voxel: float) -> Stitched:
    """Write all but ``run.json``: depth files, cameras and cloud, side by side.

    Raises:
        OutputError: no room, or a damaged window.
    """
    with output_errors(folder):
        (folder / DEPTH_FOLDER).mkdir(exist_ok=True)
    marks = [recorded_files(window.folder) for window in joined.windows]

    def take_over(number: int, index: int) -> tuple[str, Mark]:
        return _take_over(index, joined.windows[number].folder, folder, marks[number])

    with ThreadPoolExecutor(THREADS, "stitch") as pool:
        cameras = pool.submit(_write_cameras, folder, joined)
        files = pool.map(lambda frame: take_over(*frame), [(n, camera.index) for n, camera in joined.frames()])
        write_cloud(folder, joined, voxel)
        return Stitched(cameras.result(), dict(files))


def _write_cameras(folder: Path, joined: Joined) -> list[Camera]:
    cameras = []
    files = CameraFiles(folder)
    try:
        for number, camera in joined.frames():
            transform = joined.transforms[number]
            last = transform.move_pose(camera.T_world_camera)
            first = transform.move_pose(camera.T_world_camera_first)
            scale = camera.depth_scale * transform.scale
            cameras.append(replace(camera, T_world_camera=last, T_world_camera_first=first, depth_scale=scale))
            files.append(cameras[-1])
    finally:
        files.close()
    return cameras


def _take_over(index: int, window: Path, folder: Path, marks: Mapping[str, Mark]) -> tuple[str, Mark]:
    """Give a frame's depth file a second name, or copy it; its name in the folder, and its mark. Raises OutputError."""
    source, target = depth_path(window, index), depth_path(folder, index)
    name = target.relative_to(folder).as_posix()
    if name not in marks or not source.is_file():
        raise OutputError(f"{source} is missing")
    try:
        target.hardlink_to(source)
    except OSError:
        # Not every file system can.
        with output_errors(target):
            shutil.copyfile(source, target)
    return name, marks[name]
