"""Decoding of image files, in the formats of OpenCV and of HEIF, and their EXIF orientation."""

import importlib.util
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.input_file import read_file
from stream_recon.app.sources.calibration import ORIENTATIONS, same_aspect
from stream_recon.app.sources.exif import HEAD_BYTES, PNG, TIFF, is_heic, read_exif
from stream_recon.configs.errors import InputError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".jp2", ".ppm", ".pgm", ".pnm"})
"""Image formats that OpenCV's wheel decodes."""
HEIF_SUFFIXES = frozenset({".heic", ".heif", ".avif"})
"""Image formats that need the library pillow-heif."""
Pixel = TypeVar("Pixel", bound=np.generic)
MAX_IMAGE_BYTES = 2**31
"""Larger files cannot be passed to OpenCV's decoder."""
DEEP_SUFFIXES = (".png", ".tif", ".tiff", ".pgm", ".pnm", ".jp2")
"""Formats with up to 16 bits."""
BIT_SAMPLES = 8
"""Images of a folder whose values are looked at."""
EXIF_SAMPLES = 100
"""Photographs of a folder whose EXIF is read; more would slow the start and agree anyway."""


def read_image(path: Path, *, as_stored: bool = False, bits: int = 16) -> NDArray[np.uint8] | None:
    """Read an image file as 8-bit RGB [H, W, 3]; None if it is unreadable.

    Grey becomes three equal channels, alpha is dropped, 16-bit and float images map their full range (0 to 2^bits, 0 to
    1) to 0..255, and the EXIF orientation is applied, except ``as_stored``. Raises InputError: pixels of another type.
    """
    return read_with_opacity(path, as_stored=as_stored, bits=bits)[0]


def read_with_opacity(
    path: Path, *, as_stored: bool = False, bits: int = 16
) -> tuple[NDArray[np.uint8] | None, NDArray[np.uint8] | None]:
    """An image as `read_image` gives it, and its opacity [H, W] of 0 to 255; None where it has none."""
    data = image_bytes(path)
    if data is None:
        return None, None
    if is_heic(data[:HEAD_BYTES].tobytes()):
        return _decoded_heif(data)
    has_alpha = read_exif(path).has_alpha
    colour = cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH | cv2.IMREAD_IGNORE_ORIENTATION
    bgr = _as_stored(path, data, cv2.IMREAD_UNCHANGED if has_alpha else colour)
    if has_alpha and (bgr is None or bgr.shape[2:] != (4,)):
        bgr = _as_stored(path, data, colour)
    if bgr is None:
        return _decoded_heif(data)  # AVIF, which OpenCV may be built without
    if bgr.dtype == np.uint8:
        bgr = _at_full_range(bgr, data)
    if bgr.shape[2] == 3 and bgr.dtype.kind == "f" and np.isnan(bgr).any():  # unknown is transparent
        bgr = np.dstack([bgr, ~np.isnan(bgr).any(axis=2)]).astype(np.float32)
    bgr = _in_8_bits(bgr, bits, path.name)
    # In place, like all of the above, so that a large image is in memory once.
    conversion = cv2.COLOR_BGR2RGB if bgr.shape[2] == 3 else cv2.COLOR_BGRA2RGBA
    rgba = np.asarray(cv2.cvtColor(bgr, conversion, dst=bgr), np.uint8)
    return _split(rgba if as_stored else oriented(rgba, read_exif(path).orientation))


def _at_full_range(bgr: NDArray[np.uint8], data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Levels of 0 to 255 from those that OpenCV gives as stored: of PGM to its largest, of TIFF times its alpha."""
    most = re.match(rb"P[2356]\s+(?:#.*\s+)*\d+\s+\d+\s+(\d+)\s", data[:200].tobytes())
    if most is not None and 0 < int(most[1]) < 255:
        return np.asarray(np.minimum(bgr * (255 / int(most[1])), 255), np.uint8)
    if bgr.shape[2] == 4 and data[:4].tobytes() in TIFF:
        bgr[..., :3] = np.minimum(np.rint(bgr[..., :3] * (255 / np.maximum(bgr[..., 3:], 1))), 255)
    return bgr


def _in_8_bits(image: NDArray[Any], bits: int, name: str) -> NDArray[np.uint8]:
    if image.dtype == np.uint8:
        return np.asarray(image, np.uint8)
    if image.dtype == np.uint16:
        image >>= bits - 8
        return np.asarray(np.minimum(image, 255), np.uint8)
    if image.dtype.kind != "f" or (image[..., :3] > 1).mean() > 0.5:
        said = f"{name} has pixels of {image.dtype} of up to {np.nanmax(image):g}"
        raise InputError(f"{said}: convert it to 8 or 16 bits, or floats of 0 to 1")
    np.nan_to_num(image, copy=False)
    np.clip(image, 0, 1, out=image)
    image *= 255
    return np.asarray(np.rint(image, out=image), np.uint8)


def _split(rgba: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Colours [H, W, 3] and opacity of an image [H, W, 3 or 4]."""
    return (rgba, None) if rgba.shape[2] == 3 else (np.ascontiguousarray(rgba[..., :3]), rgba[..., 3])


def _as_stored(path: Path, data: NDArray[np.uint8], flags: int) -> NDArray[Any] | None:
    """Pixels of an image file, not turned: OpenCV's decoder of TIFF turns them whatever it is asked for."""
    try:
        image = cv2.imdecode(data, flags)
    except cv2.error:
        return None
    if image is None or data[:4].tobytes() not in TIFF:
        return image
    turned = read_exif(path).orientation
    return oriented(image, {6: 8, 8: 6}.get(turned, turned))


def used_bits(images: Sequence[Path]) -> int:
    """Bits that the values of 16-bit images use, by some of them: cameras store 10, 12 or 14 bits in 16."""
    used = 0
    for path in images[:: max(1, len(images) // BIT_SAMPLES)] if images[0].suffix.lower() in DEEP_SUFFIXES else ():
        image = read_unconverted(path)
        if image is not None and image.dtype == np.uint16:
            used |= int(np.bitwise_or.reduce(image[..., :3] if image.ndim == 3 else image, axis=None))
    return bits_of(used)


def bits_of(used: int) -> int:
    """Bits of a camera by those that its values, stored in 16, use; 16 where that is not plain.

    Values that are multiples of a power of two, such as of 256, fill 16 bits, whatever their largest is.
    """
    bits = next((bits for bits in (8, 10, 12, 14) if used.bit_length() in (bits - 1, bits)), 16)
    return bits if used & ((1 << (16 - bits)) - 1) else 16


def fits_stored(images: Sequence[Path], size: tuple[int, int] | None) -> bool:
    """Whether a camera of ``size`` (width, height), or poses (None), describe images without their EXIF orientation.

    Programs for structure from motion read images as stored. The size decides where only one of the two fits.
    """
    for path in images[:: -(-len(images) // EXIF_SAMPLES)] if images else ():
        try:
            turned = read_exif(path).orientation
        except InputError:
            continue
        if turned == 1:
            continue
        stored, shown = read_image(path, as_stored=True), read_image(path)
        if stored is None or shown is None or size is None:
            return stored is not None
        return same_aspect(stored.shape[1::-1], size) or not same_aspect(shown.shape[1::-1], size)
    return False


def oriented(image: NDArray[Pixel], orientation: int) -> NDArray[Pixel]:
    """A stored image [H, W, ...] turned for display by an EXIF orientation (1 to 8)."""
    if orientation not in ORIENTATIONS:
        return image
    swap, mirror_x, mirror_y = ORIENTATIONS[orientation]
    turned = image.swapaxes(0, 1) if swap else image
    return np.ascontiguousarray(turned[:: -1 if mirror_y else 1, :: -1 if mirror_x else 1])


def read_depth_image(path: Path) -> NDArray[np.uint16] | None:
    """Read a 16-bit image of one channel, [H, W] without conversion; None for any other or an unreadable file."""
    image = read_unconverted(path)
    return image if image is not None and image.dtype == np.uint16 and image.ndim == 2 else None


def read_unconverted(path: Path) -> NDArray[Any] | None:
    """An image file with its own channels (in the order of OpenCV) and type, not turned; None if it is unreadable."""
    data = image_bytes(path)
    return None if data is None else _as_stored(path, data, cv2.IMREAD_UNCHANGED)


def image_bytes(path: Path) -> NDArray[np.uint8] | None:
    """Content of an image file; None if it is unreadable, empty, not a regular file, or too large."""
    try:
        data = np.frombuffer(read_file(path, MAX_IMAGE_BYTES), np.uint8)
    except (OSError, ValueError):  # such as a name with a zero byte
        return None
    return None if not len(data) or is_truncated_png(data) else data


def is_truncated_png(data: NDArray[np.uint8]) -> bool:
    """Whether a PNG chunk states a length beyond the end of the file.

    OpenCV allocates the stated length, up to 4 GB, before it reads the chunk.
    """
    if data[: len(PNG)].tobytes() != PNG:
        return False
    offset, kind = len(PNG), b""
    while offset + 8 <= len(data) and kind != b"IEND":
        kind = data[offset + 4 : offset + 8].tobytes()
        offset += 12 + int.from_bytes(data[offset : offset + 4].tobytes(), "big")
    return offset > len(data)


def readable_suffixes() -> frozenset[str]:
    """Those of `HEIF_SUFFIXES` that can be read here: OpenCV may be built with AVIF."""
    has_avif = re.search(r"AVIF: +(?!NO)", cv2.getBuildInformation()) is not None
    return HEIF_SUFFIXES if has_heif() else frozenset({".avif"} if has_avif else ())


@cache
def has_heif() -> bool:
    """Whether the library for HEIC and AVIF is installed."""
    return importlib.util.find_spec("pillow_heif") is not None


def _decoded_heif(data: NDArray[np.uint8]) -> tuple[NDArray[np.uint8] | None, NDArray[np.uint8] | None]:
    """Image [H, W, 3] and opacity of HEIC or AVIF, as displayed; None for other data."""
    if data[4:8].tobytes() != b"ftyp" or not has_heif():
        return None, None
    import pillow_heif

    try:
        heif = pillow_heif.open_heif(data.tobytes(), convert_hdr_to_8bit=True)
        image = np.asarray(heif)
    except Exception:  # noqa: BLE001  # the library has no common error, and an image that is not read is told
        return None, None
    if image.ndim == 2:
        image = np.repeat(image[..., None], 3, axis=2)
    return _split(image) if image.dtype == np.uint8 and image.shape[2] in (3, 4) else (None, None)
