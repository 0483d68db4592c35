"""``tracks.npz``: the points that were triangulated, and where keyframes see each.

``points`` [M, 3] float64, in the world of cameras.json; ``errors`` [M] float32, mean reprojection error in pixels;
``frame`` [O] int32, a frame's index in its source; ``point`` [O] int32, a number of ``points``; ``pixel`` [O, 2]
float32, in the source image, whose pixel (0, 0) covers [0, 1) x [0, 1); observations are sorted by point. ``lens``
float64: focal length, cx, cy in pixels of the source image, and k1: u = cx + f (1 + k1 r^2) x / z with
r^2 = (x^2 + y^2) / z^2 (COLMAP's SIMPLE_RADIAL); ``source_size`` int32: width and height. ``loops`` [L, 2] int32:
pairs of frames far apart in time that were matched.

Arrays of a file in numpy's npz format, read by any thread, whatever the bytes are.
"""

import struct
import threading
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.result.files import replace_file
from stream_recon.configs.errors import OutputError

DAMAGE = (
    OSError, LookupError, ValueError, ArithmeticError, TypeError, EOFError, SyntaxError, NotImplementedError,
    RecursionError, MemoryError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What readers of zip files and of numpy's headers raise for bytes that nobody wrote."""
MOST_BYTES = 2**31
"""Of all arrays of a file: no run writes so much into one."""
_headers = threading.Lock()
"""numpy reads headers by Python's parser, which fails now and then before 3.11.8 when several threads are in it
(SystemError: AST constructor recursion depth mismatch, gh-106905)."""


def read_arrays(source: Path | BinaryIO, names: Iterable[str], *, stored: bool = False) -> dict[str, NDArray[Any]]:
    """The arrays of these names. ``stored``: a compressed file is refused.

    Raises one of `DAMAGE`, FileNotFoundError among them.
    """
    if isinstance(source, Path) and not source.is_file():
        raise FileNotFoundError("no such file")
    with zipfile.ZipFile(source) as content:
        entries = content.infolist()
        if stored and any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("it is compressed, as no run writes it")
        if sum(entry.file_size for entry in entries) > MOST_BYTES:
            raise ValueError("it is larger than any that a run writes")
    if not isinstance(source, Path):
        source.seek(0)
    with np.load(source, allow_pickle=False) as file, _headers:
        return {name: file[name] for name in names}


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
