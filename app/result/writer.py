"""The result folder, written as results come. At any moment what is finished is complete and readable.

trajectory.txt   TUM format, camera-to-world, seconds of the source
cameras.json     for each frame: index, timestamp, first and last pose, intrinsics, depth scale, keyframe or not
depth/000000.npz for each frame, by its index in the source: depth, confidence, picture
points.ply       coloured points, the sure ones, thinned by voxels
tracks.npz       points triangulated by a refinement, and where keyframes see them
run.json         what was run, how fast, what was lost; "interrupted" until the end

Revisions change cameras.json and trajectory.txt at checkpoints and points.ply at the end; depth files never change. See
`FileRevisions` for what run.json says meanwhile.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from stream_recon.app.core.json_text import parse_json
from stream_recon.app.core.types import FrameResult, FrameRevision, Revision
from stream_recon.app.result.cameras import CAMERAS_NAME, TRAJECTORY_NAME, Camera, CameraFiles, iterate_cameras
from stream_recon.app.result.cloud import POINTS_NAME, PointCloud
from stream_recon.app.result.depth import DEPTH_FOLDER, depth_path, write_depth
from stream_recon.app.result.disk_limit import DepthDiskLimit, DiskLimit
from stream_recon.app.result.files import PART_SUFFIX, output_errors, replace_json
from stream_recon.app.result.lock import LOCK_NAME, FolderLock
from stream_recon.app.result.resume import PartialResult
from stream_recon.app.result.run_record import PROGRAM, RUN_NAME, FileRevisions, RunInfo, RunSummary, run_record
from stream_recon.app.result.tracks import TRACKS_NAME
from stream_recon.configs.errors import OutputError, StreamReconError, WeightsError

logger = logging.getLogger(__name__)


class ResultWriter:
    """Writes one run into one folder. Nothing in it is touched before the first result is there."""

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
            lock: of the folder, where it is held already; else it is held from here to `close`.
            resume: what an earlier run left there, to go on with.
            limit: how much may stay on the disk; None: all.

        Raises:
            OutputError: the folder has something in it (see `check_output`), another run writes to it, or it cannot be
                made.
        """
        if resume is None:
            check_output(folder, overwrite)
        self._lock = FolderLock(folder) if lock is None else None
        try:
            if resume is None:
                # Once more: before the lock another run may have ended there.
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
        """What `revise` has told since the last checkpoint, by the frames' indices."""
        self._kept = FileRevisions()
        if resume is not None:
            self._continue(resume)

    def add(self, result: FrameResult) -> None:
        """Write a frame: depth first, so that every camera that is listed has its depth.

        Raises:
            OutputError: it cannot be written.
            WeightsError: it has no finite pose, or no finite depth at all.
        """
        if not (np.isfinite(result.T_world_camera).all() and np.isfinite(result.depth).any()):
            raise WeightsError(
                f"the network gave no finite pose or depth for frame {result.index}: its weights, or what they were "
                "converted from, are damaged"
            )
        if self._cameras is None:
            self._begin()
        assert self._cameras is not None
        keep_depth = self._depth.wants(result)
        if keep_depth:
            write_depth(self.folder, result)
        self._cameras.append(Camera.of(result))
        self._cloud.add(result)
        if keep_depth:
            self._depth.wrote(result)

    def revise(self, revision: Revision) -> None:
        """Note what is now known of earlier frames; the next `checkpoint` or `finish` keeps it."""
        assert self._cameras is not None, "there is nothing to revise yet"
        self._revisions += 1
        for frame in revision.frames:
            before = self._pending.get(frame.index)
            if before is not None and frame.intrinsics is None:
                frame = replace(frame, intrinsics=before.intrinsics)
            self._pending[frame.index] = frame
            self._cloud.revise(self._cameras.row(frame.index), frame)

    def checkpoint(self, summary: RunSummary) -> None:
        """Keep revisions and renew ``run.json`` while the run goes on. Raises OutputError."""
        if self._cameras is not None:
            self._keep_revisions(summary)
            self._write_record(summary)

    def finish(
        self,
        summary: RunSummary,
        on_progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Keep revisions, bring the cloud up to date, write the last ``run.json`` and close.

        Without any result the folder is left alone.

        Args:
            on_progress, cancelled: see `PointCloud.rebuild`.

        Returns:
            False where the cloud's rebuilding was cancelled: the old one stays, and ``run.json`` says so.

        Raises:
            OutputError: what was written before stays.
        """
        if self._cameras is None:
            self.close()
            return True
        try:
            whole = True
            self._keep_revisions(summary)
            if self._kept.points < self._revisions:
                self._write_record(replace(summary, interrupted=True))
                whole = self._cloud.rebuild(on_progress, cancelled)
                if whole:
                    self._kept = replace(self._kept, points=self._revisions)
            self._write_record(replace(summary, interrupted=summary.interrupted or not whole))
            return whole
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the files as they are. ``run.json`` keeps saying that the run was interrupted."""
        if self._cameras is not None:
            self._cameras.close()
            self._cloud.close()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _begin(self) -> None:
        _remove_old_result(self.folder)
        # First of all, and never away from here on: it is what tells the folder as ours, should this process be killed.
        replace_json(self.folder / RUN_NAME, run_record(self._info, RunSummary()))
        with output_errors(self.folder):
            (self.folder / DEPTH_FOLDER).mkdir(exist_ok=True)
        self._cloud = PointCloud(self.folder, self._info.preset.points)
        self._cameras = CameraFiles(self.folder)

    def _continue(self, unfinished: PartialResult) -> None:
        """Open the files again. Each is whole at any moment; the cloud is built anew from the depth files."""
        done = unfinished.recorded("revisions", dict).get("cameras")
        self._revisions = done if isinstance(done, int) else 0
        for path in (self.folder / DEPTH_FOLDER).glob("*.npz" + PART_SUFFIX):
            path.unlink(missing_ok=True)
        self._cloud = PointCloud(self.folder, self._info.preset.points, unfinished.cameras)
        self._cameras = CameraFiles(self.folder, unfinished.cameras, self._revisions)
        self._depth.found(unfinished.cameras)
        self._kept = FileRevisions(self._revisions, self._revisions, self._revisions)

    def _keep_revisions(self, summary: RunSummary) -> None:
        """Bring ``cameras.json`` and the trajectory up to date, with ``run.json`` saying so before and after."""
        if not self._pending:
            return
        assert self._cameras is not None
        self._kept = replace(self._kept, cameras=self._revisions)
        self._write_record(replace(summary, interrupted=True))
        self._cameras.revise(self._pending, self._revisions)
        self._pending = {}
        points = self._kept.points if self._cloud.stale else self._revisions
        self._kept = FileRevisions(self._revisions, self._revisions, points)

    def _write_record(self, summary: RunSummary) -> None:
        replace_json(self.folder / RUN_NAME, run_record(self._info, summary, self._kept, self._depth.removed))


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
        empty = all(path.name == LOCK_NAME for path in folder.iterdir())
    if empty:
        return
    if not overwrite:
        raise OutputError(f"{folder} exists: use --overwrite, or another folder with -o")
    ours = (TRAJECTORY_NAME, CAMERAS_NAME, POINTS_NAME, TRACKS_NAME, RUN_NAME, DEPTH_FOLDER)
    taken = [name for name in ours if (folder / name).exists()]
    if taken and not _is_ours(folder):
        raise OutputError(f"{folder}/{taken[0]} was not written by {PROGRAM}: choose another folder with -o")
    _check_depth(folder)


def _check_depth(folder: Path) -> None:
    """What is behind a link need not be a run's, and depth files are removed by their names."""
    if (folder / DEPTH_FOLDER).is_symlink():
        raise OutputError(f"{folder}/{DEPTH_FOLDER} is a link to another folder: choose another one with -o")


def _is_ours(folder: Path) -> bool:
    try:
        record = parse_json((folder / RUN_NAME).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("program") == PROGRAM


def _remove_old_result(folder: Path) -> None:
    """Remove what an earlier run wrote, but its run.json: fixed names, and the depth files listed in cameras.json."""
    if not _is_ours(folder):
        return
    depth = folder / DEPTH_FOLDER
    with output_errors(folder):
        for index in _listed_frames(folder / CAMERAS_NAME):
            depth_path(folder, index).unlink(missing_ok=True)
        for path in depth.glob("*.npz" + PART_SUFFIX):
            path.unlink()
        for name in (TRAJECTORY_NAME, CAMERAS_NAME, POINTS_NAME, TRACKS_NAME):
            (folder / (name + PART_SUFFIX)).unlink(missing_ok=True)
            (folder / name).unlink(missing_ok=True)
        (folder / (RUN_NAME + PART_SUFFIX)).unlink(missing_ok=True)
        if depth.is_dir() and not any(depth.iterdir()):
            depth.rmdir()


def _listed_frames(cameras: Path) -> Iterator[int]:
    """Indices in an old cameras.json, as far as it is readable: what it does not list is not known to be ours."""
    try:
        for camera in iterate_cameras(cameras):
            yield camera.index
    except OutputError as error:
        logger.info("%s", error)
