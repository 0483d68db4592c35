"""Tone mapping of HDR video, and the transfer function that a film's container or its stream states."""

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.sources.capture import open_capture
from stream_recon.app.sources.matroska import film_tracks
from stream_recon.app.sources.picture_size import MAX_HEAD_BYTES, codec_of
from stream_recon.app.sources.stream_heads import transfer_of
from stream_recon.configs.errors import InputError

PQ, HLG = 16, 18
"""Numbers of the transfer functions of HDR video in ITU-T H.273: SMPTE ST 2084, and hybrid log-gamma."""
REFERENCE_WHITE, BRIGHTEST = 203.0, 5.0
"""Reference white in cd/m2 (ITU-R BT.2408), and light that becomes white, as a multiple of it."""
HLG_PEAK, HLG_GAMMA = 1000.0, 1.2
"""Brightest light of a display for HLG in cd/m2, and its system gamma (ITU-R BT.2100)."""


def tone_curve(path: Path, name: str) -> NDArray[np.uint8] | None:
    """Table [256] that maps the tones of an HDR video to those of sRGB; None for other videos.

    Reference white becomes 80 %, and brighter light is compressed.
    """
    signal = np.arange(256) / 255
    match stated_transfer(path, name):
        case 16:
            root = np.power(signal, 1 / 78.84375)
            light = 10_000 * np.power(
                np.maximum(root - 0.8359375, 0) / (18.8515625 - 18.6875 * root), 1 / 0.1593017578125
            )
        case 18:
            high = (np.exp((signal - 0.55991073) / 0.17883277) + 0.28466892) / 12
            light = HLG_PEAK * np.power(np.where(signal <= 0.5, signal**2 / 3, high), HLG_GAMMA)
        case _:
            return None
    relative = light / REFERENCE_WHITE
    # The curve of Reinhard et al. (2002) with the brightest light at white.
    linear = np.clip(relative * (1 + relative / BRIGHTEST**2) / (1 + relative) * 1.2, 0, 1)
    srgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * np.power(linear, 1 / 2.4) - 0.055)
    return np.asarray(np.rint(255 * srgb), np.uint8)


def stated_transfer(path: Path, name: str) -> int:
    """Transfer characteristics (ITU-T H.273) of a film's first video track; 0 where nothing states them."""
    for track in film_tracks(path)[:1]:
        if track.transfer not in (0, 2):
            return track.transfer
    try:
        capture = open_capture(path, name)
    except InputError:
        return 0
    try:
        codec = codec_of(int(capture.get(cv2.CAP_PROP_FOURCC)))
        if codec not in ("h264", "hevc") or not capture.set(cv2.CAP_PROP_FORMAT, -1) or not capture.grab():
            return 0
        ok, data = capture.retrieve()
        return transfer_of(codec, data.ravel()[:MAX_HEAD_BYTES].tobytes()) if ok and data is not None else 0
    finally:
        capture.release()
