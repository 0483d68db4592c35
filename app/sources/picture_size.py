"""Size of the pictures in a video stream by its packets, since OpenCV resizes all frames to the size of the first.

H.264 and H.265 (sequence parameter sets of Annex B), MPEG-1 and 2, MPEG-4 part 2, VP8, VP9, Motion JPEG.
"""

from collections.abc import Iterator
from pathlib import Path

import cv2

from stream_recon.app.sources.capture import open_capture
from stream_recon.configs.errors import InputError

LARGEST_HEAD = 4096
"""Bytes of a packet that are searched: parameter sets stand before the picture."""
Size = tuple[int, int]


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
                    head = data.ravel()[:LARGEST_HEAD].tobytes()
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


def picture_size(codec: str, data: bytes) -> Size | None:
    """Width and height in a packet with a keyframe; None where it does not state them, or is damaged."""
    found: Iterator[Size | None]
    try:
        match codec:
            case "h264":
                found = (_h264(_unescaped(unit))[0] for unit in _units(data) if unit and unit[0] & 31 == 7)
            case "hevc":
                found = (_hevc(_unescaped(unit)) for unit in _units(data) if unit and unit[0] >> 1 & 63 == 33)
            case "mpeg2":
                found = (_mpeg2(unit) for unit in _units(data) if unit[:1] == b"\xb3")
            case "mpeg4":
                found = (_mpeg4(unit[1:]) for unit in _units(data) if unit and 0x20 <= unit[0] <= 0x2F)
            case "vp8":
                found = iter([_vp8(data)])
            case "vp9":
                found = iter([_vp9(data)])
            case "mjpeg":
                found = iter([_mjpeg(data)])
            case _:
                return None
        size = next(found, None)
    except (IndexError, ValueError):
        return None
    return size if size is not None and min(size) > 0 and max(size) < 1 << 16 else None


class _Bits:
    """Bits of a byte string, the most significant first; raises IndexError at its end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def read(self, count: int) -> int:
        value = 0
        for _ in range(count):
            value = value << 1 | (self._data[self._at >> 3] >> (7 - (self._at & 7)) & 1)
            self._at += 1
        return value

    def exp_golomb(self) -> int:
        zeros = 0
        while not self.read(1):
            zeros += 1
            if zeros > 32:
                raise ValueError("not an exp-Golomb code")
        return (1 << zeros) - 1 + self.read(zeros)

    def signed(self) -> int:
        value = self.exp_golomb()
        return (value + 1) // 2 if value & 1 else -(value // 2)


def _units(data: bytes) -> Iterator[bytes]:
    """Parts between start codes (00 00 01)."""
    at = data.find(b"\0\0\1")
    while at >= 0:
        after = data.find(b"\0\0\1", at + 3)
        yield data[at + 3 : after if after >= 0 else len(data)]
        at = after


def _unescaped(unit: bytes) -> bytes:
    return unit.replace(b"\0\0\3", b"\0\0")


def has_fields(codec: str, data: bytes) -> bool:
    """Whether a packet says that its pictures may be two fields of different times: interlaced video."""
    try:
        if codec == "h264":
            return any(not _h264(_unescaped(unit))[1] for unit in _units(data) if unit and unit[0] & 31 == 7)
        if codec == "mpeg2":
            # The bit progressive_sequence of the sequence extension.
            return any(unit[0] == 0xB5 and unit[1] >> 4 == 1 and not unit[2] & 8 for unit in _units(data) if unit)
    except (IndexError, ValueError):
        pass
    return False


def _h264(unit: bytes) -> tuple[Size, bool]:
    """Size, and whether all pictures are frames, in a sequence parameter set (ITU-T H.264, 7.3.2.1.1)."""
    bits = _Bits(unit[1:])
    profile = bits.read(8)
    bits.read(16)
    bits.exp_golomb()
    chroma, separate = 1, 0
    if profile in (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135):
        chroma = bits.exp_golomb()
        separate = bits.read(1) if chroma == 3 else 0
        bits.exp_golomb()
        bits.exp_golomb()
        bits.read(1)
        if bits.read(1):
            for number in range(8 if chroma != 3 else 12):
                if bits.read(1):
                    _skip_scaling_list(bits, 16 if number < 6 else 64)
    bits.exp_golomb()
    order = bits.exp_golomb()
    if order == 0:
        bits.exp_golomb()
    elif order == 1:
        bits.read(1)
        bits.signed()
        bits.signed()
        for _ in range(bits.exp_golomb()):
            bits.signed()
    bits.exp_golomb()
    bits.read(1)
    width, height = 16 * (bits.exp_golomb() + 1), bits.exp_golomb() + 1
    frames_only = bits.read(1)
    height *= 16 * (2 - frames_only)
    if not frames_only:
        bits.read(1)
    bits.read(1)
    left, right, top, bottom = (bits.exp_golomb() for _ in range(4)) if bits.read(1) else (0, 0, 0, 0)
    sub_x = 2 if chroma in (1, 2) and not separate else 1
    sub_y = (2 if chroma == 1 and not separate else 1) * (2 - frames_only)
    return (width - sub_x * (left + right), height - sub_y * (top + bottom)), bool(frames_only)


def _skip_scaling_list(bits: _Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.signed()) % 256
        last = following or last


def _hevc(unit: bytes) -> Size:
    """Size in a sequence parameter set (ITU-T H.265, 7.3.2.2)."""
    bits = _Bits(unit[2:])
    bits.read(4)
    layers = bits.read(3)
    bits.read(1)
    bits.read(88)
    bits.read(8)
    present = [(bits.read(1), bits.read(1)) for _ in range(layers)]
    if layers:
        bits.read(2 * (8 - layers))
    for profile, level in present:
        bits.read(88 * profile)
        bits.read(8 * level)
    bits.exp_golomb()
    chroma = bits.exp_golomb()
    if chroma == 3:
        bits.read(1)
    width, height = bits.exp_golomb(), bits.exp_golomb()
    left, right, top, bottom = (bits.exp_golomb() for _ in range(4)) if bits.read(1) else (0, 0, 0, 0)
    sub_x, sub_y = 2 if chroma in (1, 2) else 1, 2 if chroma == 1 else 1
    return width - sub_x * (left + right), height - sub_y * (top + bottom)


def _mpeg2(unit: bytes) -> Size:
    number = int.from_bytes(unit[1:4], "big")
    return number >> 12, number & 0xFFF


def _mpeg4(unit: bytes) -> Size | None:
    """Size in a video object layer of rectangular shape (ISO 14496-2, 6.2.3)."""
    bits = _Bits(unit)
    bits.read(9)
    version = 1
    if bits.read(1):
        version = bits.read(4)
        bits.read(3)
    if bits.read(4) == 15:
        bits.read(16)
    if bits.read(1):
        bits.read(3)
        if bits.read(1):
            bits.read(79)
    shape = bits.read(2)
    if shape == 3 and version != 1:
        bits.read(4)
    bits.read(1)
    resolution = bits.read(16)
    bits.read(1)
    if bits.read(1):
        bits.read(max(1, (resolution - 1).bit_length()))
    if shape != 0:
        return None
    bits.read(1)
    width = bits.read(13)
    bits.read(1)
    return width, bits.read(13)


def _vp8(data: bytes) -> Size | None:
    if data[0] & 1 or data[3:6] != b"\x9d\x01\x2a":
        return None
    return int.from_bytes(data[6:8], "little") & 0x3FFF, int.from_bytes(data[8:10], "little") & 0x3FFF


def _vp9(data: bytes) -> Size | None:
    """Size in the uncompressed header of a keyframe (VP9 bitstream specification, 6.2)."""
    bits = _Bits(data)
    if bits.read(2) != 2:
        return None
    profile = bits.read(1) | bits.read(1) << 1
    if profile == 3:
        bits.read(1)
    if bits.read(1) or bits.read(1):
        return None
    bits.read(2)
    if bits.read(24) != 0x498342:
        return None
    if profile >= 2:
        bits.read(1)
    if bits.read(3) != 7:
        bits.read(1)
        if profile in (1, 3):
            bits.read(3)
    elif profile in (1, 3):
        bits.read(1)
    return bits.read(16) + 1, bits.read(16) + 1


def _mjpeg(data: bytes) -> Size | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        if 0xC0 <= data[at + 1] <= 0xCF and data[at + 1] not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None
