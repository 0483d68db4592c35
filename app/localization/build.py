"""Making of a result's feature map from the features that its refinement matched."""

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import FrameResult
from stream_recon.app.localization.config import DEFAULT_LOCALIZATION, FeatureMapConfig
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.feature_map import (
    UV_STEPS,
    VECTOR_STEPS,
    FeatureMap,
    packed_descriptors,
    read_map,
    unpacked_descriptors,
    write_map,
)
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.tracks import SparseTracks, read_tracks
from stream_recon.app.slam.frame_data import DepthReader, Scale
from stream_recon.app.slam.matching.features import Features, learn_vocabulary, vlad
from stream_recon.configs.errors import OutputError


def build_map(
    folder: Path,
    frames: Sequence[int],
    features: Sequence[Features],
    camera_model: CameraModel,
    scale: Scale,
    config: FeatureMapConfig = DEFAULT_LOCALIZATION.map,
) -> FeatureMap | None:
    """Write the feature map of a refined result.

    Args:
        frames: indices of the keyframes, ascending.
        features: of the keyframes, in pixels of the working image; ``camera_model`` and ``scale`` are of that image.

    Returns None without enough features. Raises OutputError.
    """
    result = ResultFolder(folder)
    words = learn_vocabulary(features)
    if words is None or result.refinement_id is None:
        return None
    tracked = TrackedDepth(read_tracks(folder), scale, config)
    chosen = [_chosen(f, tracked.has_depth(index, f.uv), config) for index, f in zip(frames, features, strict=True)]
    descriptors = np.concatenate([f.descriptors for f in chosen])
    vectors = np.stack([vlad(f, words.astype(np.float16).astype(np.float32)) for f in features])
    uv = np.concatenate([f.uv for f in chosen])
    content = FeatureMap(
        refinement=np.frombuffer(result.refinement_id.encode("ascii"), np.uint8),
        frame=np.array(frames, np.int32),
        start=np.concatenate([[0], np.cumsum([len(f) for f in chosen])]).astype(np.int64),
        uv=np.rint(uv * UV_STEPS).clip(0, np.iinfo(np.uint16).max).astype(np.uint16),
        z=np.zeros(len(uv), np.float32),
        descriptors=packed_descriptors(descriptors),
        words=words.astype(np.float16),
        vectors=np.rint(vectors * VECTOR_STEPS).astype(np.int8),
        lens=np.array(dataclasses.astuple(camera_model), np.float64),
        size=np.array(scale.size, np.int32),
    )
    content = replace(content, z=_depths(result, content))
    write_map(folder, content)
    return content


def update_map(folder: Path) -> None:
    """Give the feature map of a result the depth of its present depth maps, if there is a map. Raises OutputError."""
    result = ResultFolder(folder)
    content = read_map(folder, result.refinement_id)
    if content is not None:
        write_map(folder, replace(content, z=_depths(result, content)))


def features_of(content: FeatureMap, row: int) -> Features:
    """The features of a keyframe of a map; depths are in the unit of its depth file."""
    part = slice(int(content.start[row]), int(content.start[row + 1]))
    uv = content.uv[part].astype(np.float32) / np.float32(UV_STEPS)
    return Features(uv, unpacked_descriptors(content.descriptors[part]), content.z[part])


def camera_model_of(content: FeatureMap) -> CameraModel:
    """The camera of a map's keyframes, in working pixels."""
    focal, cx, cy, k1, k2, fisheye = content.lens.tolist()
    return CameraModel(focal, cx, cy, k1, k2, bool(fisheye))


def _chosen(features: Features, tracked: NDArray[np.bool_], config: FeatureMapConfig) -> Features:
    """The features to keep: those that several keyframes share first, else the strongest."""
    order = np.lexsort((np.arange(len(features)), ~tracked))[: config.max_features]
    kept = np.sort(order)
    return Features(features.uv[kept], features.descriptors[kept], features.z[kept])


class TrackedDepth:
    """Triangulated points of features. ``scale``: of the working images whose pixels are asked for."""

    def __init__(
        self, tracks: SparseTracks | None, scale: Scale, config: FeatureMapConfig = DEFAULT_LOCALIZATION.map
    ) -> None:
        self._same_px = config.same_px
        self._rows: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        if tracks is None:
            return
        order = np.argsort(tracks.frame, kind="stable")
        frames, starts = np.unique(tracks.frame[order], return_index=True)
        for frame, rows in zip(frames.tolist(), np.split(order, starts[1:]), strict=True):
            pixel = tracks.pixel[rows].astype(np.float64) * scale.factor
            self._rows[frame] = (pixel, tracks.points[tracks.point[rows]])

    def has_depth(self, frame: int, uv: NDArray[np.floating]) -> NDArray[np.bool_]:
        """Which features [N] of a frame are observations of triangulated points."""
        return np.asarray(self.points(frame, uv)[1])

    def points(self, frame: int, uv: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """World points [N, 3] of features [N, 2] of a frame, and which have one [N]."""
        pixel, points = self._rows.get(frame, (np.zeros((0, 2)), np.zeros((0, 3))))
        xyz, known = np.zeros((len(uv), 3)), np.zeros(len(uv), bool)
        if len(pixel) and len(uv):
            order = np.argsort(pixel[:, 0], kind="stable")
            pixel, points = pixel[order], points[order]
            begin = np.searchsorted(pixel[:, 0], uv[:, 0] - self._same_px)
            for step in range(4):  # more observations than these never share a column
                at = (begin + step).clip(max=len(pixel) - 1)
                same = (np.abs(pixel[at] - uv) < self._same_px).all(axis=1)
                xyz[same], known[same] = points[at[same]], True
        return xyz, known


def _depths(result: ResultFolder, content: FeatureMap) -> NDArray[np.float32]:
    """Depths [F] of a map's features in the unit of the depth files: of triangulated points, else of depth maps."""
    z = np.zeros(len(content.uv), np.float32)
    rows = {index: row for row, index in enumerate(content.frame.tolist())}
    camera_model, size = camera_model_of(content), (int(content.size[0]), int(content.size[1]))
    scale = Scale(size[0] / result.cameras[0].source_size[0], size)
    tracked = TrackedDepth(read_tracks(result.folder), scale)
    for camera in (camera for camera in result.cameras if camera.index in rows):
        row = rows[camera.index]
        part = slice(int(content.start[row]), int(content.start[row + 1]))
        uv = content.uv[part].astype(np.float64) / UV_STEPS
        points, known = tracked.points(camera.index, uv)
        T = invert_pose(camera.T_world_camera)
        exact = points @ T[2, :3] + T[2, 3]
        measured = _sampled(result, camera, uv, camera_model, scale) if not known.all() else np.zeros(len(uv))
        z[part] = np.where(known & (exact > 0), exact, measured) / camera.depth_scale
    return z


def _sampled(
    result: ResultFolder, camera: FrameCamera, uv: NDArray[np.float64], camera_model: CameraModel, scale: Scale
) -> NDArray[np.float64]:
    """Depths [N] at working pixels in the result's unit; 0 where there is none."""
    try:
        surface: FrameResult = result.surface_of(camera)
    except OutputError:
        return np.zeros(len(uv))
    # A result's depth maps have no distortion.
    straight = replace(camera_model, k1=0.0, k2=0.0, fisheye=False).pixels(camera_model.rays(uv))
    return DepthReader.from_result(surface, scale).sample(straight).astype(np.float64)
