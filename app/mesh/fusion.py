"""Fusion of a result's depth maps into volumes of several resolutions, and the mesh of their surfaces.

Near surfaces are fused with small voxels. What is farther from the cameras goes into coarser volumes, since the error
of depth grows with distance. Where frames disagree by more than a volume's truncation distance, as on walls without
texture and far facades, the next coarser one takes the depth, too, since only it has a surface there. Where a finer
volume has a surface, the coarser ones' is left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from stream_recon.app.core.depth_points import confidence_levels, sure_pixels
from stream_recon.app.core.ply import uniform_indices
from stream_recon.app.core.types import Certainty, FrameResult, Intrinsics
from stream_recon.app.mesh.surface import Mesh, extract, joined, subset, without_floaters
from stream_recon.app.mesh.tsdf import FusionView, Volume
from stream_recon.app.mesh.visibility import looks
from stream_recon.app.result.cameras import Camera, select_cameras
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.tracks import read_tracks
from stream_recon.configs.errors import NoSurfaceError, OutputError
from stream_recon.configs.schema import PointsConfig

VOXEL_PIXELS = 1.5
"""Voxel size in widths of a depth pixel at the median depth: smaller voxels hold noise."""
TRUNCATION = (3.0, 6.0)
"""Bounds of the truncation distance in voxels: less leaves gaps and parallel layers where frames disagree, more blurs
where they agree."""
NOISE_FACTOR = 2.0
"""The truncation distance in medians of the disagreement of unconfirmed depth."""
NOISE_PAIRS, NOISE_DISTANCE, NOISE_STEP = 12, 3, 5
"""Pairs of frames that are compared, the number of frames between them, and of pixels between the compared ones."""
BANDS = np.array([6.0, 4.8, 2.4, 2.4], np.float32)
"""Depth behind the surface that a pixel fills, in voxels but at most the truncation, by `Certainty`: more thickens
edges, less leaves gaps."""
FRONTS = np.array([1.0, 1.0, 1.0, 1.0], np.float32)
"""Largest distance before the surface that a pixel says, in truncations, by `Certainty`."""
LEVELS = 3
"""Number of volumes."""
NEAREST = (0.0, 0.2, 0.2)
"""Least depth in each volume, as a share of its largest one, at most: volumes overlap, so that no gap is between
them."""
AWAY = 1.2
"""Distance in voxels from a finer surface from which a coarser one is kept."""
RINGS = 2
"""Rings of triangles about these that are kept, too, where frames disagree by more than the finest volume spans at the
median depth: else gaps would be between both."""
MAX_DEPTH = 3.0
"""Largest depth of the finest volume, in median depths: beyond it a pixel is several voxels wide."""
COARSER_LEVEL = 3.0
"""Factor between the voxels, and between the largest depths, of two levels."""
USUAL_MISSING = 0.1
"""What the confidence of good pixels of the network lacks to 1, see `confidence_levels`."""
WEIGHTS = np.array([0.0, 0.05, 0.25, 1.0], np.float32)
"""Weight of a pixel by its `Certainty`: the network's errors are correlated between frames and do not average out."""
MIN_FRAMES = (3, 3, 5)
"""Fewest frames that observe a voxel of the surface of each volume, where there are several times as many: in the
coarsest one a few frames make large false surfaces."""
MAX_BLOCKS = 50_000
"""Most blocks of a volume, about 400 MB; a scene that needs more gets larger voxels."""
COARSER = 1.5
"""Factor of the voxel size where the blocks do not suffice: about half as many are needed."""
MAX_FRAMES = 600
"""Most frames that are fused: more hardly change the mesh."""
KEPT_VIEWS = 150
"""Most depth maps that are kept in memory for the question which holes are real."""
MAX_DEPTH_FRAMES = 50
"""Most frames that the median depth is computed from: more hardly change it."""
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
    """Depth maps of up to `KEPT_VIEWS` of the frames."""


def mesh_cameras(result: ResultFolder, frames: str | None = None) -> list[Camera]:
    """The cameras of the frames that are fused, at most `MAX_FRAMES`.

    ``frames``: as of `select_cameras`; None: those with dense depth, or else the keyframes. Raises StreamReconError.
    """
    if frames is None and result.dense:
        cameras = result.surface_cameras
    else:
        tracks = read_tracks(result.folder)
        refined = None if tracks is None else np.unique(tracks.frame)
        cameras = result.with_depth(select_cameras(result.cameras, frames or "keyframes", refined))
    return [cameras[number] for number in uniform_indices(len(cameras), MAX_FRAMES)]


def fuse(result: ResultFolder, cameras: Sequence[Camera], report: Report = lambda share: None) -> Fused:
    """The mesh of all depth maps of these cameras. Raises NoSurfaceError: no frame could be read."""
    median, width = _median_depth(result, cameras)
    voxel = VOXEL_PIXELS * width
    noise = NOISE_FACTOR * _disagreement(result, cameras)
    while True:
        truncation = float(np.clip(noise / voxel, *TRUNCATION))
        disagree = noise / voxel > TRUNCATION[1]
        # Disagreement grows with depth: a volume begins where it exceeds what the next finer one spans.
        spanned = TRUNCATION[1] * voxel / max(noise, 1e-12)  # of the disagreement at the median depth
        begins = spanned / (MAX_DEPTH * COARSER_LEVEL)
        nearest = [min(least, begins) for least in NEAREST]
        volumes, views, missing = _volumes(result, cameras, (voxel, truncation), MAX_DEPTH * median, nearest, report)
        if not any(volume.full for volume in volumes):
            break
        voxel *= COARSER
    most = max(1, (len(cameras) - missing) // 4)
    meshes = [extract(volume, min(least, most)) for volume, least in zip(volumes, MIN_FRAMES, strict=True)]
    max_depth = MAX_DEPTH * median * COARSER_LEVEL ** (LEVELS - 1)
    mesh = _nested(meshes, volumes, RINGS if disagree else 0)
    return Fused(mesh, voxel, truncation * voxel, min(MIN_FRAMES[0], most), missing, max_depth, views)


def _volumes(
    result: ResultFolder,
    cameras: Sequence[Camera],
    spacing: tuple[float, float],
    max_depth: float,
    nearest: Sequence[float],
    report: Report,
) -> tuple[list[Volume], list[FusionView], int]:
    """Volumes from fine to coarse, some depth maps, and the number of unreadable frames; stops where one is full.

    ``spacing``: the voxel of the finest volume, and the truncation distance in voxels. ``nearest``: see `NEAREST`.
    """
    voxel, truncation = spacing
    bands = np.minimum(BANDS / np.float32(truncation), np.float32(1))
    factors = [COARSER_LEVEL**level for level in range(LEVELS)]
    volumes = [Volume(voxel * factor, truncation * voxel * factor, MAX_BLOCKS) for factor in factors]
    views, missing = list[FusionView](), 0
    kept = set(uniform_indices(len(cameras), KEPT_VIEWS).tolist())
    for done, camera in enumerate(cameras, start=1):
        report(done / len(cameras))
        try:
            frame = result.surface_of(camera)
        except OutputError:
            missing += 1
            continue
        weight = pixel_weights(frame, result.points)
        if done - 1 in kept:
            seen = depth_view(frame, weight)
            views.append(replace(seen, depth=seen.depth.astype(np.float16), rgb=seen.rgb[:0], weight=None))
        for level, (volume, factor) in enumerate(zip(volumes, factors, strict=True)):
            chosen = (weight > 0) & (frame.depth < max_depth * factor)
            chosen &= frame.depth > nearest[level] * max_depth * factor
            if chosen.any():
                view = depth_view(frame, np.where(chosen, weight, np.float32(0)))
                band = None if frame.certainty is None else bands[frame.certainty]
                front = None if frame.certainty is None else FRONTS[frame.certainty]
                volume.integrate(replace(view, band=band, front=front))
        if any(volume.full for volume in volumes):
            break
    return volumes, views, missing


def depth_view(frame: FrameResult, weight: NDArray[np.float32]) -> FusionView:
    """The frame's depth where ``weight`` [h, w] is positive."""
    depth = np.where(weight > 0, frame.depth, np.float32(0))
    return FusionView(depth, frame.rgb, frame.network_intrinsics, frame.T_world_camera, weight)


def pixel_weights(frame: FrameResult, points: PointsConfig) -> NDArray[np.float32]:
    """Weights [h, w] of a frame's pixels; 0 at depth edges and where depth is unknown or uncertain."""
    if frame.certainty is not None:
        weight = WEIGHTS[frame.certainty]
    else:
        # The relative error of the network's depth is proportional to what the confidence lacks.
        missing = 1 - confidence_levels(frame)
        weight = WEIGHTS[Certainty.NETWORK] * np.square(np.minimum(USUAL_MISSING / np.maximum(missing, 1e-3), 1))
    return np.where(sure_pixels(frame, points), weight, np.float32(0)).astype(np.float32)


def _nested(meshes: Sequence[Mesh], volumes: Sequence[Volume], rings: int) -> Mesh:
    """The union of meshes from fine to coarse: of each, what is not near a finer one, and ``rings`` about it."""
    total = without_floaters(meshes[0])
    for mesh, volume in zip(meshes[1:], volumes[1:], strict=True):
        if len(mesh.faces) and len(total.faces):
            near = cKDTree(total.xyz).query(mesh.xyz, distance_upper_bound=AWAY * volume.voxel)[0]
            kept = ~np.isfinite(near)
            for _ in range(rings):
                kept[mesh.faces[kept[mesh.faces].any(axis=1)]] = True
            mesh = subset(mesh, kept[mesh.faces].any(axis=1))
        total = joined(total, without_floaters(mesh))
    return total


def _median_depth(result: ResultFolder, cameras: Sequence[Camera]) -> tuple[float, float]:
    """Median depth of reliable pixels, and the width of a pixel there. Raises NoSurfaceError without a frame."""
    depths, widths = [], []
    for number in uniform_indices(len(cameras), MAX_DEPTH_FRAMES):
        try:
            frame = result.surface_of(cameras[number])
        except OutputError:
            continue
        reliable = frame.depth[pixel_weights(frame, result.points) > 0]
        if len(reliable):
            depths.append(float(np.median(reliable)))
            widths.append(depths[-1] / frame.network_intrinsics.fx)
    if not depths:
        raise NoSurfaceError(f"no frame of {result.folder} is readable: there is nothing to export")
    return float(np.median(depths)), float(np.median(widths))


def _disagreement(result: ResultFolder, cameras: Sequence[Camera]) -> float:
    """Median distance of unconfirmed depth from the surface that another frame shows; infinite if it is unknown."""
    differences = []
    for number in uniform_indices(max(len(cameras) - NOISE_DISTANCE, 0), NOISE_PAIRS):
        try:
            one, other = (result.surface_of(cameras[n]) for n in (number, number + NOISE_DISTANCE))
        except OutputError:
            continue
        if one.certainty is None or other.certainty is None:
            continue
        points = one.camera_points[one.certainty == Certainty.NETWORK][::NOISE_STEP]
        T = one.T_world_camera.astype(np.float32)
        seen = depth_view(other, (other.depth > 0).astype(np.float32))
        for _, _, z, depth in looks(points @ T[:3, :3].T + T[:3, 3], [seen]):
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


def source_view(result: ResultFolder, camera: Camera) -> SourceView:
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
