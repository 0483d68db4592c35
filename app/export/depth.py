"""Depth maps as 16-bit PNG."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.export.job import Job, Told
from stream_recon.app.output.folder import result_of
from stream_recon.configs.errors import OutputError

PER_UNIT = 1000
"""Steps of a PNG for one unit of the reconstruction."""
FARTHEST = (2**16 - 1) / PER_UNIT
CAMERAS = "cameras.csv"


def write_depth_images(job: Job, folder: Path) -> Told:
    """Write the frames' depth maps at the network's resolution, and their cameras.

    Raises:
        StreamReconError: nothing to export. OSError where the system refuses.
    """
    cameras = job.cameras("all")
    (folder / "depth").mkdir()
    lost = 0
    with (folder / CAMERAS).open("w") as table:
        table.write("file,index,timestamp,width,height,fx,fy,cx,cy\n")
        for done, camera in enumerate(cameras, start=1):
            try:
                result = result_of(job.result.folder, camera)
            except OutputError:
                lost += 1
            else:
                name = f"depth/{frame_name(camera.index)}.png"
                write_image(folder / name, depth_units(result.depth))
                height, width = result.depth.shape
                k = result.network_intrinsics
                numbers = ",".join(f"{value:.9g}" for value in (k.fx, k.fy, k.cx, k.cy))
                table.write(f"{name},{camera.index},{camera.timestamp:.6f},{width},{height},{numbers}\n")
            job.progress(done, len(cameras))
    return Told(
        f"{len(cameras) - lost} depth maps.",
        [
            DEPTH_NOTE,
            f"{CAMERAS}: each map's frame in the source, its time in seconds, size and pinhole camera in pixels of the "
            "map; pixel (0, 0) covers [0, 1) x [0, 1).",
        ],
        lost_frames(lost),
    )


DEPTH_NOTE = (
    f"Depth: 16-bit PNG, along the optical axis, {PER_UNIT} steps a unit; 0: no depth, or farther than {FARTHEST:g}."
)


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
