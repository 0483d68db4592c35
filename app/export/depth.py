"""Depth maps as 16-bit PNG, upsampled along image edges, and masks of exported images."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import confidence_levels
from stream_recon.app.core.output_file import new_text, write_new
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.source_images import frame_images
from stream_recon.app.export.view import PinholeView
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.depth import depth_path, read_depth
from stream_recon.configs.errors import OutputError

RADIUS = 2
"""Radius of the window in pixels of the depth map: two sigmas of the spatial weight."""
SIGMA_PX = 1.0
"""Standard deviation of the spatial weight in pixels of the depth map: one, for the resolution of its edges."""
SIGMA_COLOUR = 20.0
"""Standard deviation of the colour weight in levels of 255: above noise and shading, below most edges."""
MAX_RATIO = 2.0
"""Largest factor between a pixel's depth and the extrapolation of its plane: bounds errors at steep slopes."""
MIN_WEIGHT = 1e-8
"""Weight of a pixel of another colour: where no colour is similar, all pixels count alike."""


def upsample_depth(depth: NDArray[np.float32], image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A depth map at the size of an image, by joint bilateral upsampling.

    Each pixel is the mean, weighted by colour, of planes through its neighbours, in inverse depth, which is linear over
    a plane (Kopf et al. 2007, doi 10.1145/1276377.1276497).

    Args:
        depth: [h, w], of the same view as the image; 0 where there is none.
        image: [H, W, 3], not smaller.

    Returns [H, W]; 0 where the nearest pixel of ``depth`` has none.
    """
    height, width = image.shape[:2]
    rows, columns = depth.shape
    small = cv2.resize(image, (columns, rows), interpolation=cv2.INTER_AREA).astype(np.float32) / SIGMA_COLOUR
    fine = image.astype(np.float32) / SIGMA_COLOUR
    known = depth > 0
    inverse = np.divide(1, depth, out=np.zeros_like(depth, np.float32), where=known)
    down, right = (_slopes(inverse, known, axis) for axis in (0, 1))
    total, weights = np.zeros((height, width), np.float32), np.zeros((height, width), np.float32)
    across = list(_window(width, columns))
    for y, y_off, y_weight in _window(height, rows):
        colours, row_known, row_inverse, row_down, row_right = (
            values[y] for values in (small, known, inverse, down, right)
        )
        for x, x_off, x_weight in across:
            difference = fine - colours[:, x]
            weight = np.exp(-0.5 * np.einsum("ijk,ijk->ij", difference, difference))
            weight = (weight + MIN_WEIGHT) * y_weight[:, None] * x_weight * row_known[:, x]
            neighbour = row_inverse[:, x]
            plane = neighbour + row_down[:, x] * y_off[:, None] + row_right[:, x] * x_off
            total += weight * np.clip(plane, neighbour / MAX_RATIO, neighbour * MAX_RATIO)
            weights += weight
    near = known[_nearest(height, rows)][:, _nearest(width, columns)]
    return np.divide(weights, total, out=np.zeros_like(total), where=near)


def _nearest(fine: int, coarse: int) -> NDArray[np.intp]:
    """Coarse pixel [fine] that contains each fine one, along one axis."""
    return ((np.arange(fine) + 0.5) * coarse / fine).astype(np.intp)


def _slopes(inverse: NDArray[np.float32], known: NDArray[np.bool_], axis: int) -> NDArray[np.float32]:
    """Slope of inverse depth [h, w] per pixel along an axis, for surfaces and not for jumps.

    The lesser of the slopes on both sides; 0 where they differ in sign or one is unknown.
    """
    steps = np.moveaxis(np.diff(inverse, axis=axis), axis, 0)
    both = np.moveaxis(known, axis, 0)
    steps = np.where(both[1:] & both[:-1], steps, 0)
    before, after = np.concatenate([steps[:1], steps]), np.concatenate([steps, steps[-1:]])
    least = np.where(np.abs(before) < np.abs(after), before, after)
    return np.asarray(np.moveaxis(np.where(before * after > 0, least, 0), 0, axis), np.float32)


def _window(fine: int, coarse: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.float32]]]:
    """Offsets of the window along one axis.

    For each: the coarse pixel [fine] at that offset from each fine one, its distance in coarse pixels and its spatial
    weight, 0 beyond the border.
    """
    position = (np.arange(fine) + 0.5) * coarse / fine - 0.5
    nearest = np.rint(position).astype(np.intp)
    for step in range(-RADIUS, RADIUS + 1):
        neighbour = nearest + step
        distance = (position - neighbour).astype(np.float32)
        weight = np.exp(-0.5 * (distance / SIGMA_PX) ** 2) * ((neighbour >= 0) & (neighbour < coarse))
        yield np.clip(neighbour, 0, coarse - 1), distance, weight.astype(np.float32)


PER_UNIT = 1000
"""Steps of a PNG in one unit of the reconstruction: millimetres where it is metric, as in most RGB-D data sets."""
MAX_DEPTH = (2**16 - 1) / PER_UNIT
"""Largest depth in 16 bits."""
CAMERAS = "cameras.csv"
Map = tuple[NDArray[np.float32], NDArray[np.float32], Intrinsics]
"""Depth [h, w], confidence [h, w] from 0 to 1, and their pinhole camera in pixels of the map."""
Maps = Iterator[tuple[FrameCamera, Map | None]]
"""The map of each frame; None where it cannot be read."""


def write_depth_images(job: ExportJob, folder: Path) -> ExportReport:
    """Write the depth maps of frames and their cameras.

    They have the size of the dense depth maps or else of the network's, or with ``max_side`` that of the source's
    images up to it. Raises StreamReconError: nothing to export. OSError for system errors.
    """
    cameras = job.cameras("all")
    for name in ("depth", "confidence"):
        (folder / name).mkdir()
    warnings: list[str] = []
    maps = _stored_maps(job, cameras) if job.options.max_side is None else _upsampled_maps(job, cameras, warnings)
    written = 0
    with new_text(folder / CAMERAS) as table:
        table.write("file,index,timestamp,width,height,fx,fy,cx,cy\n")
        for done, (camera, map_of_frame) in enumerate(maps, start=1):
            if map_of_frame is not None:
                depth, level, k = map_of_frame
                name = f"depth/{frame_name(camera.index)}.png"
                write_image(folder / name, depth_units(depth))
                write_image(folder / "confidence" / f"{frame_name(camera.index)}.png", level_steps(level))
                height, width = depth.shape
                numbers = ",".join(f"{value:.9g}" for value in (k.fx, k.fy, k.cx, k.cy))
                table.write(f"{name},{camera.index},{camera.timestamp:.6f},{width},{height},{numbers}\n")
                written += 1
            job.progress(done, len(cameras))
    return ExportReport(
        f"{written} depth maps.",
        [
            DEPTH_NOTE,
            CONFIDENCE_NOTE,
            *([UPSAMPLED_NOTE] if job.options.max_side is not None else []),
            f"{CAMERAS}: of each map the frame number, time in seconds, size and pinhole camera in pixels of the map; "
            "pixel (0, 0) covers [0, 1) x [0, 1).",
        ],
        [*warnings, *missing_frames(len(cameras) - written)],
    )


def _stored_maps(job: ExportJob, cameras: Sequence[FrameCamera]) -> Maps:
    for camera in cameras:
        try:
            result = job.result.surface_of(camera)
            yield camera, (result.depth, confidence_levels(result), result.network_intrinsics)
        except OutputError:
            yield camera, None


def _upsampled_maps(job: ExportJob, cameras: Sequence[FrameCamera], warnings: list[str]) -> Maps:
    images = frame_images(job.result, cameras, job.view, job.options.max_side)
    warnings += [images.warning] if images.warning else []
    for camera, rgb, _ in images:
        try:
            depth, level = view_depth(job, camera, images.view, rgb)
            yield camera, (depth, level, images.view.intrinsics)
        except OutputError:
            yield camera, None


def view_depth(
    job: ExportJob, camera: FrameCamera, view: PinholeView, image: NDArray[np.uint8]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Best depth [h, w] of a frame in ``view``, and its confidence [h, w] from 0 to 1.

    Depth is upsampled by the exported ``image`` where the map is smaller than the view. Raises OutputError.
    """
    result = job.result.surface_of(camera)
    small = view.scaled(max(result.transform.network_size))
    # Interpolation would put depth between two surfaces.
    depth, level = (
        np.asarray(small.from_map(values, result, cv2.INTER_NEAREST), np.float32)
        for values in (result.depth, confidence_levels(result))
    )
    if max(view.size) <= max(small.size):
        return depth, level
    guide = np.asarray(cv2.resize(image, view.size, interpolation=cv2.INTER_AREA), np.uint8)
    fine = upsample_depth(depth, guide)
    level = np.asarray(cv2.resize(level, view.size, interpolation=cv2.INTER_NEAREST), np.float32)
    return fine, np.where(fine > 0, level, np.float32(0))


DEPTH_NOTE = (
    f"Depth: 16-bit PNG, along the optical axis, {PER_UNIT} steps a unit; 0: no depth, or farther than {MAX_DEPTH:g}."
)
CONFIDENCE_NOTE = (
    "confidence/: of each depth map the confidence from 0 to 255. Below 13 it is a guess, as in sky; from 230 it is "
    "measured, or as good."
)
UPSAMPLED_NOTE = "The maps are of one undistorted pinhole camera, upsampled along image edges."


def frame_name(index: int) -> str:
    """Name of a frame in all exports, by its number in the source; without dots, at which some readers cut names."""
    return f"frame_{index:06d}"


def depth_units(depth: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Depth [h, w] in steps of a PNG; 0 where it does not fit."""
    steps = np.rint(np.asarray(depth, np.float32) * PER_UNIT)
    return np.where((steps > 0) & (steps < 2**16), steps, 0).astype(np.uint16)


def level_steps(level: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Confidence [h, w] from 0 to 1 in steps of a PNG."""
    return np.rint(np.asarray(level, np.float32) * 255).clip(0, 255).astype(np.uint8)


def write_image(path: Path, image: NDArray[Any], parameters: tuple[int, ...] = ()) -> None:
    """Write an image file in the format of its suffix. Raises OSError."""
    # Encoded in memory first, because OpenCV's writer does not report a full disk.
    ok, data = cv2.imencode(path.suffix, image, parameters)
    assert ok, "such an image can always be encoded"
    write_new(path, data.tobytes())


def missing_frames(count: int) -> list[str]:
    """A warning where ``count`` frames could not be read, else none."""
    return [f"{count} frames are left out: their files are missing or damaged"] if count else []


MASKS_NOTE = "masks/: masks of the run at the size of the images, for all frames; black pixels are excluded."


def has_masks(job: ExportJob) -> bool:
    """Whether the run had masks."""
    options = job.result.run.get("options")
    return isinstance(options, dict) and bool(options.get("masks") or options.get("mask_sky"))


def excluded_pixels(
    job: ExportJob, camera: FrameCamera, view: PinholeView, user_mask: NDArray[np.bool_] | None
) -> NDArray[np.bool_]:
    """Masked pixels [h, w] of a frame's exported image.

    ``user_mask``: where it could be read again. Otherwise, and for the sky, the coarser mask of the depth file serves.
    """
    width, height = view.size
    nothing = np.zeros((height, width), bool)
    options = job.result.run["options"]
    if user_mask is not None and not options.get("mask_sky"):
        return user_mask
    try:
        stored = read_depth(depth_path(job.result.folder, camera.index))
    except OutputError:
        return nothing if user_mask is None else user_mask
    coarse = ((stored.depth == 0) & (stored.confidence == 0)).astype(np.float32)
    masked = view.from_network(coarse, stored.transform) > 0.5
    return np.asarray(masked if user_mask is None else masked | user_mask)


def write_mask(folder: Path, camera: FrameCamera, masked: NDArray[np.bool_]) -> str:
    """Write a frame's mask; returns its file name. Raises OSError."""
    name = f"{frame_name(camera.index)}.png"
    write_image(folder / name, np.where(masked, np.uint8(0), np.uint8(255)))
    return name
