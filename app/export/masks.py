"""Masks of exported images as trainers of splats and radiance fields read them: black pixels are excluded."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.export.depth import frame_name, write_image
from stream_recon.app.export.job import ExportJob
from stream_recon.app.export.view import PinholeView
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.depth import depth_path, read_depth
from stream_recon.configs.errors import OutputError

NOTE = "masks/: masks of the run at the size of the images, for all frames; black pixels are excluded."


def has_masks(job: ExportJob) -> bool:
    """Whether the run had masks."""
    options = job.result.run.get("options")
    return isinstance(options, dict) and bool(options.get("masks") or options.get("mask_sky"))


def excluded_pixels(
    job: ExportJob, camera: Camera, view: PinholeView, given: NDArray[np.bool_] | None
) -> NDArray[np.bool_]:
    """Masked pixels [h, w] of a frame's exported image.

    ``given``: the user's mask, where it could be read again. Otherwise, and for the sky, the coarser mask of the depth
    file serves.
    """
    width, height = view.size
    nothing = np.zeros((height, width), bool)
    options = job.result.run["options"]
    if given is not None and not options.get("mask_sky"):
        return given
    try:
        stored = read_depth(depth_path(job.result.folder, camera.index))
    except OutputError:
        return nothing if given is None else given
    coarse = ((stored.depth == 0) & (stored.confidence == 0)).astype(np.float32)
    found = view.from_network(coarse, stored.transform) > 0.5
    return np.asarray(found if given is None else found | given)


def write_mask(folder: Path, camera: Camera, masked: NDArray[np.bool_]) -> str:
    """Write a frame's mask; returns its file name. Raises OSError."""
    name = f"{frame_name(camera.index)}.png"
    write_image(folder / name, np.where(masked, np.uint8(0), np.uint8(255)))
    return name
