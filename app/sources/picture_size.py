"""Size of the pictures in a video stream by its packets, since OpenCV resizes all frames to the size of the first."""

from pathlib import Path

import cv2

from stream_recon.app.sources.capture import open_capture
from stream_recon.app.sources.stream_heads import Size, has_fields, picture_size
from stream_recon.configs.errors import InputError

MAX_HEAD_BYTES = 4096
"""Bytes of a packet that are searched: parameter sets stand before the picture."""


class SizeWatch:
    """Reads the packets of a file alongside its decoder, and tells the size of the pictures."""

    def __init__(self, path: Path, name: str) -> None:
        self._capture: cv2.VideoCapture | None = None
        self._packet = -1
        self.size: Size | None = None
        """Width and height as stored of the pictures at the packet read last; None where it is not known."""
        self.first: Size | None = None
        """The same at the first packet."""
        self.interlaced = False
        """Whether the first packet says that the video is interlaced."""
        try:
            capture = open_capture(path, name)
        except InputError:
            return
        self._codec = codec_of(int(capture.get(cv2.CAP_PROP_FOURCC)))
        if not self._codec or not capture.set(cv2.CAP_PROP_FORMAT, -1):
            capture.release()
            return
        self._capture = capture
        self.advance(0)
        self.first = self.size

    def advance(self, packet: int) -> None:
        """Read up to the packet of that number, in decoding order."""
        while self._capture is not None and self._packet < packet:
            if not self._capture.grab():
                self.close()
                return
            self._packet += 1
            if self._packet == 0 or self._capture.get(cv2.CAP_PROP_LRF_HAS_KEY_FRAME):
                ok, data = self._capture.retrieve()
                if ok and data is not None:
                    head = data.ravel()[:MAX_HEAD_BYTES].tobytes()
                    self.size = picture_size(self._codec, head) or self.size
                    self.interlaced = self.interlaced or (self._packet == 0 and has_fields(self._codec, head))

    def close(self) -> None:
        if self._capture is not None:
            self._capture.release()
            self._capture = None


def codec_of(fourcc: int) -> str:
    """Name of a codec whose packets are understood, by its code; empty for others."""
    code = fourcc.to_bytes(4, "little", signed=False).decode("latin-1").lower() if fourcc > 0 else ""
    names = {
        "h264": ("h264", "avc1", "avc3", "x264"),
        "hevc": ("hevc", "hvc1", "hev1", "h265"),
        "mpeg2": ("mpg1", "mpg2", "mp2v", "m2v1", "mpeg"),
        "mpeg4": ("mp4v", "fmp4", "xvid", "divx"),
        "vp8": ("vp80",),
        "vp9": ("vp90",),
        "mjpeg": ("mjpg", "jpeg"),
    }
    return next((name for name, codes in names.items() if code in codes), "")
