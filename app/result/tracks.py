"""``tracks.npz``: the points that were triangulated, and where keyframes see each.

``points`` [M, 3] float64, in the world of cameras.json; ``errors`` [M] float32, mean reprojection error in pixels;
``frame`` [O] int32, a frame's index in its source; ``point`` [O] int32, a number of ``points``; ``pixel`` [O, 2]
float32, in the source image, whose pixel (0, 0) covers [0, 1) x [0, 1); observations are sorted by point. ``lens``
float64: focal length, cx, cy in pixels of the source image, and k1: u = cx + f (1 + k1 r^2) x / z with
r^2 = (x^2 + y^2) / z^2 (COLMAP's SIMPLE_RADIAL); ``source_size`` int32: width and height. ``loops`` [L, 2] int32:
pairs of frames far apart in time that were matched.
"""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.result.arrays import DAMAGE, read_arrays
from stream_recon.app.result.files import replace_file
from stream_recon.configs.errors import OutputError

TRACKS_NAME = "tracks.npz"


@dataclass(frozen=True)
class SparseTracks:
    """As the file has them."""

    points: NDArray[np.float64]
    errors: NDArray[np.float32]
    frame: NDArray[np.int32]
    point: NDArray[np.int32]
    pixel: NDArray[np.float32]
    lens: NDArray[np.float64]
    source_size: NDArray[np.int32]
    loops: NDArray[np.int32]


def write_tracks(folder: Path, tracks: SparseTracks) -> None:
    """Write or replace the file. Raises OutputError."""
    replace_file(folder / TRACKS_NAME, lambda file: np.savez_compressed(file, **vars(tracks)))


def read_tracks(folder: Path) -> SparseTracks | None:
    """None where nothing was triangulated. Raises OutputError where the file is damaged."""
    path = folder / TRACKS_NAME
    try:
        return SparseTracks(**read_arrays(path, [field.name for field in fields(SparseTracks)]))
    except FileNotFoundError:
        return None
    except DAMAGE as error:
        raise OutputError(f"{path} is damaged: {error}") from error
