"""Offline refinement of a finished result folder, with the images of its source."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.core.cores import usable_cores
from stream_recon.app.core.types import FrameResult, FrameRevision, Intrinsics, Revision
from stream_recon.app.core.views import ResultListener, RunView
from stream_recon.app.datasets.source_identity import source_change
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.localization.build import build_map
from stream_recon.app.result.cameras import FrameCamera, revision_since_causal
from stream_recon.app.result.cloud import amend
from stream_recon.app.result.feature_map import remove_map
from stream_recon.app.result.folder import ResultFolder, result_of
from stream_recon.app.result.run_record import METRIC_SCALE, ONTO, PARTS, REFINEMENT, VERDICT
from stream_recon.app.result.tracks import SparseTracks, lens_numbers, read_tracks
from stream_recon.app.result.verdict import judge
from stream_recon.app.run.listeners import RunObserver
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.evidence.depth_scales import interpolated
from stream_recon.app.slam.frame_data import DepthOf, DepthReader, FrameData, Scale
from stream_recon.app.slam.offline.all_frames import PoseInterpolator
from stream_recon.app.slam.offline.config import REFINE, RefineConfig
from stream_recon.app.slam.offline.refine import RefineOptions, refine
from stream_recon.app.slam.offline.report import InitialPoses, IntermediateState, Refinement, RefinementReport
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError

FloatArray = NDArray[np.float64]

STORED_IMAGES = "the source's images are gone: refined with the result's small images, which is less accurate"
MAX_WORKERS = 8
"""Threads at most: each holds an image and its features, and one thread merges what they find."""
READING_SHARE = 0.05
"""Share of the progress for reading depth files, which comes first."""


def refine_result(
    result: ResultFolder,
    open_again: Callable[[], Source] | None,
    listeners: Sequence[ResultListener] = (),
    view: RunView | None = None,
    observer: RunObserver | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    *,
    keep_map: bool = True,
    config: RefineConfig = REFINE,
) -> RefinementReport:
    """Refine a result from the network's estimates, also after earlier refinements, and write it.

    Args:
        open_again: opens the source again, with the same choice of frames. Where it is None or raises InputError, the
            result's own small images are used.
        listeners: get the final revision.
        view: shows intermediate states and the final one; after an early end, the unchanged result.
        observer: gets the progress.
        keep_map: leave the features by which the place is recognized.

    Raises:
        Cancelled: ``cancelled`` returned true; the result is unchanged.
        StreamReconError: a file cannot be read or written; the result is unchanged.
    """
    observer = observer or RunObserver()

    def report(share: float, step: str) -> None:
        if cancelled():
            raise Cancelled
        observer.on_share("refining", share, step)

    every = [camera.as_network for camera in result.cameras]
    cameras = result.with_depth(every)
    images = images_of(result, cameras, open_again)
    if images.change is not None:
        if _used_source(result):
            raise InputError(f"{images.change}; {result.folder} stays as it was refined with the source's images")
        observer.on_message(f"{images.change}: refined with the result's small images", warning=True)
    views = []
    for number, camera in enumerate(cameras):
        views.append(FrameData.from_result(result_of(result.folder, camera), images.scale))
        report(READING_SHARE * number / len(cameras), "depth")

    def show_state(state: IntermediateState) -> None:
        assert view is not None
        lens = state.camera_model.scaled(1 / images.scale.factor)
        view.revise(_moved(every, *_for_all(every, cameras, state.T_world_camera, state.depth_scale), lens))
        view.show_map(state.points, _frames_of(state.loops, [camera.index for camera in cameras]))

    try:
        options = RefineOptions(
            workers=min(usable_cores(), MAX_WORKERS),
            initial_poses=_initial_poses(result, images.scale),
            unordered=result.run.get("unordered") is True,
            known_intrinsics=bool(result.run.get("options", {}).get("camera")),
            refined_before=PARTS in result.run.get("options", {}),
            progress=lambda share, step: report(READING_SHARE + (1 - READING_SHARE) * share, step),
            on_state=show_state if view else None,
        )
        found = refine(views, images, images.scale, options, config)
        if found.fit is None and REFINEMENT in result.run and read_tracks(result.folder) is not None:
            raise InputError(f"no refinement was found this time; {result.folder} keeps its earlier one")
        tracks = _tracks(found, cameras)
        lens = found.camera_model.scaled(1 / found.scale.factor) if found.fit is not None else None
        moved = _moved(every, *_for_all(every, cameras, found.T_world_camera, found.depth_scale), lens)
        angle = None if tracks is None else parallax_deg(tracks, found.T_world_camera, [c.index for c in cameras])
        record = {
            "id": _refinement_id(found),
            **_record(found.report, images.warning),
            "parallax_deg": angle,
            "network_difference": _difference(every, moved),
        }
        revision = _with_fields(moved, cameras, found.depth_fields)
        for listener in listeners:
            listener.revise(revision)
        if view:
            view.revise(revision)
            view.show_map(*_map_of(tracks))
        # Refinement starts from the network, so the result is in the reconstruction's own unit again.
        changes = {REFINEMENT: record, **{key: None for key in (METRIC_SCALE, ONTO) if key in result.run}}
        changes[VERDICT] = judge({**result.run, **changes}, len(result)).to_json()
        observer.on_share("refining", 1.0)
        on_points = partial(observer.on_step, "points")
        amend(result, _relative_to_files(revision, every), changes, tracks, on_points, cancelled)
        write_localization_map(result.folder, found, [cameras[k].index for k in found.keyframes] if keep_map else [])
    except BaseException:
        if view:
            view.revise(revision_since_causal(result.cameras))
            view.show_map(*_map_of(read_tracks(result.folder)))
        raise
    return found.report


def write_localization_map(folder: Path, found: Refinement, frames: Sequence[int]) -> None:
    """Write the map of a refinement with keyframes ``frames``; without any, remove the old one. Raises OutputError."""
    features, camera_model, scale = found.features, found.camera_model, found.scale
    if not (frames and features and build_map(folder, frames, features, camera_model, scale)):
        remove_map(folder)


def _initial_poses(result: ResultFolder, scale: Scale) -> InitialPoses | None:
    """Online poses of the frames with depth; None without an online back end, or after a refinement."""
    cameras = result.with_depth(result.cameras)
    if REFINEMENT in result.run or all(camera.network is None for camera in cameras):
        return None
    # All frames have one camera.
    focal = float(np.median([np.sqrt(camera.intrinsics.fx * camera.intrinsics.fy) for camera in cameras]))
    T = np.array([camera.T_world_camera for camera in cameras])
    return InitialPoses(T, np.array([camera.map_scale for camera in cameras]), focal * scale.factor)


def _map_of(tracks: SparseTracks | None) -> tuple[NDArray[np.floating], NDArray[np.integer]]:
    return (tracks.points, tracks.loops) if tracks else (np.zeros((0, 3)), np.zeros((0, 2), np.int32))


def _frames_of(pairs: Sequence[tuple[int, int]], index: Sequence[int]) -> NDArray[np.int32]:
    """Pairs [L, 2] of positions as indices in the source."""
    return np.array(index, np.int32)[np.array(pairs, np.intp).reshape(-1, 2)]


class _Images:
    """Images of the source, or of the result where the source is gone; the `Images` of `slam/offline/refine.py`."""

    def __init__(
        self,
        result: ResultFolder,
        cameras: Sequence[FrameCamera],
        open_again: Callable[[], Source] | None,
        scale: Scale,
    ) -> None:
        self.scale = scale
        self.warning: str | None = None if open_again is not None else STORED_IMAGES
        self.change: str | None = None
        """How the source differs from the one that the result was made from, if it does."""
        self._folder, self._cameras, self._open = result.folder, cameras, open_again

    def read(self, positions: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint8], DepthOf]]:
        if self._open is None:
            for position in positions:
                stored = result_of(self._folder, self._cameras[position])
                yield position, _on_canvas(stored, self.scale), partial(DepthReader.from_result, stored, self.scale)
            return
        wanted = {self._cameras[position].index: position for position in positions}
        last = max(wanted, default=-1)
        with self._open() as source:
            for frame in source:
                if frame.index in wanted:
                    position = wanted[frame.index]
                    yield position, self.scale.grey(frame.rgb), partial(self._depth, position)
                if frame.index >= last:
                    return

    def _depth(self, position: int) -> DepthReader:
        return DepthReader.from_result(result_of(self._folder, self._cameras[position]), self.scale)


def images_of(result: ResultFolder, cameras: Sequence[FrameCamera], open_again: Callable[[], Source] | None) -> _Images:
    """Images of a result's frames from its source, or its own small ones. Raises InputError without frames."""
    if not cameras:
        raise InputError(f"{result.folder} has no frames to refine")
    first = result_of(result.folder, cameras[0])
    size = first.transform.source_size
    change_message = None
    if open_again is not None:
        try:
            change = source_change(result.folder, cameras, open_again)
        except InputError:
            open_again = None
        else:
            if change is None:
                return _Images(result, cameras, open_again, Scale.from_source_size(size))
            change_message = f"the source has changed since the run ({change})"
    factor = min(Scale.from_source_size(size).factor, sum(first.transform.scale) / 2)
    small = Scale(factor, (max(round(size[0] * factor), 1), max(round(size[1] * factor), 1)))
    images = _Images(result, cameras, None, small)
    images.change = change_message
    return images


def _used_source(result: ResultFolder) -> bool:
    """Whether an earlier refinement had the source's images."""
    earlier = result.run.get(REFINEMENT)
    return isinstance(earlier, dict) and not earlier.get("warning")


def _on_canvas(result: FrameResult, scale: Scale) -> NDArray[np.uint8]:
    """The stored image at its position in the source image."""
    left, top, width, height = (round(v * scale.factor) for v in result.transform.crop)
    canvas = np.zeros((scale.size[1], scale.size[0]), np.uint8)
    grey = cv2.resize(cv2.cvtColor(result.rgb, cv2.COLOR_RGB2GRAY), (width, height), interpolation=cv2.INTER_AREA)
    part = canvas[top : top + height, left : left + width]
    part[:] = grey[: part.shape[0], : part.shape[1]]
    return canvas


def _for_all(
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


def _relative_to_files(revision: Revision, cameras: Sequence[FrameCamera]) -> Revision:
    """The revision with depth scales relative to the depth files: stitched chunks were scaled when they were joined."""
    return Revision(
        tuple(
            dataclasses.replace(frame, depth_scale=frame.depth_scale * camera.depth_scale_causal)
            for frame, camera in zip(revision.frames, cameras, strict=True)
        )
    )


def _moved(
    cameras: Sequence[FrameCamera], T: FloatArray, depth_scale: FloatArray, lens: CameraModel | None
) -> Revision:
    """Revision from the causal estimates to new poses [N, 4, 4].

    ``depth_scale`` [N] is relative to the depths of ``cameras``, ``lens`` in pixels of the source; None: unchanged.
    """
    frames = []
    size = next((camera.source_size for camera in cameras if camera.source_size), None)
    straight = lens if lens is None or size is None else lens.straightened(size)
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


def _tracks(found: Refinement, cameras: Sequence[FrameCamera]) -> SparseTracks | None:
    fitted: BAState | None = found.fit
    if fitted is None:
        return None
    seen, factor, lens = fitted.observations, found.scale.factor, found.camera_model
    index = np.array([cameras[position].index for position in found.keyframes], np.int32)
    order = np.argsort(seen.point, kind="stable")
    total = np.bincount(seen.point, fitted.errors, len(fitted.scene.points))
    size = cameras[0].source_size or (0, 0)
    return SparseTracks(
        points=fitted.scene.points,
        errors=(total / np.maximum(fitted.views_of_points, 1) / factor).astype(np.float32),
        frame=index[seen.camera[order]],
        point=seen.point[order].astype(np.int32),
        pixel=(seen.pixel[order] / factor).astype(np.float32),
        lens=lens_numbers(lens.scaled(1 / factor)),
        source_size=np.array(size, np.int32),
        loops=_frames_of(found.loops, index.tolist()),
    )


def _difference(cameras: Sequence[FrameCamera], moved: Revision) -> float | None:
    """RMS distance of the network's positions from the refined ones after Sim(3) alignment, over the path's length."""
    network = np.array([camera.T_world_camera for camera in cameras])
    refined = np.array([frame.T_world_camera for frame in moved.frames])
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


def _refinement_id(found: Refinement) -> str:
    """Hash of the poses and depth scales, which dense depth maps depend on."""
    return hashlib.sha256(found.T_world_camera.tobytes() + found.depth_scale.tobytes()).hexdigest()[:16]


def _record(report: RefinementReport, warning: str | None) -> dict[str, Any]:
    """The object ``refinement`` of ``run.json``."""
    rounded = {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in dataclasses.asdict(report).items()
    }
    return {**rounded, "warning": warning}
