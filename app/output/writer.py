"""The result folder, written as results come. At any moment what is finished is complete and readable.

trajectory.txt   TUM format, camera-to-world, seconds of the source
cameras.json     for each frame: index, timestamp, first and last pose, intrinsics, keyframe or not
depth/000000.npz for each frame, by its index in the source: depth, confidence, picture
points.ply       coloured points, the sure ones, thinned by voxels
run.json         what was run, how fast, what was lost; "interrupted" until the end
"""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.geometry import frame_points
from stream_recon.app.output.cameras import CAMERAS_NAME, TRAJECTORY_NAME, Camera, CameraFiles, iterate_cameras
from stream_recon.app.output.depth import DEPTH_FOLDER, depth_path, write_depth
from stream_recon.app.output.files import PART_SUFFIX, output_errors, replace_json
from stream_recon.app.output.folder import result_of
from stream_recon.app.output.ply import PlyFile
from stream_recon.app.output.run_record import PROGRAM, RUN_NAME, RunInfo, Summary, run_record
from stream_recon.app.results import FrameResult, Revision
from stream_recon.app.transforms import transform_points
from stream_recon.app.voxels import VoxelTable
from stream_recon.configs.errors import OutputError
from stream_recon.configs.schema import PointsConfig

logger = logging.getLogger(__name__)

POINTS_NAME = "points.ply"


class ResultWriter:
    """Writes one run into one folder. Nothing in it is touched before the first result is there."""

    def __init__(self, folder: Path, info: RunInfo, *, overwrite: bool = False) -> None:
        """
        Raises:
            OutputError: the folder has something in it (see `check_output`), or cannot be made.
        """
        check_output(folder, overwrite)
        self.folder = folder
        self._info = info
        self._points = info.preset.points
        self._cameras: CameraFiles | None = None
        self._revised: dict[int, NDArray[np.float64]] = {}
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def add(self, result: FrameResult) -> None:
        """Write a frame: depth first, so that every camera that is listed has its depth. Raises OutputError."""
        assert np.isfinite(result.T_world_camera).all(), f"frame {result.index} has no finite pose"
        if self._cameras is None:
            self._begin()
        assert self._cameras is not None
        write_depth(self.folder, result)
        self._cameras.append(Camera.of(result))
        _append_points(self._ply, self._voxels, result, self._points)

    def revise(self, revision: Revision) -> None:
        """Note better poses of earlier frames; files are brought up to date by `finish`."""
        for frame in revision.frames:
            self._revised[frame.index] = np.asarray(frame.T_world_camera, np.float64)

    def checkpoint(self, summary: Summary) -> None:
        """Renew ``run.json`` while the run goes on. Raises OutputError."""
        if self._cameras is not None:
            replace_json(self.folder / RUN_NAME, run_record(self._info, summary))

    def finish(self, summary: Summary) -> None:
        """Apply revisions, write the last ``run.json`` and close. Without any result the folder is left alone.

        Raises:
            OutputError: what was written before stays.
        """
        if self._cameras is None:
            self._remove_if_empty()
            return
        try:
            if self._revised:
                self._cameras.rewrite(self._revised)
                self._rebuild_points()
            replace_json(self.folder / RUN_NAME, run_record(self._info, summary))
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the files as they are. ``run.json`` keeps saying that the run was interrupted."""
        if self._cameras is not None:
            self._cameras.close()
            self._ply.close()

    def _begin(self) -> None:
        _remove_old_result(self.folder)
        with output_errors(self.folder):
            (self.folder / DEPTH_FOLDER).mkdir(exist_ok=True)
        replace_json(self.folder / RUN_NAME, run_record(self._info, Summary()))
        self._voxels = VoxelTable(self._points.voxel)
        self._ply = PlyFile(self.folder / POINTS_NAME)
        self._cameras = CameraFiles(self.folder)

    def _rebuild_points(self) -> None:
        """The cloud once more from the depth files, under the poses last known."""
        self._ply.close()
        path = self.folder / POINTS_NAME
        part = path.with_name(path.name + PART_SUFFIX)
        self._ply, self._voxels = PlyFile(part), VoxelTable(self._points.voxel)
        for camera in iterate_cameras(self.folder / CAMERAS_NAME):
            _append_points(self._ply, self._voxels, result_of(self.folder, camera), self._points)
        self._ply.close()
        with output_errors(path):
            part.replace(path)

    def _remove_if_empty(self) -> None:
        with output_errors(self.folder):
            if self.folder.is_dir() and not any(self.folder.iterdir()):
                self.folder.rmdir()


def _append_points(ply: PlyFile, voxels: VoxelTable, result: FrameResult, config: PointsConfig) -> None:
    points = frame_points(result, config)
    xyz = transform_points(result.T_world_camera, points.xyz)
    new = voxels.take_new(xyz)
    ply.append(xyz[new], points.rgb[new])


def check_output(folder: Path, overwrite: bool) -> None:
    """See whether a run may write into ``folder``; changes nothing.

    A missing or empty folder is fine. With ``overwrite`` so is an earlier result, and a folder of other things in
    which none of our names is taken.

    Raises:
        OutputError: otherwise.
    """
    with output_errors(folder):
        if not folder.exists() and not folder.is_symlink():
            return
        if not folder.is_dir():
            raise OutputError(f"{folder} is a file: choose another folder with -o")
        empty = not any(folder.iterdir())
    if empty:
        return
    if not overwrite:
        raise OutputError(f"{folder} exists: use --overwrite, or another folder with -o")
    ours = (TRAJECTORY_NAME, CAMERAS_NAME, POINTS_NAME, RUN_NAME, DEPTH_FOLDER)
    taken = [name for name in ours if (folder / name).exists()]
    if taken and not _is_ours(folder):
        raise OutputError(f"{folder}/{taken[0]} was not written by {PROGRAM}: choose another folder with -o")


def _is_ours(folder: Path) -> bool:
    try:
        record = json.loads((folder / RUN_NAME).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("program") == PROGRAM


def _remove_old_result(folder: Path) -> None:
    """Remove what an earlier run wrote: the fixed names, and the depth files that its cameras.json lists."""
    if not _is_ours(folder):
        return
    depth = folder / DEPTH_FOLDER
    with output_errors(folder):
        for index in _listed_frames(folder / CAMERAS_NAME):
            depth_path(folder, index).unlink(missing_ok=True)
        for path in depth.glob("*.npz" + PART_SUFFIX):
            path.unlink()
        for name in (TRAJECTORY_NAME, CAMERAS_NAME, POINTS_NAME, RUN_NAME):
            (folder / (name + PART_SUFFIX)).unlink(missing_ok=True)
            (folder / name).unlink(missing_ok=True)
        if depth.is_dir() and not any(depth.iterdir()):
            depth.rmdir()


def _listed_frames(cameras: Path) -> Iterator[int]:
    """Indices in an old cameras.json, as far as it is readable: what it does not list is not known to be ours."""
    try:
        for camera in iterate_cameras(cameras):
            yield camera.index
    except OutputError as error:
        logger.info("%s", error)
