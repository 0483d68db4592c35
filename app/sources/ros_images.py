"""Images in messages of ROS and Foxglove, raw or compressed, as RGB."""

import sys
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app import MAX_PIXELS
from stream_recon.app.sources.exif import PNG, exif_of
from stream_recon.app.sources.image_decoding import is_truncated_png

_OF_BITS: dict[str, tuple[int, int | None]] = {
    "mono{}": (1, cv2.COLOR_GRAY2RGB),
    "{}UC1": (1, cv2.COLOR_GRAY2RGB),
    "rgb{}": (3, None),
    "bgr{}": (3, cv2.COLOR_BGR2RGB),
    "{}UC3": (3, cv2.COLOR_BGR2RGB),
    "rgba{}": (4, cv2.COLOR_RGBA2RGB),
    "bgra{}": (4, cv2.COLOR_BGRA2RGB),
    "{}UC4": (4, cv2.COLOR_BGRA2RGB),
    # OpenCV names a Bayer pattern by its second row and column.
    "bayer_rggb{}": (1, cv2.COLOR_BayerBG2RGB),
    "bayer_bggr{}": (1, cv2.COLOR_BayerRG2RGB),
    "bayer_gbrg{}": (1, cv2.COLOR_BayerGR2RGB),
    "bayer_grbg{}": (1, cv2.COLOR_BayerGB2RGB),
}
ENCODINGS: dict[str, tuple[int, int, int | None]] = {
    **{name.format(bits): (count, bits, code) for bits in (8, 16) for name, (count, code) in _OF_BITS.items()},
    **dict.fromkeys(("yuv422", "uyvy"), (2, 8, cv2.COLOR_YUV2RGB_UYVY)),
    **dict.fromkeys(("yuv422_yuy2", "yuyv"), (2, 8, cv2.COLOR_YUV2RGB_YUY2)),
    "nv12": (1, 8, cv2.COLOR_YUV2RGB_NV12),
    "nv21": (1, 8, cv2.COLOR_YUV2RGB_NV21),
}
"""Channels, bits of each, and OpenCV's conversion to RGB, by the encoding's name in ROS."""
_PLANAR = ("nv12", "nv21")
"""Encodings with a plane of colour in half resolution below the grey one."""
MIN_STEP = 64
"""Bytes of a row up to which any padding is believed."""
STILLS = ("jpeg", "jpg", "png", "webp", "tiff", "tif", "bmp")
"""Compressions whose messages hold a picture each."""


def unsupported(message: Any) -> str | None:
    """Encoding or format of a message that is not understood; None for those that are."""
    if hasattr(message, "encoding"):
        if message.encoding not in ENCODINGS:
            return f"the encoding {str(message.encoding)[:40]!r}"
        channels, bits, _ = ENCODINGS[message.encoding]
        used = int(message.width) * channels * bits // 8
        if not used <= (step := int(message.step)) < 2 * max(used, MIN_STEP):
            return f"rows (step) of {message.step} bytes, and {message.encoding} needs {used}"
        rows, size = _rows(message), len(message.data)  # fewer bytes are damage, which is told frame by frame
        return None if size < (rows + 1) * step else f"{size} bytes for {rows} rows of {step}"
    text = str(getattr(message, "format", ""))
    words = [word.removeprefix("image/").lstrip(".") for word in text.replace(";", " ").split()]
    known_words = (*STILLS, "compressed", "compressedDepth", *ENCODINGS)
    is_known = all(word in known_words or word.lower() in STILLS for word in words)
    return None if is_known else f"the format {text[:60]!r}"


def turn_notes(message: Any) -> list[str]:
    """Note on the EXIF orientation of a compressed picture, which is taken as stored: so is its camera_info."""
    turn = 1 if hasattr(message, "encoding") else exif_of(BytesIO(message.data)).orientation
    return [f"its images have the EXIF orientation {turn}, which is not applied, as in ROS"] if turn != 1 else []


def decoded(message: Any, bits: int = 16) -> NDArray[np.uint8] | None:
    """RGB image [H, W, 3] of a raw or compressed message; None for an unknown encoding. May raise `DAMAGE`.

    ``bits``: those that values of 16-bit images use.
    """
    raw = message if hasattr(message, "encoding") else _unpacked(message)
    if raw is None or raw.encoding not in ENCODINGS:
        return None
    channels, depth, conversion = ENCODINGS[raw.encoding]
    height, width, step = int(raw.height), int(raw.width), int(raw.step)
    if not 0 < height * width <= MAX_PIXELS:
        return None
    rows = _rows(raw)
    kind = _kind(raw, depth)
    data = np.frombuffer(raw.data, np.uint8)[: rows * step].reshape(rows, step)
    pixels = np.ascontiguousarray(data[:, : width * channels * kind.itemsize]).view(kind)
    if depth == 16:
        pixels = np.minimum(pixels >> (bits - 8), 255).astype(np.uint8)
    image = pixels if channels == 1 else pixels.reshape(rows, width, channels)
    return np.asarray(image if conversion is None else cv2.cvtColor(image, conversion), np.uint8)


def used_bits(message: Any) -> int:
    """Bits that the values of an image of 16 bits use, as a mask; 0 for others."""
    raw = message if hasattr(message, "encoding") else _unpacked(message)
    if raw is None or ENCODINGS.get(raw.encoding, (1, 8, None))[1] == 8:
        return 0
    data = np.frombuffer(raw.data, np.uint8)
    values = data[: len(data) // 2 * 2].view(_kind(raw, 16)).astype(np.uint16)
    return int(np.bitwise_or.reduce(values, initial=0))


def _rows(raw: Any) -> int:
    """Rows of bytes in an image."""
    return int(raw.height) * 3 // 2 if raw.encoding in _PLANAR else int(raw.height)


def _kind(raw: Any, bits: int) -> np.dtype[Any]:
    is_big = getattr(raw, "is_bigendian", False)
    return np.dtype(np.uint8 if bits == 8 else np.uint16).newbyteorder(">" if is_big else "<")


def _unpacked(message: Any) -> Any:
    """A compressed message as the raw one that its program had; None for one that is not readable.

    Its format is ``ENCODING; CODEC compressed ORDER`` (image_transport): a mosaic stays one, and pictures that are not
    in the order of OpenCV have red and blue exchanged.
    """
    text = str(getattr(message, "format", ""))
    before, _, codec = text.rpartition(";")
    data = np.frombuffer(message.data, np.uint8)
    if "compressedDepth" in codec:
        data = data[max(0, data.tobytes().find(PNG)) :]
    image = None if is_truncated_png(data) else cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    if image is None or image.dtype not in (np.uint8, np.uint16):
        return None
    bits, channels = 8 * image.itemsize, 1 if image.ndim == 2 else image.shape[2]
    order = "rgb" if codec.partition("compressed")[2].strip().startswith("rgb") else "bgr"
    is_mosaic = before.startswith("bayer_") and before.endswith(str(bits))
    grey = before.strip() if is_mosaic else f"mono{bits}"
    return SimpleNamespace(
        encoding=grey if channels == 1 else f"{order}{'a' if channels == 4 else ''}{bits}",
        height=image.shape[0],
        width=image.shape[1],
        step=image.shape[1] * channels * image.itemsize,
        data=image,
        is_bigendian=sys.byteorder == "big",
    )
