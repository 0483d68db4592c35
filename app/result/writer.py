"""Writer of the result folder. At any moment, every finished frame is complete and readable.

trajectory.txt   TUM format, camera-to-world, seconds of the source
cameras.json     for each frame: index, timestamp, final and causal pose, intrinsics, depth scale, keyframe or not
depth/000000.npz for each frame, by its index in the source: depth, confidence, image
points.ply       coloured points that other frames do not contradict, thinned by voxels
tracks.npz       points triangulated by a refinement, and their observations in keyframes
mesh.glb         textured mesh, made last
map.npz          features of a refinement's keyframes, by which images are localized
run.json         settings, speed and losses of the run; "interrupted" until its end

Revisions change cameras.json and trajectory.txt at checkpoints, and points.ply at the end. Depth files never change.
`FileRevisions` in run.json gives the state of each file.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.core.input_file import parse_json, read_file
from stream_recon.app.core.types import FrameResult, FrameRevision, Revision
from stream_recon.app.result.cameras import CAMERAS_NAME, CameraFiles, FrameCamera, listed_frames
from stream_recon.app.result.cloud import PointCloud
from stream_recon.app.result.dense import DENSE_FOLDER, dense_path
from stream_recon.app.result.depth import DEPTH_FOLDER, depth_path, write_depth
from stream_recon.app.result.disk_limit import DepthDiskLimit, DiskLimit
from stream_recon.app.result.files import output_errors, replace_json
from stream_recon.app.result.lock import LOCK_NAME, FolderLock
from stream_recon.app.result.resume import PartialResult
from stream_recon.app.result.run_record import (
    FILE_NAMES,
    PROGRAM,
    RUN_NAME,
    FileRevisions,
    RunInfo,
    RunSummary,
    run_record,
)
from stream_recon.app.result.tracks import TRACKS_NAME
from stream_recon.configs.errors import OutputError, StreamReconError, WeightsError

CloudTime = Literal["live", "end", "never"]
"""When the points of a run are written: also while it goes on, at its end, or not, because a later step does it."""


class ResultWriter:
    """Writes one run into one folder, which is not changed before the first result arrives."""

    cloud: CloudTime = "live"
    """May be set before the first result, where all depth files are kept."""

    def __init__(
        self,
        folder: Path,
        info: RunInfo,
        *,
        overwrite: bool = False,
        lock: FolderLock | None = None,
        resume: PartialResult | None = None,
        limit: DiskLimit | None = None,
    ) -> None:
        """
        Args:
            lock: lock of the folder, if the caller holds it; otherwise it is held until `close`.
            resume: the interrupted result in the folder that this run continues.
            limit: depth files to keep; None: all.

        Raises OutputError where `check_output` does, another run writes to the folder, or it cannot be made.
        """
        if resume is None:
            check_output(folder, overwrite)
        self._lock = FolderLock(folder) if lock is None else None
        try:
            if resume is None:
                # Again: another run may have finished there before the lock was taken.
                check_output(folder, overwrite)
            else:
                resume.check(info)
                _check_depth(folder)
        except StreamReconError:
            self._release()
            raise
        self.folder = folder
        self._info = info
        self._depth = DepthDiskLimit(folder, limit or DiskLimit())
        self._cameras: CameraFiles | None = None
        self._revisions = 0
        self._pending: dict[int, FrameRevision] = {}
        """Revisions since the last checkpoint, by frame index."""
        self._applied = FileRevisions()
        self._frames = self._keyframes = 0
        """Numbers of frames and keyframes in the folder."""
        if resume is not None:
            self._continue(resume)

    def add(self, result: FrameResult) -> None:
        """Write a frame: depth first, so that every listed camera has its depth.

        Raises OutputError, and WeightsError where its pose, or all of its depth, is not finite.
        """
        if not (np.isfinite(result.T_world_camera).all() and np.isfinite(result.depth).any()):
            raise WeightsError(
                f"the network gave no finite pose or depth for frame {result.index}: its weights are damaged; convert "
                "or download them again"
            )
        if self._cameras is None:
            self._begin()
        assert self._cameras is not None
        keep_depth = self._depth.wants(result)
        if keep_depth:
            write_depth(self.folder, result)
        self._cameras.append(FrameCamera.from_result(result))
        self._frames += 1
        self._keyframes += result.is_keyframe
        self._cloud.add(result, now=self.cloud == "live")
        if keep_depth:
            self._depth.wrote(result)

    def revise(self, revision: Revision) -> None:
        """Queue a revision of earlier frames; the next `checkpoint` or `finish` writes it."""
        assert self._cameras is not None, "no frame was added"
        self._revisions += 1
        for frame in revision.frames:
            pending = self._pending.get(frame.index)
            if pending is not None and frame.intrinsics is None:
                frame = replace(frame, intrinsics=pending.intrinsics)
            self._pending[frame.index] = frame

    def checkpoint(self, summary: RunSummary) -> None:
        """Write pending revisions and ``run.json`` while the run continues. Raises OutputError."""
        if self._cameras is not None:
            self._write_revisions(summary)
            self._write_record(summary)

    def finish(self, summary: RunSummary, on_progress: Callable[[int, int], None] | None = None) -> bool:
        """Write pending revisions, rebuild the cloud, write the final ``run.json`` and close.

        Without any result the folder is not changed. Where ``on_progress``, see `write_cloud`, cancels, the result is
        False, the old cloud stays, and ``run.json`` has ``interrupted``. Raises OutputError; files written so far stay.
        """
        if self._cameras is None:
            self.close()
            return True
        complete = True
        try:
            self._write_revisions(summary)
            self._write_record(replace(summary, interrupted=True))
            if self.cloud != "never":
                # Also without revisions: while the run went on, only earlier frames could confirm a point.
                try:
                    self._cloud.rebuild(on_progress)
                    self._applied = replace(self._applied, points=self._revisions)
                except Cancelled:
                    complete = False
            self._write_record(replace(summary, interrupted=summary.interrupted or not complete))
            return complete
        finally:
            self.close()

    def close(self) -> None:
        """Close the files as they are. ``run.json`` keeps ``interrupted``, unless `finish` wrote it."""
        if self._cameras is not None:
            self._cameras.close()
            self._cloud.close()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _begin(self) -> None:
        _remove_old_result(self.folder)
        # Written first and never removed: it marks the folder as ours if this process is killed.
        replace_json(self.folder / RUN_NAME, run_record(self._info, RunSummary()))
        with output_errors(self.folder):
            (self.folder / DEPTH_FOLDER).mkdir(exist_ok=True)
        self._cloud = PointCloud(self.folder, self._info.preset.points)
        self._cameras = CameraFiles(self.folder)

    def _continue(self, partial: PartialResult) -> None:
        """Open the files of an interrupted result; the cloud is rebuilt from the depth files."""
        applied = partial.recorded_value("revisions", dict).get("cameras")
        self._revisions = applied if isinstance(applied, int) else 0
        self._frames, self._keyframes = len(partial.cameras), partial.keyframes
        with output_errors(self.folder):
            (self.folder / TRACKS_NAME).unlink(missing_ok=True)  # its points are those of other poses
        self._cloud = PointCloud(self.folder, self._info.preset.points, partial.cameras)
        self._cameras = CameraFiles(self.folder, partial.cameras, self._revisions)
        self._depth.resume(partial.cameras)
        self._applied = FileRevisions(self._revisions, self._revisions, self._revisions)

    def _write_revisions(self, summary: RunSummary) -> None:
        """Apply pending revisions to ``cameras.json`` and the trajectory; ``run.json`` is written before."""
        if not self._pending:
            return
        assert self._cameras is not None
        self._applied = replace(self._applied, cameras=self._revisions)
        self._write_record(replace(summary, interrupted=True))
        self._cameras.revise(self._pending, self._revisions)
        self._pending = {}
        self._applied = replace(self._applied, trajectory=self._revisions)

    def _write_record(self, summary: RunSummary) -> None:
        # Results that wait in the back end are not in the folder, and are lost with it.
        frames, keyframes = min(summary.frames_reconstructed, self._frames), min(summary.keyframes, self._keyframes)
        summary = replace(summary, frames_reconstructed=frames, keyframes=keyframes)
        replace_json(self.folder / RUN_NAME, run_record(self._info, summary, self._applied, self._depth.removed))


def check_output(folder: Path, overwrite: bool) -> None:
    """Raises OutputError unless a run may write into ``folder``; changes nothing.

    A missing or empty folder is allowed. With ``overwrite``, so is an earlier result, or a folder with other files
    that has none of a result's names.
    """
    with output_errors(folder):
        if not folder.exists() and not folder.is_symlink():
            return
        if not folder.is_dir():
            kind = "a link to nothing" if not folder.exists() else "a file"
            raise OutputError(f"{folder} is {kind}: choose another folder with -o")
        empty = all(path.name == LOCK_NAME for path in folder.iterdir())
    if empty:
        return
    if not overwrite:
        raise OutputError(f"{folder} exists: use --overwrite, or another folder with -o")
    ours = (*FILE_NAMES, RUN_NAME, DEPTH_FOLDER, DENSE_FOLDER)
    taken = [name for name in ours if (folder / name).exists()]
    if taken and not _is_ours(folder):
        raise OutputError(f"{folder}/{taken[0]} was not written by {PROGRAM}: choose another folder with -o")
    _check_depth(folder)


def _check_depth(folder: Path) -> None:
    """Refuse linked folders of depth: files are removed by name, and a link may lead to files of others."""
    for name in (DEPTH_FOLDER, DENSE_FOLDER):
        if (folder / name).is_symlink():
            raise OutputError(f"{folder}/{name} is a link to another folder: choose another one with -o")


def _is_ours(folder: Path) -> bool:
    try:
        record = parse_json(read_file(folder / RUN_NAME))
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("program") == PROGRAM


def _remove_old_result(folder: Path) -> None:
    """Remove an earlier result except run.json: files of fixed names, and the depth files that cameras.json lists."""
    if not _is_ours(folder):
        return
    folders = (folder / DEPTH_FOLDER, folder / DENSE_FOLDER)
    with output_errors(folder):
        # Depth files that cameras.json does not list may be others'.
        for index in listed_frames(folder / CAMERAS_NAME):
            depth_path(folder, index).unlink(missing_ok=True)
            dense_path(folder, index).unlink(missing_ok=True)
        for name in FILE_NAMES:
            (folder / name).unlink(missing_ok=True)
        for depth in folders:
            if depth.is_dir() and not any(depth.iterdir()):
                depth.rmdir()


def remove_result(folder: Path) -> bool:
    """Remove the files of a result, of which ``run.json`` goes last, and the folder if nothing else is in it.

    Returns whether the folder is gone; files that the program did not write stay. Raises OutputError where the folder
    holds no result, or a process writes to it.
    """
    if folder.is_symlink() or not _is_ours(folder):
        raise OutputError(f"{folder} is not a result of {PROGRAM}: nothing was removed")
    with FolderLock(folder):
        _check_depth(folder)
        _remove_old_result(folder)
        with output_errors(folder):
            (folder / RUN_NAME).unlink(missing_ok=True)
    if any(folder.iterdir()):
        return False
    folder.rmdir()
    return True
