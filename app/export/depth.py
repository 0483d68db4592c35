"""Depth maps as 16-bit PNG.

Depth maps made finer by the image: edges of depth go where edges of colour are.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.source_images import frame_images
from stream_recon.app.export.view import PinholeView
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.folder import result_of
from stream_recon.configs.errors import OutputError

RADIUS = 2
"""Of the window, in the depth map's pixels."""
SPREAD = 1.0
"""Standard deviation of a pixel's weight over the window, likewise."""
ALIKE = 20.0
"""Standard deviation over differences of colour, in levels of 255."""
FURTHEST = 2.0
"""So many times what a pixel itself has, or as little, may the plane through it say of another."""
LEAST = 1e-8
"""Weight of a pixel whose colour is nowhere near: where nothing is alike, all count the same."""


def upsample_depth(depth: NDArray[np.float32], image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A depth map at an image's size: each pixel takes the mean of what the planes through those around it say of
    itself, as far as their colour is its own (joint bilateral upsampling, Kopf et al. 2007, doi
    10.1145/1276377.1276497, of inverse depth, which is linear over a plane).

    Args:
        depth: [h, w], of the same view as the image; 0 where there is none.
        image: [H, W, 3], no smaller.

    Returns:
        [H, W]; 0 where the nearest pixel of ``depth`` has none.
    """
    height, width = image.shape[:2]
    rows, columns = depth.shape
    small = cv2.resize(image, (columns, rows), interpolation=cv2.INTER_AREA).astype(np.float32) / ALIKE
    fine = image.astype(np.float32) / ALIKE
    known = depth > 0
    inverse = np.divide(1, depth, out=np.zeros_like(depth, np.float32), where=known)
    down, right = (_slopes(inverse, known, axis) for axis in (0, 1))
    total, weights = np.zeros((height, width), np.float32), np.zeros((height, width), np.float32)
    across = list(_window(width, columns))
    for y, y_off, y_weight in _window(height, rows):
        colours, seen, there_of, down_of, right_of = (values[y] for values in (small, known, inverse, down, right))
        for x, x_off, x_weight in across:
            difference = fine - colours[:, x]
            weight = np.exp(-0.5 * np.einsum("ijk,ijk->ij", difference, difference))
            weight = (weight + LEAST) * y_weight[:, None] * x_weight * seen[:, x]
            there = there_of[:, x]
            here = there + down_of[:, x] * y_off[:, None] + right_of[:, x] * x_off
            total += weight * np.clip(here, there / FURTHEST, there * FURTHEST)
            weights += weight
    near = known[_nearest(height, rows)][:, _nearest(width, columns)]
    return np.divide(weights, total, out=np.zeros_like(total), where=near)


def _nearest(fine: int, coarse: int) -> NDArray[np.intp]:
    """The coarse pixel that each fine one lies in, along one axis."""
    return ((np.arange(fine) + 0.5) * coarse / fine).astype(np.intp)


def _slopes(inverse: NDArray[np.float32], known: NDArray[np.bool_], axis: int) -> NDArray[np.float32]:
    """What inverse depth grows by along an axis from one pixel to the next: the lesser of the two sides, and none where
    they differ in sign, so that it is a surface's and not a jump's."""
    steps = np.moveaxis(np.diff(inverse, axis=axis), axis, 0)
    both = np.moveaxis(known, axis, 0)
    steps = np.where(both[1:] & both[:-1], steps, 0)
    before, after = np.concatenate([steps[:1], steps]), np.concatenate([steps, steps[-1:]])
    least = np.where(np.abs(before) < np.abs(after), before, after)
    return np.asarray(np.moveaxis(np.where(before * after > 0, least, 0), 0, axis), np.float32)


def _window(fine: int, coarse: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.float32]]]:
    """Along one axis, from the window's one end to the other: which coarse pixel each fine one looks at, how far it is
    from there, in coarse ones, and the weight by that; 0 beyond the border."""
    place = (np.arange(fine) + 0.5) * coarse / fine - 0.5
    middle = np.rint(place).astype(np.intp)
    for step in range(-RADIUS, RADIUS + 1):
        there = middle + step
        off = (place - there).astype(np.float32)
        weight = np.exp(-0.5 * (off / SPREAD) ** 2) * ((there >= 0) & (there < coarse))
        yield np.clip(there, 0, coarse - 1), off, weight.astype(np.float32)


PER_UNIT = 1000
"""Steps of a PNG for one unit of the reconstruction."""
FARTHEST = (2**16 - 1) / PER_UNIT
CAMERAS = "cameras.csv"
Maps = Iterator[tuple[Camera, tuple[NDArray[np.float32], Intrinsics] | None]]
"""Depth [h, w] and its pinhole camera in pixels of the map; None where a frame cannot be read."""


def write_depth_images(job: ExportJob, folder: Path) -> ExportReport:
    """Write the frames' depth maps, and their cameras: at the network's resolution, or where ``max_side`` is given as
    large as that, made finer by the source's images.

    Raises:
        StreamReconError: nothing to export. OSError where the system refuses.
    """
    cameras = job.cameras("all")
    (folder / "depth").mkdir()
    warnings: list[str] = []
    maps = _own_maps(job, cameras) if job.options.max_side is None else _finer_maps(job, cameras, warnings)
    written = 0
    with (folder / CAMERAS).open("w") as table:
        table.write("file,index,timestamp,width,height,fx,fy,cx,cy\n")
        for done, (camera, found) in enumerate(maps, start=1):
            if found is not None:
                depth, k = found
                name = f"depth/{frame_name(camera.index)}.png"
                write_image(folder / name, depth_units(depth))
                height, width = depth.shape
                numbers = ",".join(f"{value:.9g}" for value in (k.fx, k.fy, k.cx, k.cy))
                table.write(f"{name},{camera.index},{camera.timestamp:.6f},{width},{height},{numbers}\n")
                written += 1
            job.progress(done, len(cameras))
    return ExportReport(
        f"{written} depth maps.",
        [
            DEPTH_NOTE,
            *([FINER_NOTE] if job.options.max_side is not None else []),
            f"{CAMERAS}: each map's frame in the source, its time in seconds, size and pinhole camera in pixels of the "
            "map; pixel (0, 0) covers [0, 1) x [0, 1).",
        ],
        [*warnings, *lost_frames(len(cameras) - written)],
    )


def _own_maps(job: ExportJob, cameras: Sequence[Camera]) -> Maps:
    for camera in cameras:
        try:
            result = result_of(job.result.folder, camera)
        except OutputError:
            yield camera, None
        else:
            yield camera, (result.depth, result.network_intrinsics)


def _finer_maps(job: ExportJob, cameras: Sequence[Camera], warnings: list[str]) -> Maps:
    images = frame_images(job.result, cameras, job.view, job.options.max_side)
    warnings += [images.warning] if images.warning else []
    for camera, rgb, _ in images:
        try:
            yield camera, (view_depth(job, camera, images.view, rgb), images.view.intrinsics)
        except OutputError:
            yield camera, None


def view_depth(job: ExportJob, camera: Camera, view: PinholeView, image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A frame's depth [h, w] as ``view`` shows it, made finer by the export's ``image`` of the frame, which is no
    smaller, where the network's own map is less. Raises OutputError."""
    result = result_of(job.result.folder, camera)
    small = view.scaled(max(result.transform.network_size))
    # Not interpolated: between two surfaces there is none.
    depth = np.asarray(small.of_network(result.depth, result.transform, cv2.INTER_NEAREST), np.float32)
    if max(view.size) <= max(small.size):
        return depth
    return upsample_depth(depth, np.asarray(cv2.resize(image, view.size, interpolation=cv2.INTER_AREA), np.uint8))


DEPTH_NOTE = (
    f"Depth: 16-bit PNG, along the optical axis, {PER_UNIT} steps a unit; 0: no depth, or farther than {FARTHEST:g}."
)
FINER_NOTE = "As one undistorted pinhole camera would see it, its edges where the image's are."


def frame_name(index: int) -> str:
    """A frame's name in all exports, from its number in the source; without dots, which some readers cut names at."""
    return f"frame_{index:06d}"


def depth_units(depth: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Depth [h, w] in the steps of a PNG."""
    steps = np.rint(np.asarray(depth, np.float32) * PER_UNIT)
    return np.where((steps > 0) & (steps < 2**16), steps, 0).astype(np.uint16)


def write_image(path: Path, image: NDArray[Any], parameters: tuple[int, ...] = ()) -> None:
    """Write an image file; its suffix says which kind. OSError where the system refuses."""
    # By way of memory: the encoder itself does not tell that a disk is full.
    ok, data = cv2.imencode(path.suffix, image, parameters)
    assert ok, "such an image can always be encoded"
    path.write_bytes(data.tobytes())


def lost_frames(count: int) -> list[str]:
    """A warning where some frames could not be read."""
    return [f"{count} frames are left out: their files are missing or damaged"] if count else []
