"""Export of images and a sparse model for COLMAP, in its binary format (https://colmap.github.io/format.html).

Poses there are world-to-camera with the same camera axes as here, and pixel (0, 0) covers [0, 1) x [0, 1).
"""

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import sure_pixels
from stream_recon.app.core.output_file import new_file, write_new
from stream_recon.app.core.rig import VIEW_STRIDE, Rig, view_of
from stream_recon.app.core.transforms import invert_pose, quaternion_xyzw
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
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.configs.errors import OutputError

MODEL = "sparse/0"
DENSE_POINTS = 100_000
"""Points from depth maps where there are no tracks: trainers are initialised with points, and some fail without."""
FIRST_CAMERA, RIG_ID = 1, 1
CAMERA_SENSOR = 0
"""Number of the kind of sensor."""
PINHOLE = 1
"""Number of the camera model; its parameters are fx, fy, cx, cy."""
ONE_CAMERA, ONE_RIG = "One PINHOLE camera", "A rig of PINHOLE cameras (COLMAP 3.12 and newer)"
KEYPOINT = np.dtype([("xy", "<f8", 2), ("point", "<i8")])
TRACK_ELEMENT = np.dtype([("image", "<u4"), ("keypoint", "<u4")])
POINT = np.dtype([("number", "<u8"), ("xyz", "<f8", 3), ("rgb", "u1", 3), ("error", "<f8"), ("length", "<u8")])
"""Records in the files; a point is followed by its track."""
DENSE_NOTE = (
    "{} points come from depth maps: their observations are their projections in frames whose depth agrees. They show "
    "surfaces, and do not constrain the cameras."
)
STEREO_NOTE = (
    "stereo/depth_maps/: dense depth maps in COLMAP's format (width&height&1&, then float32 row by row), along the "
    "optical axis; 0: none, or unsure. They have the views of the images at their own size. fused.ply: the dense cloud."
)


def write_colmap(job: ExportJob, folder: Path) -> ExportReport:
    """Write ``images/`` and ``sparse/0/``.

    Raises StreamReconError: nothing to export, or nothing readable; OSError for system errors.
    """
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
    errors = observed.errors(cameras, images.view)
    _write_model(model, cameras, images.view, observed, errors)
    if job.result.rig is not None:
        _write_rig(model, job.result.rig, cameras)
    report = _report(job, images, len(cameras), observed, errors, sparse)
    if fused:
        report.notes.append(STEREO_NOTE)
    return report


def _write_depth_maps(job: ExportJob, cameras: Sequence[FrameCamera], view: PinholeView, folder: Path) -> int:
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
            write_new(path, f"{depth.shape[1]}&{depth.shape[0]}&1&".encode("ascii") + depth.tobytes())
            written += 1
    write_points(folder / "fused.ply", job.cloud())
    return written


def _write_images(
    job: ExportJob, images: FrameImages, chosen: Sequence[FrameCamera], observed: PointObservations, folder: Path
) -> tuple[list[FrameCamera], PointObservations]:
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


def _write_model(
    model: Path,
    cameras: Sequence[FrameCamera],
    view: PinholeView,
    observed: PointObservations,
    errors: NDArray[np.float64],
) -> None:
    """Write ``cameras.bin``, ``images.bin`` and ``points3D.bin``. ``errors``: of the observations [O], in pixels.

    An image's keypoints are its observations, so that each has a point. Numbers of images and points begin with 1. Each
    view of a rig has a camera of its own.
    """
    k, numbers = view.intrinsics, sorted({_camera_id(camera) for camera in cameras})
    rows = [struct.pack("<IiQQ4d", number, PINHOLE, *view.size, k.fx, k.fy, k.cx, k.cy) for number in numbers]
    write_new(model / "cameras.bin", struct.pack("<Q", len(rows)) + b"".join(rows))
    by_image = np.argsort(observed.camera, kind="stable")
    starts = np.searchsorted(observed.camera[by_image], np.arange(len(cameras) + 1))
    keypoint = np.empty(len(by_image), np.int64)
    keypoint[by_image] = np.arange(len(by_image)) - starts[observed.camera[by_image]]
    keypoints = np.empty(len(by_image), KEYPOINT)
    keypoints["xy"], keypoints["point"] = observed.pixel[by_image], observed.point[by_image] + 1
    _write_poses(model / "images.bin", cameras, np.split(keypoints, starts[1:-1]))
    _write_points3d(model / "points3D.bin", observed, keypoint, _point_errors(observed, errors))


def _write_poses(path: Path, cameras: Sequence[FrameCamera], keypoints: Sequence[NDArray[np.void]]) -> None:
    """Write ``images.bin``: pose, camera, name and keypoints of each image."""
    with new_file(path) as file:
        file.write(struct.pack("<Q", len(cameras)))
        for number, (camera, own) in enumerate(zip(cameras, keypoints, strict=True), start=1):
            pose = _rigid(invert_pose(camera.T_world_camera))
            file.write(struct.pack("<I", number) + pose + struct.pack("<I", _camera_id(camera)))
            file.write(f"{frame_name(camera.index)}.jpg\0".encode())
            file.write(struct.pack("<Q", len(own)) + own.tobytes())


def _camera_id(camera: FrameCamera) -> int:
    return FIRST_CAMERA + view_of(camera.index)


def _rigid(T: NDArray[np.float64]) -> bytes:
    """A transform as a quaternion w, x, y, z and a translation."""
    x, y, z, w = quaternion_xyzw(T[:3, :3])
    return struct.pack("<7d", w, x, y, z, *T[:3, 3])


def _write_rig(model: Path, rig: Rig, cameras: Sequence[FrameCamera]) -> None:
    """Write ``rigs.bin`` and ``frames.bin``: views with their turns, and which images are of one frame."""
    views = sorted({view_of(camera.index) for camera in cameras})
    first = rig.T_body_view[views[0]]
    head = struct.pack("<QIIiI", 1, RIG_ID, len(views), CAMERA_SENSOR, FIRST_CAMERA + views[0])
    rows = []
    for view in views[1:]:
        T_view_first = invert_pose(rig.T_body_view[view]) @ first
        rows.append(struct.pack("<iIB", CAMERA_SENSOR, FIRST_CAMERA + view, 1) + _rigid(T_view_first))
    write_new(model / "rigs.bin", head + b"".join(rows))
    frames: dict[int, list[int]] = {}
    for number, camera in enumerate(cameras):
        frames.setdefault(camera.index % VIEW_STRIDE, []).append(number)
    with new_file(model / "frames.bin") as file:
        file.write(struct.pack("<Q", len(frames)))
        for frame, numbers in enumerate(frames.values(), start=1):
            T_view_first = invert_pose(rig.T_body_view[view_of(cameras[numbers[0]].index)]) @ first
            T_world_first = cameras[numbers[0]].T_world_camera @ T_view_first
            file.write(struct.pack("<II", frame, RIG_ID) + _rigid(invert_pose(T_world_first)))
            file.write(struct.pack("<I", len(numbers)))
            for number in numbers:
                file.write(struct.pack("<iIQ", CAMERA_SENSOR, _camera_id(cameras[number]), number + 1))


def _write_points3d(
    path: Path, observed: PointObservations, keypoint: NDArray[np.int64], errors_px: NDArray[np.float64]
) -> None:
    """Write ``points3D.bin``. ``keypoint`` [O]: numbers of the observations in their images, from 0."""
    by_point = np.argsort(observed.point, kind="stable")
    starts = np.searchsorted(observed.point[by_point], np.arange(len(observed.xyz) + 1))
    tracks = np.empty(len(by_point), TRACK_ELEMENT)
    tracks["image"], tracks["keypoint"] = observed.camera[by_point] + 1, keypoint[by_point]
    points = np.empty(len(observed.xyz), POINT)
    points["number"], points["length"] = np.arange(len(points)) + 1, np.diff(starts)
    points["xyz"], points["rgb"], points["error"] = observed.xyz, observed.rgb, errors_px
    with new_file(path) as file:
        file.write(struct.pack("<Q", len(points)))
        for point, first, end in zip(points, starts, starts[1:], strict=False):
            file.write(point.tobytes() + tracks[first:end].tobytes())


def _point_errors(observed: PointObservations, errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean reprojection error [M] of each point in pixels."""
    count = len(observed.xyz)
    return np.bincount(observed.point, errors, count) / np.bincount(observed.point, minlength=count)


def _report(
    job: ExportJob,
    images: FrameImages,
    written: int,
    observed: PointObservations,
    errors: NDArray[np.float64],
    sparse: int,
) -> ExportReport:
    view, points = images.view, len(observed.xyz)
    mean_length = len(observed.point) / points if points else 0.0
    mean_error_px = float(_point_errors(observed, errors).mean()) if points else 0.0
    warnings = [*([images.warning] if images.warning else []), *missing_frames(len(images.missing))]
    if not points:
        warnings.append("there are no points, and some trainers fail without: use --dense N")
    elif not sparse:
        warnings.append("there are no tracked points: 'stream-recon refine' improves poses and points")
    return ExportReport(
        f"{written} images of {view.size[0]}x{view.size[1]} pixels, {points} points with "
        f"{mean_length:.1f} observations each, mean reprojection error {mean_error_px:.2f} px.",
        [
            "Poses in the files are world to camera; camera: x right, y down, z forward. Pixel (0, 0) covers "
            f"[0, 1) x [0, 1). {ONE_CAMERA if job.result.rig is None else ONE_RIG}; images are undistorted.",
            f"{sparse} points were tracked and triangulated: their observations were measured in the images.",
            *([MASKS_NOTE] if has_masks(job) else []),
            *([DENSE_NOTE.format(points - sparse)] if points > sparse else []),
        ],
        warnings,
    )
