"""Whether a source still shows what a result was made from: by some stored pictures, times and masks."""

from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Frame
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.depth import DepthFile, depth_path, read_depth
from stream_recon.app.sources.preprocess import prepare
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError, OutputError

PICTURES = 10
"""Stored pictures that are compared, spread over the result."""
MAX_DIFFERENCE = 12.0
"""Largest mean difference of two images of one frame, in levels of 255: other encoding alone gives 1 to 5."""
NOISE = 2.5
"""Mean difference up to which two images are the same whatever else is similar."""
CLOSER = 0.75
"""Share of a frame's difference by which a neighbouring frame has to be nearer, where frames are shifted."""
SAME_SECONDS = 2e-3
"""Difference of times up to which they are the same: some containers round to milliseconds."""
MASKED_SHARE = 0.1
"""Share of a masked region that may have depth, where masks were resized differently."""


def source_change(folder: Path, cameras: Sequence[FrameCamera], open_again: Callable[[], Source]) -> str | None:
    """What differs between a source and the frames ``cameras`` of a result, for the user; None where nothing does.

    Raises InputError where the source cannot be read at all.
    """
    if not cameras:
        return None
    rows = sorted(set(np.linspace(0, len(cameras) - 1, PICTURES).round().astype(int).tolist()))
    compared = {cameras[row].index: row for row in rows}
    read = 0
    with open_again() as source:
        for frame in source.frames_at(compared):
            difference = _difference(folder, cameras, compared[frame.index], frame, timed=source.image_names is None)
            if difference is not None:
                return f"frame {frame.index} {difference}"
            read += 1
        # A file that cannot be decoded is told elsewhere, and costs its frame alone.
        unread = source.damaged if read else 0
    missing = len(compared) - read
    return None if missing <= unread else f"{missing} of {len(compared)} frames looked for are missing"


def _difference(folder: Path, cameras: Sequence[FrameCamera], row: int, frame: Frame, *, timed: bool) -> str | None:
    camera = cameras[row]
    if timed and abs(frame.timestamp - camera.timestamp) > SAME_SECONDS:
        return f"is at {frame.timestamp:.3f} s instead of {camera.timestamp:.3f} s"
    stored = _stored(folder, camera)
    if stored is None:
        return None
    size = (frame.rgb.shape[1], frame.rgb.shape[0])
    if size != stored.transform.source_size:
        return f"has {size[0]}x{size[1]} pixels instead of {'x'.join(map(str, stored.transform.source_size))}"
    image = prepare(frame, stored.transform).rgb
    difference = _mean_difference(image, stored.rgb)
    if difference > MAX_DIFFERENCE:
        return "shows another picture"
    if difference > NOISE:
        neighbours = [_stored(folder, cameras[other]) for other in (row - 1, row + 1) if 0 <= other < len(cameras)]
        if any(n is not None and _mean_difference(image, n.rgb) < CLOSER * difference for n in neighbours):
            return "shows the picture of another frame"
    if frame.mask is not None and _has_depth(frame.mask, stored):
        return "has another mask"
    return None


def _stored(folder: Path, camera: FrameCamera) -> DepthFile | None:
    try:
        return read_depth(depth_path(folder, camera.index))
    except OutputError:
        return None


def _mean_difference(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    if one.shape != other.shape:
        return float("inf")
    # Blurred, since compression changes details.
    first, second = (cv2.blur(image, (3, 3)).astype(np.int16) for image in (one, other))
    return float(np.abs(first - second).mean())


def _has_depth(mask: NDArray[np.bool_], stored: DepthFile) -> bool:
    """Whether the stored frame has depth where a mask excludes it: at pixels that the mask covers completely."""
    left, top, width, height = (round(value) for value in stored.transform.crop)
    used = mask[top : top + height, left : left + width].astype(np.float32)
    inside = cv2.resize(used, stored.transform.network_size, interpolation=cv2.INTER_AREA) > 0.999
    return bool(inside.any()) and float((stored.depth[inside] > 0).mean()) > MASKED_SHARE


def check_source(folder: Path, cameras: Sequence[FrameCamera], open_again: Callable[[], Source]) -> None:
    """Raises InputError unless the source still shows what the result was made from."""
    change = source_change(folder, cameras, open_again)
    if change is not None:
        raise InputError(
            f"the source has changed since {folder} was begun ({change}): give the same source to resume it, or "
            "--overwrite instead of --resume"
        )
