"""Depth images of data sets."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from stream_recon.app.truth import DepthMap
from stream_recon.configs.errors import InputError


@dataclass(frozen=True)
class DepthImages:
    """16-bit images of one channel, depth along the optical axis; 0 is unknown."""

    files: Mapping[int, Path]
    """By frame index."""
    units_per_metre: float
    invalid: int = 0
    """Another value that means unknown."""

    def __call__(self, index: int) -> DepthMap | None:
        """Depth in metres of one frame; None where there is no file.

        Raises:
            InputError: not a 16-bit image of one channel.
        """
        path = self.files.get(index)
        if path is None or not path.is_file():
            return None
        try:
            data = np.fromfile(path, np.uint8)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        units = cv2.imdecode(data, cv2.IMREAD_UNCHANGED) if data.size else None
        if units is None or units.dtype != np.uint16 or units.ndim != 2:
            raise InputError(f"{path} is not a 16-bit image of one channel (depth)")
        metres = units.astype(np.float32) / np.float32(self.units_per_metre)
        return DepthMap(np.where(units == self.invalid, np.float32(0), metres))
