"""Tone mapping of HDR video, colours that are not converted, and mosaics of colours that are said to be grey."""

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.sources.containers import VideoTrack, film

PQ, HLG = "PQ", "HLG"
"""Transfer functions of HDR video: SMPTE ST 2084, and hybrid log-gamma."""
STANDARD = ("", "BT.", "SMPTE 240M", "sRGB", "xvYCC", "IEC 61966", "display gamma", "Unspecified")
"""Beginnings of the names of other transfer functions, whose tones differ little from those of sRGB."""
REFERENCE_WHITE, BRIGHTEST = 203.0, 5.0
"""Reference white in cd/m2 (ITU-R BT.2408), and light that becomes white, as a multiple of it."""
HLG_PEAK, HLG_GAMMA = 1000.0, 1.2
"""Brightest light of a display for HLG in cd/m2, and its system gamma (ITU-R BT.2100)."""


def tone_curve(path: Path) -> NDArray[np.uint8] | None:
    """Table [256] that maps the tones of an HDR video to those of sRGB; None for other videos.

    Reference white becomes 80 %, and brighter light is compressed.
    """
    signal: NDArray[np.float64] = np.arange(256) / 255
    match next((track.transfer for track in film(path).tracks), ""):
        case "PQ":
            root = np.power(signal, 1 / 78.84375)
            light = 10_000 * np.power(
                np.maximum(root - 0.8359375, 0) / (18.8515625 - 18.6875 * root), 1 / 0.1593017578125
            )
        case "HLG":
            high = (np.exp((signal - 0.55991073) / 0.17883277) + 0.28466892) / 12
            light = HLG_PEAK * np.power(np.where(signal <= 0.5, signal**2 / 3, high), HLG_GAMMA)
        case _:
            return None
    relative = light / REFERENCE_WHITE
    # The curve of Reinhard et al. (2002) with the brightest light at white.
    linear = np.clip(relative * (1 + relative / BRIGHTEST**2) / (1 + relative) * 1.2, 0, 1)
    srgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * np.power(linear, 1 / 2.4) - 0.055)
    return np.asarray(np.rint(255 * srgb), np.uint8)


def colour_warnings(name: str, track: VideoTrack) -> list[str]:
    """Colours of a track that are neither those of sRGB nor converted to it."""
    if track.transfer in (PQ, HLG) or not track.transfer or track.transfer.startswith(STANDARD[1:]):
        return []
    return [f"the tones of {name} are {track.transfer}, which are not converted to those of sRGB"]


MOSAIC = "the grey images of {} look like a Bayer mosaic: convert them to colour, or depth is that of a dotted picture"
"""Warning on images of `is_mosaic`."""
BLOCK = 16
"""Side in pixels of blocks whose means are compared, and whose dots a mosaic has."""
DOTTED, UNLIKE = 4.0, 0.03
"""Difference of red and blue dots from green ones, as a multiple of that between green ones, and as a share of the
level: in grey pictures it is below 1 and .015, in mosaics of coloured scenes above 20 and .04."""


def is_mosaic(rgb: NDArray[np.uint8]) -> bool:
    """Whether a grey image [H, W, 3] has the dots of a colour filter: those on one diagonal of 2 x 2 are alike, and the
    others, of red and blue, are not."""
    rows, columns = (side // BLOCK for side in rgb.shape[:2])
    whole = rgb[: rows * BLOCK, : columns * BLOCK]
    if not whole.size or (whole[..., 0] != whole[..., 1]).any() or (whole[..., 0] != whole[..., 2]).any():
        return False
    dots = [np.ascontiguousarray(whole[row::2, column::2, 0], np.float32) for row in (0, 1) for column in (0, 1)]
    a, b, c, d = (cv2.resize(each, (columns, rows), interpolation=cv2.INTER_AREA) for each in dots)
    level = (a + b + c + d) / 4 + 1
    diagonals = sorted(((a, d), (b, c)), key=lambda pair: float(np.median(np.abs(pair[0] - pair[1]) / level)))
    (one, other), away = diagonals
    alike = float(np.median(np.abs(one - other) / level))
    apart = np.maximum(*(np.abs(dot - (one + other) / 2) for dot in away)) / level
    return float(np.median(apart)) > max(UNLIKE, DOTTED * alike)
