"""Images and a sparse model as COLMAP has them: https://colmap.github.io/format.html, written by its own library.

Poses there are world-to-camera with our camera axes, and pixel (0, 0) covers [0, 1) x [0, 1), as here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.export.depth import frame_name, lost_frames
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.masks import NOTE as MASKS_NOTE
from stream_recon.app.export.masks import has_masks, left_out, write_mask
from stream_recon.app.export.observations import Colours, Observed, dense_points, none_observed, tracked
from stream_recon.app.export.source_images import FrameImages, frame_images
from stream_recon.app.export.transforms import save_rgb
from stream_recon.app.export.view import PinholeView
from stream_recon.app.result.cameras import Camera
from stream_recon.configs.errors import OutputError, ResourceError

MODEL = "sparse/0"
DENSE_POINTS = 100_000
"""Where no refinement has made tracks: trainers begin with points, and some fail without."""
CAMERA_ID = 1
DENSE_NOTE = (
    "{} points are of depth maps: their observations are where the point projects to in frames whose depth agrees. "
    "They say where surfaces are, and nothing new of the cameras."
)


@dataclass(frozen=True)
class ModelFigures:
    """What COLMAP's library says of a model that it read."""

    images: int
    points: int
    observations: int
    mean_error_px: float
    mean_track_length: float


def write_colmap(job: ExportJob, folder: Path) -> ExportReport:
    """Write ``images/`` and ``sparse/0/``.

    Raises:
        ResourceError: pycolmap is not installed.
        StreamReconError: nothing to export, or nothing readable. OSError where the system refuses.
    """
    pycolmap = _library()
    chosen = job.cameras("keyframes")
    images = frame_images(job.result, chosen, job.view, job.options.max_side)
    observed = tracked(job.tracks, chosen, images.view) if job.tracks is not None else none_observed()
    cameras, observed = _write_images(job, images, chosen, observed, folder)
    if not cameras:
        raise OutputError(f"no frame of {job.result.folder} is readable: there is nothing to export")
    sparse = len(observed.xyz)
    most = job.options.dense if job.options.dense is not None else 0 if sparse else DENSE_POINTS
    if most:
        observed = observed.joined(
            dense_points(job.result, most, cameras, images.view, lambda done: job.progress(done, len(cameras)))
        )
    model = folder / MODEL
    model.mkdir(parents=True)
    _reconstruction(pycolmap, cameras, images.view, observed).write_binary(model)
    figures = read_back(model)
    if (figures.images, figures.points, figures.observations) != (len(cameras), len(observed.xyz), len(observed.point)):
        raise OutputError(f"{model} was not written whole: is the disk full?")
    return _told(job, images, figures, sparse)


def read_back(model: Path) -> ModelFigures:
    """What is in a model's files. Raises OutputError where COLMAP's library cannot read them, ResourceError without."""
    pycolmap = _library()
    try:
        read = pycolmap.Reconstruction(model)
    except (ValueError, RuntimeError, OSError, MemoryError) as error:
        raise OutputError(f"{model} was not written whole: {error}") from error
    read.update_point_3d_errors()
    return ModelFigures(
        read.num_images(),
        read.num_points3D(),
        read.compute_num_observations(),
        float(read.compute_mean_reprojection_error()) if read.num_points3D() else 0.0,
        float(read.compute_mean_track_length()),
    )


def _library() -> ModuleType:
    try:
        import pycolmap
    except ImportError as error:
        raise ResourceError(
            "COLMAP models are written by its own library: pip install 'stream-recon[export]'"
        ) from error
    return pycolmap  # type: ignore[no-any-return,unused-ignore]


def _write_images(
    job: ExportJob, images: FrameImages, chosen: Sequence[Camera], observed: Observed, folder: Path
) -> tuple[list[Camera], Observed]:
    """Write the images that can be read, and their masks; gives their cameras, and the points as these alone see them,
    in colour."""
    masks = folder / "masks" if has_masks(job) else None
    for name in (folder / "images", *([masks] if masks else [])):
        name.mkdir()
    colours = Colours(observed)
    number = {camera.index: place for place, camera in enumerate(chosen)}
    written: list[int] = []
    for done, (camera, rgb, mask) in enumerate(images, start=1):
        save_rgb(folder / "images" / f"{frame_name(camera.index)}.jpg", rgb)
        if masks:
            write_mask(masks, camera, left_out(job, camera, images.view, mask))
        colours.add(number[camera.index], rgb)
        written.append(number[camera.index])
        job.progress(done, len(chosen))
    observed = colours.applied()
    if len(written) < len(chosen):
        place = np.full(len(chosen), -1)
        place[written] = np.arange(len(written))
        observed = observed.kept(place[observed.camera] >= 0)
        observed = replace(observed, camera=place[observed.camera])
    return [chosen[k] for k in written], observed


def _reconstruction(pycolmap: Any, cameras: Sequence[Camera], view: PinholeView, observed: Observed) -> Any:
    """The model. Keypoints are numbered within their image in the order of the observations."""
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
        mine = order[ends[number] : ends[number + 1]]
        image = pycolmap.Image(
            name=f"{frame_name(camera.index)}.jpg",
            keypoints=observed.pixel[mine],
            camera_id=CAMERA_ID,
            image_id=number + 1,
        )
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d(invert_pose(camera.T_world_camera)[:3]))
    by_point = np.argsort(observed.point, kind="stable")
    starts = np.searchsorted(observed.point[by_point], np.arange(len(observed.xyz) + 1)).tolist()
    images, places = (observed.camera[by_point] + 1).tolist(), within[by_point].tolist()
    for point, (xyz, rgb) in enumerate(zip(observed.xyz, observed.rgb, strict=True)):
        seen = range(starts[point], starts[point + 1])
        track = pycolmap.Track([pycolmap.TrackElement(images[row], places[row]) for row in seen])
        model.add_point3D(xyz, track, rgb)
    model.update_point_3d_errors()
    return model


def _told(job: ExportJob, images: FrameImages, figures: ModelFigures, sparse: int) -> ExportReport:
    view = images.view
    warnings = [*([images.warning] if images.warning else []), *lost_frames(len(images.missing))]
    if not figures.points:
        warnings.append("there are no points: some trainers fail without (--dense N makes some)")
    elif not sparse:
        warnings.append("no refinement has tracked points here: 'stream-recon refine' makes poses and points better")
    return ExportReport(
        f"{figures.images} images of {view.size[0]}x{view.size[1]} pixels, {figures.points} points with "
        f"{figures.mean_track_length:.1f} observations each, off by {figures.mean_error_px:.2f} px in the mean.",
        [
            "Poses in the files are world to camera; camera: x right, y down, z forward. Pixel (0, 0) covers "
            "[0, 1) x [0, 1). One PINHOLE camera; images are undistorted.",
            f"{sparse} points were tracked and triangulated: their observations were measured in the images.",
            *([MASKS_NOTE] if has_masks(job) else []),
            *([DENSE_NOTE.format(figures.points - sparse)] if figures.points > sparse else []),
        ],
        warnings,
    )
