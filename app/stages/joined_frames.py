"""The frames of several results in one folder and one world, before any refinement; see `stages/merge.py`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import correct_depth
from stream_recon.app.core.rig import VIEW_STRIDE, view_of
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.core.types import FrameResult, ImageTransform, Intrinsics
from stream_recon.app.localization.config import DEFAULT_LOCALIZATION
from stream_recon.app.localization.localize import LocalizationMap
from stream_recon.app.localization.placing import PlacedResult
from stream_recon.app.result.amend import rebuild_cloud
from stream_recon.app.result.cameras import FrameCamera, change_cameras
from stream_recon.app.result.commit import FolderChange
from stream_recon.app.result.depth import DEPTH_FOLDER, depth_path, read_depth, write_depth
from stream_recon.app.result.files import output_errors, replace_json
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.run_record import (
    DENSE,
    MESH,
    METRIC_SCALE,
    ONLINE,
    PARTS,
    REFINEMENT,
    RUN_NAME,
    VERDICT,
    VIEWS,
    now_text,
    program_version,
)
from stream_recon.app.run.health import HealthMonitor, recorded_pictures
from stream_recon.app.sources.joined import CameraChange

MAX_FOCAL_CHANGE = 0.15
"""Difference of log focal lengths, by each result's own refinement, above which there are two cameras: a walk straight
ahead hardly measures it."""
SAME_PX = 1.0
"""Radial distortion at the image's corner, in pixels, up to which a camera is a pinhole camera."""
PAUSE_SECONDS = 1.0
"""Between the last frame of a result and the first one of the next, in the merged result's time."""


@dataclass(frozen=True)
class MergeInput:
    """One of the results to merge."""

    result: ResultFolder

    @staticmethod
    def open(folder: Path) -> "MergeInput":
        """Raises OutputError, and InputError where the result has no map."""
        result = read_result(folder)
        result.check_frames("merge")
        LocalizationMap.open(folder)
        return MergeInput(result)

    def place(self) -> LocalizationMap:
        """Its map. Raises OutputError."""
        return LocalizationMap.open(self.result.folder)

    @property
    def name(self) -> str:
        return self.result.folder.resolve().name

    @property
    def camera(self) -> Intrinsics:
        """Camera of all frames, with the median of their focal lengths, as in the map: the network has one of each."""
        k = self.result.cameras[0].intrinsics
        focal = float(np.median([camera.intrinsics.fx for camera in self.result.cameras]))
        return replace(k, fx=focal, fy=focal * k.fy / k.fx)

    @property
    def has_measured_focal(self) -> bool:
        """Whether the focal length is given, or the refinement measured it."""
        refinement = self.result.run.get(REFINEMENT) or {}
        return self.result.has_known_camera or refinement.get("field_of_view_measured") is True

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the source's images."""
        return self.result.cameras[0].source_size


def _changes_to_first(chosen: Sequence[tuple[MergeInput, PlacedResult]]) -> list[CameraChange | None]:
    """Conversions of the results' images to the first one's camera; None where they are its images already."""
    first = chosen[0][0]
    first_model, target = first.camera.camera_model, first.camera.pinhole
    corner = np.array([[first.camera.cx, first.camera.cy]]) / first.camera.fx

    def change(each: MergeInput, place: PlacedResult) -> CameraChange | None:
        own = each.camera.camera_model
        ratio = abs(float(np.log(own.focal / first_model.focal)))
        max_ratio = MAX_FOCAL_CHANGE if place.is_same_camera else DEFAULT_LOCALIZATION.alignment.same_focal
        same = each.size == first.size and ratio < max_ratio
        # One camera has one focal length, which the joint refinement finds. Of two it finds one and keeps the ratio:
        # that of the matches, where a result's own motion did not measure it.
        measured = each.has_measured_focal and first.has_measured_focal
        source = replace(own, focal=first_model.focal if same else own.focal * (1.0 if measured else place.focal))
        distorted = float(np.abs(source.distorted(corner) - corner).max()) * source.focal
        return None if same and distorted < SAME_PX else CameraChange(source, target, first.size)

    return [change(each, place) for each, place in chosen]


def write_joined(
    work: Path, chosen: Sequence[tuple[MergeInput, PlacedResult]], on_progress: Callable[[int, int], None]
) -> int:
    """Write the frames of all results into a folder in one world, before any refinement; returns their number."""
    changes = _changes_to_first(chosen)
    cameras: list[FrameCamera] = []
    parts: list[dict[str, Any]] = []
    total = sum(len(each.result) for each, _ in chosen)
    first, start, without_depth, count = 0, 0.0, 0, len(chosen)
    with output_errors(work):
        (work / DEPTH_FOLDER).mkdir(exist_ok=True)
    for number, ((each, place), change) in enumerate(zip(chosen, changes, strict=True)):
        S = place.S_first_own
        parts.append(
            {
                "name": each.name,
                "options": each.result.run.get("options", {}),
                "first": first,
                "start": start,
                "frames": len(each.result),
                "change": None if change is None else change.to_json(),
            }
        )
        for camera in each.result.cameras:
            joined = _joined_camera(camera, S, change, (first, start, view_of(camera.index) * count + number))
            if depth_path(each.result.folder, camera.index).exists():
                write_depth(work, _joined_frame(each.result, camera, joined, S.scale, change))
            else:
                without_depth += 1
            cameras.append(joined)
            on_progress(len(cameras), total)
        first = cameras[-1].index % VIEW_STRIDE + 1
        start = cameras[-1].timestamp + PAUSE_SECONDS
    cameras.sort(key=lambda camera: camera.index)  # as the joined source has them
    with FolderChange(work) as cameras_change:
        change_cameras(cameras_change, cameras, 0)
        cameras_change.commit()
    record = _record([each for each, _ in chosen], parts, cameras, without_depth)
    replace_json(work / RUN_NAME, record)
    rebuild_cloud(read_result(work))
    return len(cameras)


def _joined_camera(
    camera: FrameCamera, S: Similarity, change: CameraChange | None, place: tuple[int, float, int]
) -> FrameCamera:
    """A result's final camera as one of the merged result; its depth is stored with all corrections."""
    first, start, segment = place
    pose = S.move_pose(camera.T_world_camera)
    intrinsics = camera.intrinsics.pinhole if change is None else change.target
    return FrameCamera(
        index=first + camera.index,
        timestamp=start + camera.timestamp,
        T_world_camera=pose,
        T_world_camera_causal=pose,
        intrinsics=intrinsics,
        intrinsics_causal=intrinsics,
        is_keyframe=camera.is_keyframe,
        flow=camera.flow,
        source_size=camera.source_size if change is None else change.size,
        segment=segment,
        health=camera.health,
    )


def _joined_frame(
    result: ResultFolder, camera: FrameCamera, joined: FrameCamera, scale: float, change: CameraChange | None
) -> FrameResult:
    stored = read_depth(depth_path(result.folder, camera.index))
    depth = correct_depth(stored.depth, scale * camera.depth_scale, camera.depth_field)
    confidence, rgb, transform = stored.confidence, stored.rgb, stored.transform
    if change is not None:
        sides = (float(transform.source_size[0]), float(transform.source_size[1]))
        size = _network_size(change, transform)
        depth = _float(change.map(depth, sides, size, cv2.INTER_NEAREST))
        confidence = _float(change.map(confidence, sides, size, cv2.INTER_NEAREST))
        rgb = np.asarray(change.map(rgb, sides, size, cv2.INTER_LINEAR), np.uint8)
        transform = ImageTransform(change.size, (0.0, 0.0, float(change.size[0]), float(change.size[1])), size)
    return FrameResult(
        index=joined.index,
        timestamp=joined.timestamp,
        T_world_camera=joined.T_world_camera,
        intrinsics=joined.intrinsics,
        depth=depth,
        confidence=confidence,
        rgb=rgb,
        transform=transform,
        is_keyframe=joined.is_keyframe,
        segment=joined.segment,
    )


def _network_size(change: CameraChange, transform: ImageTransform) -> tuple[int, int]:
    """Size of the depth map of the target camera, with the resolution of the source's one."""
    longer = max(transform.network_size)
    factor = longer / max(change.size)
    return max(round(change.size[0] * factor), 1), max(round(change.size[1] * factor), 1)


def _float(values: NDArray[np.generic]) -> NDArray[np.float32]:
    return np.asarray(values, np.float32)


def _record(
    inputs: Sequence[MergeInput], parts: Sequence[dict[str, Any]], cameras: Sequence[FrameCamera], without_depth: int
) -> dict[str, Any]:
    """The ``run.json`` of a merged result before refinement."""
    runs, rig = [each.result.run for each in inputs], inputs[0].result.rig
    dropped = (REFINEMENT, DENSE, MESH, METRIC_SCALE, VERDICT, ONLINE)
    kept = {key: value for key, value in runs[0].items() if key not in dropped}
    counts = ("read", "reconstructed", "keyframes", "dropped", "damaged", "blank")
    frames = {key: sum(int(run.get("frames", {}).get(key) or 0) for run in runs) for key in counts}
    weak = sum(int(run.get("health", {}).get("weak_frames") or 0) for run in runs)
    segments = [
        {"index": part["first"], "timestamp": part["start"], "reason": f"start of {part['name']}"} for part in parts[1:]
    ]
    return {
        **kept,
        "version": program_version(),
        "source": " + ".join(part["name"] for part in parts),
        "started": now_text(),
        "interrupted": False,
        "frames": {**frames, "without_depth": without_depth},
        "segments": segments,
        "health": {**HealthMonitor(pictures=map(recorded_pictures, runs)).summary(), "weak_frames": weak},
        "focal_change": None,
        "resumed": [],
        "warnings": [],
        "options": {"source": None, PARTS: list(parts), **({} if rig is None else {VIEWS: rig.to_json()})},
        "revisions": {"cameras": 0, "trajectory": 0, "points": 0},
    }
