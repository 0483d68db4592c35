"""Whether the images of a folder are photographs in no order, or frames of a film."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from stream_recon.app.core.types import ImageTransform, PreparedFrame
from stream_recon.app.sources.exif import times_taken
from stream_recon.app.sources.image_decoding import read_image
from stream_recon.app.sources.segmentation import MIN_MATCHES, ImageSignature
from stream_recon.configs.errors import StreamReconError

MIN_IMAGES = 6
"""Fewer images are taken as they stand."""
TESTED = 12
"""Pairs of neighbours that are compared; bounds the time."""
MIN_DISJOINT = 0.25
"""Share of neighbours that show nothing in common from which images are in no order. A film has few cuts."""
MIN_SECONDS = 1.0
"""Median time between photographs, by EXIF; a film has many frames a second, and no EXIF."""


def are_unordered(images: Sequence[Path]) -> bool:
    """Whether consecutive images need not show the same place: by their EXIF times, or because many do not."""
    if len(images) < MIN_IMAGES:
        return False
    if (times := times_taken(images)) is not None:
        steps = [after - before for before, after in pairwise(times)]
        if min(steps) < 0 or median(steps) >= MIN_SECONDS:
            return True
    step = max((len(images) - 1) / TESTED, 1.0)
    firsts = sorted({int(k * step) for k in range(min(TESTED, len(images) - 1))})
    disjoint = [not _overlap(images[k], images[k + 1]) for k in firsts]
    return sum(disjoint) >= MIN_DISJOINT * len(disjoint)


def _overlap(first: Path, second: Path) -> bool:
    """Whether two images show something in common; also where one is not readable, which says nothing."""
    a, b = _signature(first), _signature(second)
    return a is None or b is None or bool(a.blank_reason or b.blank_reason) or a.overlap(b) >= MIN_MATCHES


def _signature(path: Path) -> ImageSignature | None:
    try:
        rgb = read_image(path)
    except (StreamReconError, OSError):
        return None
    if rgb is None:
        return None
    height, width = rgb.shape[:2]
    transform = ImageTransform((width, height), (0.0, 0.0, float(width), float(height)), (width, height))
    return ImageSignature(PreparedFrame(0, math.nan, rgb, transform))
