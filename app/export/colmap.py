"""Export of images and a sparse model for COLMAP, written by pycolmap (https://colmap.github.io/format.html).

Poses there are world-to-camera with the same camera axes as here, and pixel (0, 0) covers [0, 1) x [0, 1).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np

from stream_recon.app.core.depth_points import sure_pixels
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.export.depth import MASKS_NOTE, excluded_pixels, frame_name, has_masks, missing_frames, write_mask
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.observations import (
    PointColours,
    PointObservations,
    dense_points,
    no_observations,
    track_observations,
)
from stream_recon.app.export.points import write_points
from stream_recon.app.export.pose_formats import save_rgb
from stream_recon.app.export.source_images import FrameImages, frame_images
from stream_recon.app.export.view import PinholeView
from stream_recon.app.result.cameras import Camera
from stream_recon.configs.errors import OutputError, ResourceError

MODEL = "sparse/0"
DENSE_POINTS = 100_000
"""Points from depth maps where there are no tracks: trainers are initialised with points, and some fail without."""
CAMERA_ID = 1
DENSE_NOTE = (
    "{} points come from depth maps: their observations are their projections in frames whose depth agrees. They show "
    "surfaces, and do not constrain the cameras."
)


STEREO_NOTE = (
    "stereo/depth_maps/: dense depth maps in COLMAP's format (width&height&1&, then float32 row by row), along the "
    "optical axis; 0: none, or unsure. They have the views of the images at their own size. fused.ply: the dense cloud."
)


@dataclass(frozen=True)
class ModelStatistics:
    """Statistics of a model that pycolmap has read."""

    images: int
    points: int
    observations: int
    mean_error_px: float
    mean_track_length: float


def write_colmap(job: ExportJob, folder: Path) -> ExportReport:
    """Write ``images/`` and ``sparse/0/``.

    Raises:
        ResourceError: pycolmap is not installed.
        StreamReconError: nothing to export, or nothing readable. OSError for system errors.
    """
    pycolmap = _library()
    chosen = job.cameras("keyframes")
    images = frame_images(job.result, chosen, job.view, job.options.max_side)
    observed = track_observations(job.tracks, chosen, images.view) if job.tracks is not None else no_observations()
    cameras, observed = _write_images(job, images, chosen, observed, folder)
    if not cameras:
        raise OutputError(f"no frame of {job.result.folder} is readable: there is nothing to export")
    sparse = len(observed.xyz)
    most = job.options.dense if job.options.dense is not None else 0 if sparse else DENSE_POINTS
    if most:
        observed = observed.joined(
            dense_points(job, most, cameras, images.view, lambda done: job.progress(done, len(cameras)))
        )
    fused = 0
    if job.options.dense and job.result.dense:
        fused = _write_depth_maps(job, cameras, images.view, folder)
    model = folder / MODEL
    model.mkdir(parents=True)
    _reconstruction(pycolmap, cameras, images.view, observed).write_binary(model)
    statistics = read_back(model)
    counts = statistics.images, statistics.points, statistics.observations
    if counts != (len(cameras), len(observed.xyz), len(observed.point)):
        raise OutputError(f"{model} is incomplete: is the disk full?")
    report = _report(job, images, statistics, sparse)
    if fused:
        report.notes.append(STEREO_NOTE)
    return report


def read_back(model: Path) -> ModelStatistics:
    """Statistics of a model's files. Raises OutputError where pycolmap cannot read them, ResourceError without it."""
    pycolmap = _library()
    try:
        read = pycolmap.Reconstruction(model)
    except (ValueError, RuntimeError, OSError, MemoryError) as error:
        raise OutputError(f"{model} is incomplete: {error}") from error
    read.update_point_3d_errors()
    return ModelStatistics(
        read.num_images(),
        read.num_points3D(),
        read.compute_num_observations(),
        float(read.compute_mean_reprojection_error()) if read.num_points3D() else 0.0,
        float(read.compute_mean_track_length()),
    )


def _write_depth_maps(job: ExportJob, cameras: Sequence[Camera], view: PinholeView, folder: Path) -> int:
    """Write the dense depth maps as COLMAP's stereo does, and the cloud as ``fused.ply``; returns how many maps.

    A map has the view of its image, at its own resolution.
    """
    maps = folder / "stereo" / "depth_maps"
    maps.mkdir(parents=True)
    written = 0
    for camera in cameras:
        if camera.index not in job.result.dense:
            continue
        with suppress(OutputError):
            dense = job.result.surface_of(camera)
            small = view.scaled(max(dense.transform.network_size))
            sure = np.where(sure_pixels(dense, job.points), dense.depth, np.float32(0))
            depth = np.ascontiguousarray(small.from_map(sure, dense, cv2.INTER_NEAREST), "<f4")
            path = maps / f"{frame_name(camera.index)}.jpg.geometric.bin"
            path.write_bytes(f"{depth.shape[1]}&{depth.shape[0]}&1&".encode("ascii") + depth.tobytes())
            written += 1
    write_points(folder / "fused.ply", job.cloud())
    return written


def _library() -> ModuleType:
    try:
        import pycolmap
    except ImportError as error:
        raise ResourceError("--format colmap needs pycolmap: pip install 'stream-recon[export]'") from error
    return pycolmap  # type: ignore[no-any-return,unused-ignore]


def _write_images(
    job: ExportJob, images: FrameImages, chosen: Sequence[Camera], observed: PointObservations, folder: Path
) -> tuple[list[Camera], PointObservations]:
    """Write images and masks of the frames that can be read.

    Returns their cameras, and the points with their observations in these, in colour.
    """
    masks = folder / "masks" if has_masks(job) else None
    for name in (folder / "images", *([masks] if masks else [])):
        name.mkdir()
    colours = PointColours(observed)
    number = {camera.index: row for row, camera in enumerate(chosen)}
    written: list[int] = []
    for done, (camera, rgb, mask) in enumerate(images, start=1):
        save_rgb(folder / "images" / f"{frame_name(camera.index)}.jpg", rgb)
        if masks:
            write_mask(masks, camera, excluded_pixels(job, camera, images.view, mask))
        colours.add(number[camera.index], rgb)
        written.append(number[camera.index])
        job.progress(done, len(chosen))
    observed = colours.coloured()
    if len(written) < len(chosen):
        new_number = np.full(len(chosen), -1)
        new_number[written] = np.arange(len(written))
        observed = observed.filtered(new_number[observed.camera] >= 0)
        observed = replace(observed, camera=new_number[observed.camera])
    return [chosen[k] for k in written], observed


def _reconstruction(pycolmap: Any, cameras: Sequence[Camera], view: PinholeView, observed: PointObservations) -> Any:
    """The pycolmap model, with an image's keypoints in the order of its observations."""
    model, k = pycolmap.Reconstruction(), view.intrinsics
    model.add_camera_with_trivial_rig(
        pycolmap.Camera(
            model="PINHOLE",
            width=view.size[0],
            height=view.size[1],
            params=[k.fx, k.fy, k.cx, k.cy],
            camera_id=CAMERA_ID,
            has_prior_focal_length=True,
        )
    )
    order = np.argsort(observed.camera, kind="stable")
    ends = np.searchsorted(observed.camera[order], np.arange(len(cameras) + 1))
    within = np.empty(len(order), np.int64)
    within[order] = np.arange(len(order)) - ends[observed.camera[order]]
    for number, camera in enumerate(cameras):
        rows = order[ends[number] : ends[number + 1]]
        image = pycolmap.Image(
            name=f"{frame_name(camera.index)}.jpg",
            keypoints=observed.pixel[rows],
            camera_id=CAMERA_ID,
            image_id=number + 1,
        )
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d(invert_pose(camera.T_world_camera)[:3]))
    by_point = np.argsort(observed.point, kind="stable")
    starts = np.searchsorted(observed.point[by_point], np.arange(len(observed.xyz) + 1)).tolist()
    images, keypoints = (observed.camera[by_point] + 1).tolist(), within[by_point].tolist()
    for point, (xyz, rgb) in enumerate(zip(observed.xyz, observed.rgb, strict=True)):
        track = range(starts[point], starts[point + 1])
        elements = [pycolmap.TrackElement(images[row], keypoints[row]) for row in track]
        model.add_point3D(xyz, pycolmap.Track(elements), rgb)
    model.update_point_3d_errors()
    return model


def _report(job: ExportJob, images: FrameImages, statistics: ModelStatistics, sparse: int) -> ExportReport:
    view = images.view
    warnings = [*([images.warning] if images.warning else []), *missing_frames(len(images.missing))]
    if not statistics.points:
        warnings.append("there are no points, and some trainers fail without: use --dense N")
    elif not sparse:
        warnings.append("there are no tracked points: 'stream-recon refine' improves poses and points")
    return ExportReport(
        f"{statistics.images} images of {view.size[0]}x{view.size[1]} pixels, {statistics.points} points with "
        f"{statistics.mean_track_length:.1f} observations each, mean reprojection error "
        f"{statistics.mean_error_px:.2f} px.",
        [
            "Poses in the files are world to camera; camera: x right, y down, z forward. Pixel (0, 0) covers "
            "[0, 1) x [0, 1). One PINHOLE camera; images are undistorted.",
            f"{sparse} points were tracked and triangulated: their observations were measured in the images.",
            *([MASKS_NOTE] if has_masks(job) else []),
            *([DENSE_NOTE.format(statistics.points - sparse)] if statistics.points > sparse else []),
        ],
        warnings,
    )
