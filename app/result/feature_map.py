"""``map.npz``: features of a refined result's keyframes, by which the place is recognized.

``refinement``: id of the refinement, as ASCII bytes; a file of another one is ignored. ``frame`` [K] int32: frame
indices. ``start`` [K + 1] int64: rows of a keyframe's features. ``uv`` [F, 2] uint16: positions in working pixels,
times `UV_STEPS`. ``z`` [F] float32: depth in the unit of the frame's depth file, 0 where unknown: times the camera's
``depth_scale`` it is in the result's unit. ``descriptors`` [F, 64] uint8: RootSIFT with 4 bits a value, the even ones
in the low bits. ``words`` [W, 128] float16 and ``vectors`` [K, 128 W] int8: vocabulary and VLAD vectors. ``lens``
[6] float64: focal length, cx, cy in working pixels, k1, k2, and 1 for a fish-eye lens. ``size`` [2] int32: width and
height of the working image.
"""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.result.files import output_errors, replace_file
from stream_recon.app.result.tracks import DAMAGE, check_arrays, read_arrays
from stream_recon.configs.errors import OutputError

MAP_NAME = "map.npz"
UV_STEPS = 64
"""Steps of a position in one pixel; a working image has less than 1024 pixels a side."""
DESCRIPTOR_LEVELS, DESCRIPTOR_RANGE = 15, 0.36
"""Steps of a descriptor's value and the largest value: SIFT cuts off what is larger."""
VECTOR_STEPS = 127
"""Steps of a VLAD vector's value, which is at most 1."""


@dataclass(frozen=True)
class FeatureMap:
    """The arrays of ``map.npz``."""

    refinement: NDArray[np.uint8]
    frame: NDArray[np.int32]
    start: NDArray[np.int64]
    uv: NDArray[np.uint16]
    z: NDArray[np.float32]
    descriptors: NDArray[np.uint8]
    words: NDArray[np.float16]
    vectors: NDArray[np.int8]
    lens: NDArray[np.float64]
    size: NDArray[np.int32]

    def check(self) -> None:
        """Raises ValueError where the arrays do not fit together."""
        count, features = len(self.frame), len(self.uv)
        words = max(len(self.words), min(count, 1))
        check_arrays(self, {"frame": ((count,), "i4"), "start": ((count + 1,), "i8"), "uv": ((features, 2), "u2")})
        check_arrays(self, {"z": ((features,), "f4"), "descriptors": ((features, 64), "u1"), "lens": ((6,), "f8")})
        check_arrays(
            self, {"words": ((words, 128), "f2"), "vectors": ((count, 128 * words), "i1"), "size": ((2,), "i4")}
        )
        steps = np.diff(self.start)
        if self.start[0] != 0 or self.start[-1] != features or (steps < 0).any() or (np.diff(self.frame) <= 0).any():
            raise ValueError("its rows are not in order")
        if not (self.lens[0] > 0 and (self.size > 0).all()):
            raise ValueError("its camera is not one")


def packed_descriptors(descriptors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Descriptors [N, 128] with 4 bits a value [N, 64]."""
    levels = np.rint(descriptors * np.float32(DESCRIPTOR_LEVELS / DESCRIPTOR_RANGE)).clip(0, DESCRIPTOR_LEVELS)
    whole = levels.astype(np.uint8)
    return np.asarray(whole[:, 0::2] | (whole[:, 1::2] << 4), np.uint8)


def unpacked_descriptors(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Descriptors [N, 128] of unit length from `packed_descriptors`."""
    values = np.empty((len(packed), 128), np.float32)
    values[:, 0::2], values[:, 1::2] = packed & 15, packed >> 4
    values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-6)
    return values


def write_map(folder: Path, content: FeatureMap) -> None:
    """Write or replace ``map.npz``. Raises OutputError."""
    replace_file(folder / MAP_NAME, lambda file: np.savez_compressed(file, **vars(content)))


def read_map(folder: Path, refinement: str | None) -> FeatureMap | None:
    """The content of ``map.npz``; None where there is none of this refinement. Raises OutputError for a damaged one."""
    path = folder / MAP_NAME
    try:
        feature_map = FeatureMap(**read_arrays(path, [field.name for field in fields(FeatureMap)]))
        feature_map.check()
    except FileNotFoundError:
        return None
    except DAMAGE as error:
        raise OutputError(f"{path} is damaged: {error}; stream-recon refine makes it again") from error
    return feature_map if feature_map.refinement.tobytes() == (refinement or "").encode("ascii") else None


def remove_map(folder: Path) -> None:
    """Remove ``map.npz``, if there is one. Raises OutputError."""
    with output_errors(folder / MAP_NAME):
        (folder / MAP_NAME).unlink(missing_ok=True)
