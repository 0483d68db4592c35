"""What packets of a video state that OpenCV and MediaInfo do not tell: changes of size, and two views in a picture."""

from io import BytesIO
from pathlib import Path

import cv2

from stream_recon.app.sources.capture import open_capture
from stream_recon.app.sources.containers import media_tracks
from stream_recon.app.sources.panorama import LAYOUTS, refusal
from stream_recon.configs.errors import InputError

MAX_HEAD_BYTES = 4096
"""Bytes of a packet that are searched: parameter sets stand before the picture."""
H264, HEVC = ("h264", "avc1", "avc3", "x264"), ("hevc", "hvc1", "hev1", "h265")
CODECS = (
    *(*H264, *HEVC, "mpg1", "mpg2", "mp2v", "m2v1", "mpeg"),
    *("mp4v", "fmp4", "xvid", "divx", "mjpg", "jpeg", "vp80", "vp90"),
)
"""Codes of codecs whose packets are understood."""
Size = tuple[int, int]


class SizeWatch:
    """Reads the packets of a file alongside its decoder, and tells the size of the pictures."""

    def __init__(self, path: Path, name: str) -> None:
        """Raises InputError: its pictures are two views each."""
        self._name = name
        self._capture: cv2.VideoCapture | None = None
        self._packet = -1
        self.size: Size | None = None
        """Width and height as stored of the pictures at the packet read last; None where it is not known."""
        self.first: Size | None = None
        """The same at the first packet."""
        try:
            capture = open_capture(path, name)
        except InputError:
            return
        fourcc = int(capture.get(cv2.CAP_PROP_FOURCC))
        self._codec = fourcc.to_bytes(4, "little").decode("latin-1").lower() if fourcc > 0 else ""
        if self._codec not in CODECS or not capture.set(cv2.CAP_PROP_FORMAT, -1):
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
                    if self._packet == 0 and (layout := packed_views(self._codec, head)):
                        self.close()
                        raise InputError(refusal(self._name, layout))

    def close(self) -> None:
        if self._capture is not None:
            self._capture.release()
            self._capture = None


def packed_views(code: str, data: bytes) -> str:
    """Layout of two views in a picture by a packet's message on frame packing; empty without one.

    ITU-T H.264, D.2.26, and H.265; encoders put it into a unit of its own.
    """
    _, mark, message = data.partition(b"\0\0\1\x4e\1\x2d" if code in HEVC else b"\0\0\1\6\x2d")
    bits = "".join(f"{byte:08b}" for byte in message[1:13])
    at = 2 * bits.find("1") + 1  # after its own number, by Exp-Golomb
    if not mark or code not in HEVC + H264 or bits[at : at + 1] != "0" or len(bits) < at + 8:
        return ""
    layout = int(bits[at + 1 : at + 8], 2)
    return "" if layout == 6 else LAYOUTS[{3: 2, 4: 1}.get(layout, 3)]


def picture_size(code: str, data: bytes) -> Size | None:
    """Width and height in a packet with a keyframe; None where it does not state them, or is damaged.

    ``code``: the codec's, in lower case.
    """
    if code == "vp80":
        is_key = len(data) > 9 and not data[0] & 1 and data[3:6] == b"\x9d\x01\x2a"
        size = tuple(int.from_bytes(data[at : at + 2], "little") & 0x3FFF for at in (6, 8)) if is_key else (0, 0)
    elif code == "vp90":
        size = _vp9(data)
    else:
        tracks = [track for track in media_tracks(BytesIO(data)) if track.track_type in ("Video", "Image")]
        size = (int(tracks[0].width or 0), int(tracks[0].height or 0)) if tracks else (0, 0)
    return (size[0], size[1]) if min(size) > 0 and max(size) < 1 << 16 else None


def _vp9(data: bytes) -> Size:
    """Of the uncompressed header of a keyframe (VP9 bitstream specification, 6.2); zeros in others."""
    bits = f"{int.from_bytes(data[:16].ljust(16, bytes(1)), 'big'):0128b}"
    profile = int(bits[3] + bits[2], 2)
    at = 5 if profile == 3 else 4
    if bits[:2] != "10" or bits[at : at + 2] != "00" or int(bits[at + 4 : at + 28], 2) != 0x498342:
        return 0, 0
    at += 29 if profile >= 2 else 28
    is_rgb = bits[at : at + 3] == "111"
    at += 3 + (not is_rgb) + (profile in (1, 3)) * (1 if is_rgb else 3)
    return int(bits[at : at + 16], 2) + 1, int(bits[at + 16 : at + 32], 2) + 1
