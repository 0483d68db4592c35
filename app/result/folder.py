"""Reader of a finished or interrupted result folder."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import correct_depth
from stream_recon.app.core.input_file import parse_json, read_file
from stream_recon.app.core.rig import Rig
from stream_recon.app.core.transforms import up_direction
from stream_recon.app.core.types import FrameResult, Revision
from stream_recon.app.result.cameras import CAMERAS_NAME, FrameCamera, iterate_cameras, revision_since_causal
from stream_recon.app.result.commit import is_changing
from stream_recon.app.result.dense import DENSE_FOLDER, DenseMap, dense_path, read_dense
from stream_recon.app.result.depth import depth_path, read_depth, undistorted
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.metric_scale import MetricScale, T_current_own, metric_scale_of
from stream_recon.app.result.run_record import DENSE, MESH, PROGRAM, REFINEMENT, RUN_NAME, SPLATS, VIEWS, section
from stream_recon.configs.errors import InputError, OutputError
from stream_recon.configs.schema import PointsConfig, preset_from_tables

MESH_NAME, SPLATS_NAME = "mesh.glb", "splats.ply"
"""Files of the surface and of the Gaussian splats in a result folder."""
CHECKPOINT_NAME = "splats.checkpoint"
"""State of a training of splats that was stopped."""
SETTLE_TRIES, SETTLE_SECONDS = 30, 0.1
"""Attempts and seconds between them to see the end of a change, which takes milliseconds."""


class ResultFolder:
    """A result on disk. Iteration reads the frames one at a time, with their final poses and depth."""

    def __init__(self, folder: Path) -> None:
        """Raises OutputError where it is not a result folder, or damaged."""
        self.folder = folder
        self.run = read_run(folder)
        _check_revisions(folder, self.run)
        self.cameras = list(iterate_cameras(folder / CAMERAS_NAME))

    def check_frames(self, use: str) -> None:
        """Raises InputError where there are no frames to ``use``, such as "merge"."""
        if not self.cameras:
            raise InputError(f"{self.folder} has no frames to {use}")

    @property
    def points(self) -> PointsConfig:
        """Selection of the cloud's pixels, with lengths in the result's unit.

        Raises ConfigError where the preset is of an unknown version, OutputError where the metric scale is damaged.
        """
        return points_of(self.run)

    @property
    def metric_scale(self) -> MetricScale | None:
        """None where the result is in the reconstruction's own unit. Raises OutputError."""
        return metric_scale_of(self.run)

    @property
    def rig(self) -> Rig | None:
        """The rig whose views the frames are; None: one camera. Raises OutputError where it is damaged."""
        record = self.run.get("options", {}).get(VIEWS)
        try:
            return None if record is None else Rig.from_json(record)
        except (KeyError, TypeError, ValueError) as error:
            raise OutputError(f"{self.folder / RUN_NAME} has a damaged rig") from error

    @property
    def has_known_camera(self) -> bool:
        """Whether the camera was given, or follows from the kind of images."""
        options = self.run.get("options", {})
        return bool(options.get("camera") or options.get(VIEWS))

    @property
    def revision_since_causal(self) -> Revision:
        """From the causal poses of all frames to the final ones."""
        return revision_since_causal(self.cameras)

    @cached_property
    def dense(self) -> frozenset[int]:
        """Indices of the frames with a dense depth map of the present refinement."""
        record = self.run.get(DENSE)
        if not isinstance(record, dict) or self.refinement_id is None:
            return frozenset()
        if record.get("refinement") != self.refinement_id or (self.folder / DENSE_FOLDER).is_symlink():
            return frozenset()
        return frozenset(c.index for c in self.cameras if dense_path(self.folder, c.index).is_file())

    @property
    def refinement_id(self) -> str | None:
        """Id of the refinement whose poses the result has; None without one."""
        refinement = self.run.get(REFINEMENT)
        identifier = refinement.get("id") if isinstance(refinement, dict) else None
        return identifier if isinstance(identifier, str) and identifier.isalnum() else None

    @property
    def up(self) -> NDArray[np.float64]:
        """Up direction of the world as a unit vector [3]: that of the mesh, or else of the cameras."""
        with suppress(TypeError, ValueError):
            up = np.array(section(self.run, MESH).get("up"), np.float64)
            if up.shape == (3,) and abs(np.linalg.norm(up) - 1) < 1e-6:
                return up
        return up_direction(np.array([camera.T_world_camera[:3, :3] for camera in self.cameras]))

    @property
    def surface_cameras(self) -> list[FrameCamera]:
        """The cameras of the frames that surfaces and clouds are made of, in order.

        With dense depth maps: the frames that have one, and frames that a refinement left to the network. Without: all
        frames with depth.
        """
        cameras = self.with_depth(self.cameras)
        if not self.dense:
            return cameras
        segments = self.run[REFINEMENT].get("fallback_segments", [])
        left = [(segment["first"], segment["last"]) for segment in segments]
        kept = {c.index for c in cameras if any(first <= c.index <= last for first, last in left)} | self.dense
        return [camera for camera in self.cameras if camera.index in kept]

    def surface_of(self, camera: FrameCamera) -> FrameResult:
        """A frame's result with its best depth: the dense map, or else the depth file. Raises OutputError."""
        if camera.index in self.dense:
            return self.dense_map(camera.index).result(camera)
        return result_of(self.folder, camera)

    def amended(self, cameras: Sequence[FrameCamera], record: Mapping[str, Any]) -> "ResultFolder":
        """The same folder with other cameras and changed entries of ``run.json``, neither of which is written."""
        changed = copy(self)
        changed.run, changed.cameras = {**self.run, **record}, list(cameras)
        changed.__dict__.pop("dense", None)
        return changed

    def dense_map(self, index: int) -> DenseMap:
        """The dense depth map of a frame. Raises OutputError where there is none or it is damaged."""
        return read_dense(self.folder, index, self.refinement_id or "")

    def __len__(self) -> int:
        return len(self.cameras)

    def __iter__(self) -> Iterator[FrameResult]:
        for camera in self.cameras:
            yield result_of(self.folder, camera)

    def readable(self, on_damaged: Callable[[OutputError], None], causal: bool = False) -> Iterator[FrameResult]:
        """The frames without those whose depth file is damaged or missing.

        ``on_damaged`` is called for each such frame, except where the run did not keep the file. ``causal``: give the
        causal results, in the world and unit of ``cameras.json``.
        """
        T = T_current_own(self.run)
        for camera in self.with_depth(self.cameras):
            try:
                result = result_of(self.folder, camera.as_causal.moved(T) if causal else camera)
            except OutputError as error:
                on_damaged(error)
            else:
                yield result

    def with_depth(self, cameras: Sequence[FrameCamera]) -> list[FrameCamera]:
        """The cameras whose depth files the run kept."""
        counts = self.run.get("frames")
        if not (isinstance(counts, dict) and counts.get("without_depth")):
            return list(cameras)
        return [camera for camera in cameras if depth_path(self.folder, camera.index).exists()]


def points_of(run: Mapping[str, Any]) -> PointsConfig:
    """Selection of the cloud's pixels in a ``run.json``; see `ResultFolder.points`. Raises ConfigError, OutputError."""
    preset = run["preset"]
    tables = {key: table for key, table in preset.items() if key != "name"} if isinstance(preset, dict) else preset
    points = preset_from_tables(RUN_NAME, tables).points
    return replace(points, voxel=points.voxel * T_current_own(run).scale)


def read_result(folder: Path) -> ResultFolder:
    """Open a result folder. Raises OutputError."""
    return ResultFolder(folder)


def result_of(folder: Path, camera: FrameCamera) -> FrameResult:
    """A frame's result from its camera and its depth file. Raises OutputError."""
    stored = read_depth(depth_path(folder, camera.index))
    # The field is of the distorted map.
    corrected = correct_depth(stored.depth, camera.depth_scale, camera.depth_field)
    return undistorted(replace(stored, depth=corrected), camera.intrinsics).result(camera)


def revision_of(result: ResultFolder) -> int:
    """Number of the last change of the result's poses."""
    numbers = result.run.get("revisions")
    number = numbers.get("cameras") if isinstance(numbers, dict) else None
    return number if isinstance(number, int) else 0


def current_splats(result: ResultFolder) -> Path | None:
    """The file of the result's splats; None where it has none, or its poses or unit have changed since."""
    record, path = result.run.get(SPLATS), result.folder / SPLATS_NAME
    is_current = isinstance(record, dict) and record.get("revision") == revision_of(result)
    return path if is_current and path.is_file() else None


def read_run(folder: Path) -> dict[str, Any]:
    """The content of a result's ``run.json``. Raises OutputError."""
    if not folder.is_dir():
        raise OutputError(f"no such result folder: {folder}")
    if is_changing(folder):
        _settle(folder)
    try:
        record = parse_json(read_file(folder / RUN_NAME))
    except (OSError, ValueError) as error:
        raise OutputError(f"{folder} is not a result of {PROGRAM}: its {RUN_NAME} is missing or damaged") from error
    if not isinstance(record, dict) or record.get("program") != PROGRAM or "preset" not in record:
        raise OutputError(f"{folder} is not a result of {PROGRAM}: {RUN_NAME} is of another program")
    if not isinstance(record.get("source"), str) or not isinstance(record.get("interrupted"), bool):
        raise OutputError(f"{folder}: its {RUN_NAME} is damaged")
    if str(record.get("version")).startswith("0.1."):
        version = record["version"]
        raise OutputError(f"{folder} is of version {version}, which is no longer read: reconstruct it with --overwrite")
    return record


def _check_revisions(folder: Path, run: Mapping[str, Any]) -> None:
    """Raises OutputError for a finished result whose files are of different revisions."""
    revisions = run.get("revisions")
    if not isinstance(revisions, dict):
        return
    # A cloud of earlier poses is written anew by `rebuild_cloud`.
    if not run["interrupted"] and revisions.get("cameras") != revisions.get("trajectory"):
        raise OutputError(
            f"{folder} was left half changed by a kill or a full disk: its files are of different revisions; "
            "reconstruct it again with --overwrite"
        )


def _settle(folder: Path) -> None:
    """Wait for a change of the folder, or complete it where its process was killed. Raises OutputError."""
    for _ in range(SETTLE_TRIES):
        try:
            FolderLock(folder).release()
        except OutputError:
            time.sleep(SETTLE_SECONDS)
        if not is_changing(folder):
            return
    raise OutputError(f"{folder} is being changed by another command: wait for it")
