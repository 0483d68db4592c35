"""``tracks.npz``: triangulated points and their observations in keyframes. Also a safe reader of npz files.

``points`` [M, 3] float64, in the world of cameras.json; ``errors`` [M] float32, mean reprojection error in pixels;
``frame`` [O] int32, a frame's index in its source; ``point`` [O] int32, a row of ``points``; ``pixel`` [O, 2]
float32, in the source image, whose pixel (0, 0) covers [0, 1) x [0, 1); observations are sorted by point. ``lens``
float64: focal length, cx, cy in pixels of the source image, k1, and where they are not 0 also k2, and 1 for a fish-eye
lens (see `stream_recon.app.core.camera_model`); ``source_size`` int32: width and height. ``loops`` [L, 2] int32:
matched pairs of frames far apart in time.
"""

import struct
import threading
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.input_file import open_regular, open_zip
from stream_recon.app.result.commit import FolderChange
from stream_recon.configs.errors import OutputError

DAMAGE = (
    OSError, LookupError, ValueError, ArithmeticError, TypeError, EOFError, SyntaxError, NotImplementedError,
    RecursionError, MemoryError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Exceptions that readers of zip files and numpy headers raise for damaged bytes."""
MAX_ARRAY_BYTES = 2**31
"""Bound for all arrays of one file: no run writes as much, and a zip bomb would."""
MAX_ARRAYS = 1000
_headers = threading.Lock()
"""numpy reads headers with Python's parser, which before 3.11.8 may fail in several threads at once
(SystemError: AST constructor recursion depth mismatch, gh-106905)."""


def read_arrays(source: Path | BinaryIO, names: Iterable[str], *, stored: bool = False) -> dict[str, NDArray[Any]]:
    """Arrays of an npz file by name; thread-safe. ``stored``: refuse a compressed file.

    Raises one of `DAMAGE`; FileNotFoundError (an OSError) where there is no such file.
    """
    if isinstance(source, Path) and not source.is_file():
        raise FileNotFoundError("no such file")
    opened = open_regular(source) if isinstance(source, Path) else nullcontext(source)
    with opened as file, open_zip(file, MAX_ARRAYS, stored=stored) as content:
        if sum(entry.file_size for entry in content.infolist()) > MAX_ARRAY_BYTES:
            raise ValueError("it is too large")
        with _headers:
            return {name: np.lib.format.read_array(content.open(f"{name}.npy"), allow_pickle=False) for name in names}


def check_arrays(content: object, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    """Raises ValueError where an array has another shape or kind, with or without its size, or is not finite."""
    for name, (shape, kind) in shapes.items():
        array: NDArray[Any] = getattr(content, name)
        if array.shape != shape or not array.dtype.str[1:].startswith(kind) or not np.isfinite(array).all():
            raise ValueError(f"{name} has the shape {array.shape} and type {array.dtype}, or is not finite")


TRACKS_NAME = "tracks.npz"


@dataclass(frozen=True)
class SparseTracks:
    """The arrays of ``tracks.npz``."""

    points: NDArray[np.float64]
    errors: NDArray[np.float32]
    frame: NDArray[np.int32]
    point: NDArray[np.int32]
    pixel: NDArray[np.float32]
    lens: NDArray[np.float64]
    source_size: NDArray[np.int32]
    loops: NDArray[np.int32]

    def check(self) -> None:
        """Raises ValueError where the arrays do not fit together."""
        count, seen, pairs = len(self.points), len(self.point), len(self.loops)
        check_arrays(self, {"points": ((count, 3), "f"), "loops": ((pairs, 2), "i")})
        check_arrays(self, {"frame": ((seen,), "i"), "point": ((seen,), "i"), "pixel": ((seen, 2), "f")})
        check_arrays(self, {"lens": ((min(max(len(self.lens), 4), 6),), "f"), "source_size": ((2,), "i")})
        if not (self.lens[0] > 0 and (self.source_size > 0).all()):
            raise ValueError("its camera is not one")
        if len(self.errors) != count or (seen and not 0 <= self.point.min() <= self.point.max() < count):
            raise ValueError("it observes points that it does not have")

    @property
    def camera_model(self) -> CameraModel:
        """The camera of ``lens``."""
        numbers = [*self.lens.tolist(), *[0.0] * (6 - len(self.lens))]
        focal, cx, cy, k1, k2, fisheye = numbers
        return CameraModel(focal, cx, cy, k1, k2, fisheye=bool(fisheye))


def lens_numbers(lens: CameraModel) -> NDArray[np.float64]:
    """A camera as the array ``lens``."""
    more = [lens.k2, float(lens.fisheye)] if lens.k2 or lens.fisheye else []
    return np.array([lens.focal, lens.cx, lens.cy, lens.k1, *more])


def change_tracks(change: FolderChange, tracks: SparseTracks) -> None:
    """Replace ``tracks.npz`` as part of a change. Raises OutputError."""
    change.replace(TRACKS_NAME, lambda file: np.savez_compressed(file, **vars(tracks)))


def read_tracks(folder: Path) -> SparseTracks | None:
    """The content of ``tracks.npz``; None if there is no such file. Raises OutputError where it is damaged."""
    path = folder / TRACKS_NAME
    try:
        tracks = SparseTracks(**read_arrays(path, [field.name for field in fields(SparseTracks)]))
        tracks.check()
        return tracks
    except FileNotFoundError:
        return None
    except DAMAGE as error:
        raise OutputError(f"{path} is damaged: {error}") from error
