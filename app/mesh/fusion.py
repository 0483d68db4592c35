"""Fusion of a result's depth maps into volumes of several resolutions, and the mesh of their surfaces.

Near surfaces are fused with small voxels. What is farther from the cameras goes into coarser volumes, since the error
of depth grows with distance. Where frames disagree by more than a volume's truncation distance, as on walls without
texture and far facades, the next coarser one takes the depth, too, since only it has a surface there. Where a finer
volume has a surface, the coarser ones' is left out.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from stream_recon.app.core.cores import usable_cores
from stream_recon.app.core.depth_points import confidence_levels, sure_pixels
from stream_recon.app.core.ply import uniform_indices
from stream_recon.app.core.types import Certainty, FrameResult, Intrinsics
from stream_recon.app.mesh.agreement import AgreedMaps
from stream_recon.app.mesh.config import FusionConfig, MeshConfig
from stream_recon.app.mesh.surface import Mesh, extract, joined, subset, without_floaters
from stream_recon.app.mesh.tsdf import FusionView, Volume, incidences
from stream_recon.app.mesh.visibility import looks
from stream_recon.app.result.cameras import FrameCamera, select_cameras
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.tracks import read_tracks
from stream_recon.configs.errors import NoSurfaceError, OutputError
from stream_recon.configs.schema import PointsConfig

Report = Callable[[float], None]
"""Gets the share done, from 0 to 1; may raise Cancelled."""


@dataclass(frozen=True)
class Fused:
    """Mesh of all surfaces."""

    mesh: Mesh
    voxel: float
    """Spacing of the finest volume."""
    truncation: float
    """Truncation distance of the finest volume."""
    frames: int
    """Frames that observed each voxel, at least."""
    missing: int
    """Frames that could not be read."""
    max_depth: float
    """Largest depth that was fused."""
    views: list[FusionView]
    """Depth maps of some of the frames."""


def mesh_cameras(result: ResultFolder, max_frames: int, frames: str | None = None) -> list[FrameCamera]:
    """The cameras of the frames that are fused, at most ``max_frames``.

    ``frames``: as of `select_cameras`; None: those with dense depth, or else the keyframes. Raises StreamReconError.
    """
    if frames is None and result.dense:
        cameras = result.surface_cameras
    else:
        tracks = read_tracks(result.folder)
        refined = None if tracks is None else np.unique(tracks.frame)
        cameras = result.with_depth(select_cameras(result.cameras, frames or "keyframes", refined))
    return [cameras[number] for number in uniform_indices(len(cameras), max_frames)]


def fuse(
    result: ResultFolder, cameras: Sequence[FrameCamera], mesh_config: MeshConfig, report: Report = lambda share: None
) -> Fused:
    """The mesh of all depth maps of these cameras. Raises NoSurfaceError: no frame could be read."""
    config = mesh_config.fusion
    maps = AgreedMaps(result, cameras, mesh_config.agreement, lambda: report(0.0))
    median, width = _median_depth(result, maps, config)
    noise = config.noise_factor * _disagreement(maps, config)
    least, most = config.voxel_pixels
    span = noise / config.truncation[1] if np.isfinite(noise) else 0.0
    voxel = float(np.clip(span, least * width, most * width))
    with ThreadPoolExecutor(usable_cores(), "fusion") as pool:
        while True:
            truncation = float(np.clip(noise / voxel, *config.truncation))
            disagree = noise / voxel > config.truncation[1]
            # Disagreement grows with depth: a volume begins where it exceeds what the next finer one spans.
            spanned = config.truncation[1] * voxel / max(noise, 1e-12)  # of the disagreement at the median depth
            begins = spanned / (config.max_depth * config.level_factor)
            levels = []
            for level, share in enumerate(config.min_depths):
                factor, max_depth = config.level_factor**level, config.max_depth * median
                volume = Volume(voxel * factor, truncation * voxel * factor, config.max_blocks, pool)
                levels.append(_Level(volume, min(share, begins) * max_depth * factor, max_depth * factor))
            if _allocate(result, maps, levels, config, lambda share: report(config.allocation_share * share)):
                break
            voxel *= config.full_factor
        bands = np.minimum(np.array(config.bands, np.float32) / np.float32(truncation), np.float32(1))
        first = config.allocation_share
        views, missing = _integrate(
            result, maps, levels, bands, config, lambda share: report(first + (1 - first) * share)
        )
    most = max(1, (len(cameras) - missing) // 4)
    volumes = [level.volume for level in levels]
    meshes = [extract(volume, min(least, most)) for volume, least in zip(volumes, config.min_frames, strict=True)]
    mesh = _nested(meshes, volumes, disagree, mesh_config)
    return Fused(mesh, voxel, truncation * voxel, min(config.min_frames[0], most), missing, levels[-1].farthest, views)


@dataclass(frozen=True)
class _Level:
    """A volume, and the bounds of the depths that it takes."""

    volume: Volume
    nearest: float
    farthest: float
    slots: dict[int, NDArray[np.intp]] = field(default_factory=dict)
    """Rows of the blocks near a frame's surfaces, by the frame's place among the cameras."""

    def view(self, view: FusionView) -> FusionView | None:
        """What the volume takes of a frame; None: nothing."""
        chosen = (view.depth < self.farthest) & (view.depth > self.nearest)
        return replace(view, depth=np.where(chosen, view.depth, np.float32(0))) if chosen.any() else None


def _allocate(
    result: ResultFolder, maps: AgreedMaps, levels: Sequence[_Level], config: FusionConfig, report: Report
) -> bool:
    """Allocate the blocks of all frames; returns whether the volumes have room for them."""
    for number in range(len(maps)):
        report(number / len(maps))
        with suppress(OutputError):
            whole = _whole_view(maps.frame(number), result.points, config)
            for level in levels:
                view = level.view(whole)
                if view is not None:
                    level.slots[number] = level.volume.allocate(view)
        if any(level.volume.full for level in levels):
            return False
    return True


def _integrate(
    result: ResultFolder,
    maps: AgreedMaps,
    levels: Sequence[_Level],
    bands: NDArray[np.float32],
    config: FusionConfig,
    report: Report,
) -> tuple[list[FusionView], int]:
    """Fuse frames into volumes; returns some depth maps, and the number of unreadable frames.

    ``bands``: as of the config, in truncations.
    """
    views, missing = list[FusionView](), 0
    fades = np.array(config.fades, np.float32)
    kept_numbers = set(uniform_indices(len(maps), config.max_kept_views).tolist())
    for number in range(len(maps)):
        report(number / len(maps))
        try:
            frame = maps.frame(number)
        except OutputError:
            missing += 1
            continue
        whole = _whole_view(frame, result.points, config)
        if number in kept_numbers:
            confirmed = None if frame.certainty is None else frame.certainty == Certainty.CONFIRMED
            kept = replace(whole, depth=whole.depth.astype(np.float16), rgb=whole.rgb[:0], weight=None, incidence=None)
            views.append(replace(kept, confirmed=confirmed))
        for level in levels:
            view = level.view(whole)
            if view is not None:
                if frame.certainty is not None:
                    view = replace(view, band=bands[frame.certainty], fade=fades[frame.certainty])
                level.volume.integrate(view, level.slots.get(number))
    return views, missing


def _whole_view(frame: FrameResult, points: PointsConfig, config: FusionConfig) -> FusionView:
    """All of a frame that is fused."""
    view = depth_view(frame, pixel_weights(frame, points, config))
    return replace(view, incidence=incidences(view.depth, view.camera))


def depth_view(frame: FrameResult, weight: NDArray[np.float32]) -> FusionView:
    """The frame's depth where ``weight`` [h, w] is positive."""
    depth = np.where(weight > 0, frame.depth, np.float32(0))
    return FusionView(depth, frame.rgb, frame.network_intrinsics, frame.T_world_camera, weight)


def pixel_weights(frame: FrameResult, points: PointsConfig, config: FusionConfig) -> NDArray[np.float32]:
    """Weights [h, w] of a frame's pixels; 0 at depth edges and where depth is unknown or uncertain."""
    weights = np.array(config.weights, np.float32)
    if frame.certainty is not None:
        weight = weights[frame.certainty]
    else:
        # The relative error of the network's depth is proportional to what the confidence lacks.
        missing = 1 - confidence_levels(frame)
        weight = weights[Certainty.NETWORK] * np.square(np.minimum(config.usual_missing / np.maximum(missing, 1e-3), 1))
    return np.where(sure_pixels(frame, points), weight, np.float32(0)).astype(np.float32)


def _nested(meshes: Sequence[Mesh], volumes: Sequence[Volume], disagree: bool, config: MeshConfig) -> Mesh:
    """The union of meshes from fine to coarse: of each, what is not near a finer one.

    ``disagree``: frames differ by more than the finest volume spans.
    """
    total = without_floaters(meshes[0], config.min_part)
    for mesh, volume in zip(meshes[1:], volumes[1:], strict=True):
        if len(mesh.faces) and len(total.faces):
            near = cKDTree(total.xyz).query(mesh.xyz, distance_upper_bound=config.fusion.away * volume.voxel)[0]
            is_far = ~np.isfinite(near)
            for _ in range(config.fusion.rings if disagree else 0):
                is_far[mesh.faces[is_far[mesh.faces].any(axis=1)]] = True
            mesh = subset(mesh, is_far[mesh.faces].any(axis=1))
        total = joined(total, without_floaters(mesh, config.min_part))
    return total


def _median_depth(result: ResultFolder, maps: AgreedMaps, config: FusionConfig) -> tuple[float, float]:
    """Median depth of reliable pixels, and the width of a pixel there. Raises NoSurfaceError without a frame."""
    depths, widths = [], []
    for number in uniform_indices(len(maps), config.max_depth_frames):
        try:
            frame = maps.frame(number)
        except OutputError:
            continue
        reliable = frame.depth[pixel_weights(frame, result.points, config) > 0]
        if len(reliable):
            depths.append(float(np.median(reliable)))
            widths.append(depths[-1] / frame.network_intrinsics.fx)
    if not depths:
        raise NoSurfaceError(f"no frame of {result.folder} is readable: there is nothing to export")
    return float(np.median(depths)), float(np.median(widths))


def _disagreement(maps: AgreedMaps, config: FusionConfig) -> float:
    """Median distance of unconfirmed depth from the surface that another frame shows; infinite if it is unknown."""
    differences = []
    for number in uniform_indices(max(len(maps) - config.noise_distance, 0), config.noise_pairs):
        try:
            one, other = (maps.frame(n) for n in (number, number + config.noise_distance))
        except OutputError:
            continue
        if one.certainty is None or other.certainty is None:
            continue
        points = one.camera_points[one.certainty == Certainty.NETWORK][:: config.noise_step]
        T = one.T_world_camera.astype(np.float32)
        view = depth_view(other, (other.depth > 0).astype(np.float32))
        for _, _, z, depth in looks(points @ T[:3, :3].T + T[:3, 3], [view]):
            differences.append(np.abs(depth - z))
    medians = [float(np.median(each)) for each in differences if len(each)]
    return float(np.median(medians)) if medians else float("inf")


@dataclass(frozen=True)
class SourceView:
    """Image and depth of one frame, by which textures are chosen."""

    image: NDArray[np.uint8]  # [H, W, 3]
    camera: Intrinsics  # in pixels of ``image``
    T_world_camera: NDArray[np.float64]  # [4, 4]
    depth: NDArray[np.float32]  # [h, w], 0 where unknown; at any size of the same view
    masked: NDArray[np.bool_]  # [h, w]


def source_view(result: ResultFolder, camera: FrameCamera) -> SourceView:
    """A frame's view: the image of its dense map, or else the small one of its depth file. Raises OutputError."""
    if camera.index in result.dense:
        dense = result.dense_map(camera.index)
        frame = dense.result(camera)
        try:
            image = dense.image
        except ValueError as error:
            raise OutputError(f"the image of frame {camera.index} in {result.folder} is damaged") from error
    else:
        frame = result.surface_of(camera)
        image = frame.rgb
    sx, sy = image.shape[1] / frame.depth.shape[1], image.shape[0] / frame.depth.shape[0]
    k = frame.network_intrinsics
    scaled = Intrinsics(k.fx * sx, k.fy * sy, k.cx * sx, k.cy * sy)
    return SourceView(image, scaled, frame.T_world_camera, frame.depth, frame.masked)
