"""Masks of an export's images, in the form that trainers read: white is used, black is left out."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.export.depth import frame_name, write_image
from stream_recon.app.export.job import ExportJob
from stream_recon.app.export.view import PinholeView
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.depth import depth_path, read_depth
from stream_recon.configs.errors import OutputError

NOTE = "masks/: black is left out: what the run's masks left out, at the size of the images; for all frames or none."


def has_masks(job: ExportJob) -> bool:
    """Whether the run was told to leave anything out."""
    options = job.result.run.get("options")
    return isinstance(options, dict) and bool(options.get("masks") or options.get("mask_sky"))


def left_out(job: ExportJob, camera: Camera, view: PinholeView, given: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    """What is left out of a frame's image [h, w].

    ``given``: by the user's own mask, where it was read again; else it is the coarser one of the depth file, where also
    sky is left out.
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
    found = view.of_network(coarse, stored.transform) > 0.5
    return np.asarray(found if given is None else found | given)


def write_mask(folder: Path, camera: Camera, masked: NDArray[np.bool_]) -> str:
    """Write a frame's mask and give its name. OSError where the system refuses."""
    name = f"{frame_name(camera.index)}.png"
    write_image(folder / name, np.where(masked, np.uint8(0), np.uint8(255)))
    return name
