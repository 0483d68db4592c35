"""A finished (or interrupted) result folder, read back as the results it was written from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stream_recon.app.core.depth_correction import correct_depth
from stream_recon.app.core.json_text import parse_json
from stream_recon.app.core.types import FrameResult
from stream_recon.app.result.cameras import CAMERAS_NAME, Camera, iterate_cameras
from stream_recon.app.result.depth import depth_path, read_depth
from stream_recon.app.result.run_record import PROGRAM, RUN_NAME, upgraded
from stream_recon.app.result.unit import MetricUnit, T_current_own, metres_of
from stream_recon.configs.errors import OutputError
from stream_recon.configs.schema import PointsConfig, preset_from_tables


class ResultFolder:
    """Iterating gives each frame's result under its last known pose, one at a time, any number of times."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            OutputError: no result folder, or a damaged one.
        """
        self.folder = folder
        self.run = read_run(folder)
        self.cameras = list(iterate_cameras(folder / CAMERAS_NAME))

    @property
    def points(self) -> PointsConfig:
        """Which pixels were taken as points, in the result's unit. Raises ConfigError for a run of an unknown
        version, OutputError where the unit is damaged."""
        return points_of(self.run)

    @property
    def metres(self) -> MetricUnit | None:
        """None where the result is in the reconstruction's own unit. Raises OutputError."""
        return metres_of(self.run)

    def __len__(self) -> int:
        return len(self.cameras)

    def __iter__(self) -> Iterator[FrameResult]:
        for camera in self.cameras:
            yield result_of(self.folder, camera)

    def readable(self, on_damaged: Callable[[OutputError], None], first: bool = False) -> Iterator[FrameResult]:
        """As iterating, but a frame whose depth file is damaged or missing is left out, and told of unless the run did
        not keep all depth files. With ``first`` each as it was first given out, in the unit and world of now."""
        now = T_current_own(self.run)
        for camera in self.with_depth(self.cameras):
            try:
                result = result_of(self.folder, camera.as_causal.moved(now) if first else camera)
            except OutputError as error:
                on_damaged(error)
            else:
                yield result

    def with_depth(self, cameras: Sequence[Camera]) -> list[Camera]:
        """Those of the cameras whose depth files the run was to keep: all, but where it says otherwise."""
        counts = self.run.get("frames")
        if not (isinstance(counts, dict) and counts.get("without_depth")):
            return list(cameras)
        return [camera for camera in cameras if depth_path(self.folder, camera.index).exists()]


def points_of(run: Mapping[str, Any]) -> PointsConfig:
    """Which pixels are points by a ``run.json``. Raises ConfigError, OutputError; see `ResultFolder.points`."""
    preset = run["preset"]
    tables = {key: table for key, table in preset.items() if key != "name"} if isinstance(preset, dict) else preset
    points = preset_from_tables(RUN_NAME, tables).points
    return replace(points, voxel=points.voxel * T_current_own(run).scale)


def read_result(folder: Path) -> ResultFolder:
    """Open what `ResultWriter` left. Raises OutputError."""
    return ResultFolder(folder)


def result_of(folder: Path, camera: Camera) -> FrameResult:
    """A frame's result as last known, from its camera and its depth file. Raises OutputError."""
    stored = read_depth(depth_path(folder, camera.index))
    return FrameResult(
        index=camera.index,
        timestamp=camera.timestamp,
        T_world_camera=camera.T_world_camera,
        intrinsics=camera.intrinsics,
        depth=correct_depth(stored.depth, camera.depth_scale, camera.depth_field),
        confidence=stored.confidence,
        rgb=stored.rgb,
        transform=stored.transform,
        is_keyframe=camera.is_keyframe,
        flow=camera.flow,
        segment=camera.segment,
        health=camera.health,
    )


def causal_result(folder: Path, camera: Camera) -> FrameResult:
    """A frame's result before any revision. Raises OutputError."""
    return result_of(folder, camera.as_causal)


def read_run(folder: Path) -> dict[str, Any]:
    """The content of a result's ``run.json``. Raises OutputError."""
    if not folder.is_dir():
        raise OutputError(f"no such result folder: {folder}")
    try:
        record = parse_json((folder / RUN_NAME).read_bytes())
    except (OSError, ValueError) as error:
        raise OutputError(f"{folder} is not a result of {PROGRAM}: its {RUN_NAME} is missing or damaged") from error
    if not isinstance(record, dict) or record.get("program") != PROGRAM or "preset" not in record:
        raise OutputError(f"{folder} is not a result of {PROGRAM}: {RUN_NAME} is of another program")
    if not isinstance(record.get("source"), str) or not isinstance(record.get("interrupted"), bool):
        raise OutputError(f"{folder}: its {RUN_NAME} is damaged")
    return upgraded(record)
