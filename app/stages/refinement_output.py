"""What the refinement of a result changes in it: poses and depth of all frames, points, and entries of ``run.json``."""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.rig import view_of
from stream_recon.app.core.types import FrameRevision, Intrinsics, Revision
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.localization.build import build_map
from stream_recon.app.metric_scale.known_poses import FittingPoses
from stream_recon.app.result.cameras import FrameCamera, of_bodies
from stream_recon.app.result.feature_map import remove_map
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.run_record import METRIC_SCALE, ONTO, POSES, REFINEMENT, VERDICT
from stream_recon.app.result.tracks import SparseTracks, lens_numbers
from stream_recon.app.result.verdict import judge
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.evidence.depth_scales import interpolated
from stream_recon.app.slam.offline.all_frames import PoseInterpolator
from stream_recon.app.slam.offline.report import Refinement, keeps_stream

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class RefinedResult:
    """What changes in a result."""

    revision: Revision
    """From the causal estimates; depth scales are relative to those of the network."""
    tracks: SparseTracks | None
    changes: dict[str, Any]
    """Entries of ``run.json``."""


def refined_result(
    result: ResultFolder,
    every: Sequence[FrameCamera],
    cameras: Sequence[FrameCamera],
    refinement: Refinement,
    warning: str | None,
    known: FittingPoses | None = None,
) -> RefinedResult:
    """What a refinement of the frames ``cameras``, those with depth, changes in a result with the frames ``every``.

    ``known``: the known poses that it started from.
    """
    tracks = _sparse_tracks(refinement, cameras)
    is_changed = refinement.fit is not None or keeps_stream(vars(refinement.report))
    camera_model = refinement.camera_model.scaled(1 / refinement.scale.factor) if is_changed else None
    T = refinement.T_world_camera
    moved = revision_to(every, *for_all_frames(every, cameras, T, refinement.depth_scale), camera_model)
    record = {
        **_record(refinement, warning),
        "parallax_deg": None if tracks is None else parallax_deg(tracks, T, [camera.index for camera in cameras]),
        "network_difference": _difference(every, moved),
    }
    # Refinement starts from the network, so the result is in the reconstruction's own unit again; a rig gives metres.
    is_metric = result.rig is not None and not result.rig.is_central
    lost = [key for key in (METRIC_SCALE, ONTO) if key in result.run and not (is_metric and key == METRIC_SCALE)]
    changes = {REFINEMENT: record, **dict.fromkeys(lost)}
    if known is not None or POSES in result.run:
        changes[POSES] = None if known is None else known.to_json()
    changes[VERDICT] = judge({**result.run, **changes}, len(result)).to_json()
    return RefinedResult(_with_fields(moved, cameras, refinement.depth_fields), tracks, changes)


def write_localization_map(folder: Path, refinement: Refinement, frames: Sequence[int]) -> None:
    """Write the map of a refinement with keyframes ``frames``; without any, remove the old one. Raises OutputError."""
    features, camera_model, scale = refinement.features, refinement.camera_model, refinement.scale
    if not (frames and features and build_map(folder, frames, features, camera_model, scale)):
        remove_map(folder)


def frames_of(pairs: Sequence[tuple[int, int]], index: Sequence[int]) -> NDArray[np.int32]:
    """Pairs [L, 2] of positions as indices in the source."""
    return np.array(index, np.int32)[np.array(pairs, np.intp).reshape(-1, 2)]


def for_all_frames(
    every: Sequence[FrameCamera], kept: Sequence[FrameCamera], T: FloatArray, depth_scale: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Poses and depth scales of all frames from those [N] of the frames with depth; the others are interpolated."""
    if len(every) == len(kept):
        return T, depth_scale
    row = {camera.index: number for number, camera in enumerate(every)}
    positions = np.array([row[camera.index] for camera in kept])
    earlier = np.array([camera.T_world_camera for camera in every])
    interpolator = PoseInterpolator(positions, earlier, T, depth_scale, np.array([camera.segment for camera in every]))
    poses = np.array([interpolator.pose(number) for number in range(len(every))])
    return poses, interpolated(positions.tolist(), depth_scale, len(every))


def relative_to_files(revision: Revision, cameras: Sequence[FrameCamera]) -> Revision:
    """The revision with depth scales relative to the depth files: stitched chunks were scaled when they were joined."""
    return Revision(
        tuple(
            dataclasses.replace(frame, depth_scale=frame.depth_scale * camera.depth_scale_causal)
            for frame, camera in zip(revision.frames, cameras, strict=True)
        )
    )


def revision_to(
    cameras: Sequence[FrameCamera], T: FloatArray, depth_scale: FloatArray, camera_model: CameraModel | None
) -> Revision:
    """Revision from the causal estimates to new poses [N, 4, 4].

    ``depth_scale`` [N] is relative to the depths of ``cameras``; ``camera_model`` in pixels of the source, None: the
    same.
    """
    frames = []
    straight = None if camera_model is None else camera_model.straightened(cameras[0].source_size)
    for camera, pose, scale in zip(cameras, T, depth_scale, strict=True):
        k = camera.intrinsics
        intrinsics = (
            k if straight is None else Intrinsics.from_camera_model(dataclasses.replace(straight, cx=k.cx, cy=k.cy))
        )
        factor = float(scale) * camera.depth_scale / camera.depth_scale_causal
        frames.append(FrameRevision(camera.index, pose, factor, intrinsics))
    return Revision(tuple(frames))


def _with_fields(revision: Revision, cameras: Sequence[FrameCamera], fields: NDArray[np.float16]) -> Revision:
    """The revision with depth fields [N, ...] of the frames with depth; fields of zeros are omitted."""
    known = {camera.index: field for camera, field in zip(cameras, fields, strict=True) if field.any()}
    return Revision(tuple(dataclasses.replace(f, depth_field=known.get(f.index)) for f in revision.frames))


def _sparse_tracks(refinement: Refinement, cameras: Sequence[FrameCamera]) -> SparseTracks | None:
    fitted: BAState | None = refinement.fit
    if fitted is None:
        return None
    observations, factor = fitted.observations, refinement.scale.factor
    index = np.array([cameras[position].index for position in refinement.keyframes], np.int32)
    order = np.argsort(observations.point, kind="stable")
    total = np.bincount(observations.point, fitted.errors, len(fitted.scene.points))
    return SparseTracks(
        points=fitted.scene.points,
        errors=(total / np.maximum(fitted.views_of_points, 1) / factor).astype(np.float32),
        frame=index[observations.camera[order]],
        point=observations.point[order].astype(np.int32),
        pixel=(observations.pixel[order] / factor).astype(np.float32),
        lens=lens_numbers(refinement.camera_model.scaled(1 / factor)),
        source_size=np.array(cameras[0].source_size, np.int32),
        loops=frames_of(refinement.loops, index.tolist()),
    )


def _difference(cameras: Sequence[FrameCamera], moved: Revision) -> float | None:
    """RMS distance of the network's positions from the refined ones after Sim(3) alignment, over the path's length."""
    network = np.array([camera.T_world_camera for camera in of_bodies(cameras)])
    refined = np.array([frame.T_world_camera for frame in moved.frames if not view_of(frame.index)])
    share = pose_errors(network, refined, np.zeros(len(network) - 1, bool)).ate_over_path
    return None if share is None else round(share, 5)


def parallax_deg(tracks: SparseTracks, T_world_camera: FloatArray, index: Sequence[int]) -> float | None:
    """Median angle in degrees under which triangulated points are seen; None without points.

    ``T_world_camera`` [N, 4, 4] are the poses of the frames ``index`` [N], ascending. The angle of a point is twice the
    largest one between its rays and their mean.
    """
    count = len(tracks.points)
    if not count:
        return None
    centres = T_world_camera[np.searchsorted(np.array(index), tracks.frame), :3, 3]
    rays = tracks.points[tracks.point] - centres
    rays /= np.maximum(np.linalg.norm(rays, axis=1, keepdims=True), 1e-12)
    mean = np.stack([np.bincount(tracks.point, axis, count) for axis in rays.T], axis=1).astype(np.float64)
    mean /= np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)
    # By the chord, which is accurate at small angles.
    chord = np.linalg.norm(rays - mean[tracks.point], axis=1)
    largest = np.zeros(count)
    np.maximum.at(largest, tracks.point, chord)
    return round(float(np.degrees(4 * np.arcsin(np.minimum(np.median(largest) / 2, 1.0)))), 4)


def _record(refinement: Refinement, warning: str | None) -> dict[str, Any]:
    """The object ``refinement`` of ``run.json``, with an id that dense depth maps depend on."""
    entries = {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in dataclasses.asdict(refinement.report).items()
    }
    content = refinement.T_world_camera.tobytes() + refinement.depth_scale.tobytes()
    return {"id": hashlib.sha256(content).hexdigest()[:16], **entries, "warning": warning}
