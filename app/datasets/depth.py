"""Depth images of data sets."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stream_recon.app.core.ground_truth import DepthMap
from stream_recon.app.sources.readers import read_depth_image
from stream_recon.configs.errors import InputError


@dataclass(frozen=True)
class DepthImages:
    """16-bit images of one channel, depth along the optical axis; 0 is unknown."""

    files: Mapping[int, Path]
    """Files by frame index."""
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
        units = read_depth_image(path)
        if units is None:
            raise InputError(f"{path} is not a 16-bit image of one channel (depth)")
        metres = units.astype(np.float32) / np.float32(self.units_per_metre)
        return DepthMap(np.where(units == self.invalid, np.float32(0), metres))
