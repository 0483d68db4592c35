"""What packets of video state in their heads: size of the pictures, transfer function, interlacing.

H.264 and H.265 (sequence parameter sets of Annex B), MPEG-1 and 2, MPEG-4 part 2, VP8, VP9, Motion JPEG.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

Size = tuple[int, int]


@dataclass(frozen=True)
class StreamHead:
    """What the head of a picture or of a sequence of pictures states."""

    size: Size | None = None
    """Width and height; None where they are not stated."""
    has_fields: bool = False
    """Whether pictures may be two fields of different times: interlaced video."""
    transfer: int = 0
    """Transfer characteristics (ITU-T H.273); 0: not stated."""


def picture_size(codec: str, data: bytes) -> Size | None:
    """Width and height in a packet with a keyframe; None where it does not state them, or is damaged."""
    size = next((head.size for head in _heads(codec, data) if head.size is not None), None)
    return size if size is not None and min(size) > 0 and max(size) < 1 << 16 else None


def transfer_of(codec: str, data: bytes) -> int:
    """Transfer characteristics (ITU-T H.273) in a packet of H.264 or H.265; 0 where it does not state them."""
    return next((head.transfer for head in _heads(codec, data)), 0)


def has_fields(codec: str, data: bytes) -> bool:
    """Whether a packet says that its pictures may be two fields of different times: interlaced video."""
    return any(head.has_fields for head in _heads(codec, data))


def _heads(codec: str, data: bytes) -> Iterator[StreamHead]:
    """Heads in a packet, up to a damaged one; none of an unknown codec."""
    parse = _PARSERS.get(codec)
    if parse is None:
        return
    try:
        for unit in [data] if codec in _WITHOUT_START_CODES else _units(data):
            if unit and (head := parse(unit)) is not None:
                yield head
    except (IndexError, ValueError):
        return


class Bits:
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


def _h264(unit: bytes) -> StreamHead | None:
    """Of a sequence parameter set (ITU-T H.264, 7.3.2.1.1)."""
    if unit[0] & 31 != 7:
        return None
    bits = Bits(_unescaped(unit)[1:])
    profile = bits.read(8)
    bits.read(16)
    bits.exp_golomb()
    chroma, separate = _h264_chroma(bits) if profile in HIGH_PROFILES else (1, 0)
    bits.exp_golomb()
    _skip_picture_order(bits)
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
    size = (width - sub_x * (left + right), height - sub_y * (top + bottom))
    return StreamHead(size, not frames_only, _transfer(bits) if bits.read(1) else 0)


HIGH_PROFILES = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)
"""Profiles of H.264 whose parameter sets state a chroma format."""


def _h264_chroma(bits: Bits) -> tuple[int, int]:
    """Chroma format, and whether colour planes are separate; bit depths and scaling lists are passed."""
    chroma = bits.exp_golomb()
    separate = bits.read(1) if chroma == 3 else 0
    bits.exp_golomb()
    bits.exp_golomb()
    bits.read(1)
    if bits.read(1):
        for number in range(8 if chroma != 3 else 12):
            if bits.read(1):
                _skip_scaling_list(bits, 16 if number < 6 else 64)
    return chroma, separate


def _skip_picture_order(bits: Bits) -> None:
    order = bits.exp_golomb()
    if order == 0:
        bits.exp_golomb()
    elif order == 1:
        bits.read(1)
        bits.signed()
        bits.signed()
        for _ in range(bits.exp_golomb()):
            bits.signed()


def _transfer(bits: Bits) -> int:
    """Transfer characteristics in the beginning of the usability information, which H.264 and H.265 share."""
    if bits.read(1) and bits.read(8) == 255:
        bits.read(32)
    if bits.read(1):
        bits.read(1)
    if not bits.read(1):
        return 0
    bits.read(4)
    if not bits.read(1):
        return 0
    bits.read(8)
    return bits.read(8)


def _skip_scaling_list(bits: Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.signed()) % 256
        last = following or last


def _hevc(unit: bytes) -> StreamHead | None:
    """Of a sequence parameter set (ITU-T H.265, 7.3.2.2)."""
    if unit[0] >> 1 & 63 != 33:
        return None
    bits = Bits(_unescaped(unit)[2:])
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
    size = width - sub_x * (left + right), height - sub_y * (top + bottom)
    try:
        return StreamHead(size, transfer=_hevc_transfer(bits, layers))
    except (IndexError, ValueError):
        return StreamHead(size)


def _hevc_transfer(bits: Bits, layers: int) -> int:
    """Transfer characteristics after the size in a sequence parameter set of H.265."""
    bits.exp_golomb()
    bits.exp_golomb()
    order_bits = bits.exp_golomb() + 4
    for _ in range(layers + 1 if bits.read(1) else 1):
        for _ in range(3):
            bits.exp_golomb()
    for _ in range(6):
        bits.exp_golomb()
    if bits.read(1) and bits.read(1):
        _skip_scaling_lists(bits)
    bits.read(2)
    if bits.read(1):
        bits.read(8)
        bits.exp_golomb()
        bits.exp_golomb()
        bits.read(1)
    _skip_reference_sets(bits)
    if bits.read(1):
        for _ in range(bits.exp_golomb()):
            bits.read(order_bits + 1)
    bits.read(2)
    return _transfer(bits) if bits.read(1) else 0


def _skip_scaling_lists(bits: Bits) -> None:
    for size in range(4):
        for _ in range(2 if size == 3 else 6):
            if not bits.read(1):
                bits.exp_golomb()
                continue
            if size > 1:
                bits.signed()
            for _ in range(min(64, 1 << (4 + 2 * size))):
                bits.signed()


def _skip_reference_sets(bits: Bits) -> None:
    pictures = 0
    for number in range(min(bits.exp_golomb(), 65)):
        if number and bits.read(1):
            bits.read(1)
            bits.exp_golomb()
            flags = [bits.read(1) or 2 * bits.read(1) for _ in range(pictures + 1)]
            pictures = sum(flag > 0 for flag in flags)
        else:
            pictures = bits.exp_golomb() + bits.exp_golomb()
            for _ in range(min(pictures, 64)):
                bits.exp_golomb()
                bits.read(1)


def _mpeg2(unit: bytes) -> StreamHead | None:
    """Of a sequence header (size) or its extension, which has the bit progressive_sequence."""
    if unit[0] == 0xB3:
        number = int.from_bytes(unit[1:4], "big")
        return StreamHead((number >> 12, number & 0xFFF))
    return StreamHead(has_fields=not unit[2] & 8) if unit[0] == 0xB5 and unit[1] >> 4 == 1 else None


def _mpeg4(unit: bytes) -> StreamHead | None:
    """Of a video object layer of rectangular shape (ISO 14496-2, 6.2.3)."""
    if not 0x20 <= unit[0] <= 0x2F:
        return None
    bits = Bits(unit[1:])
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
    height = bits.read(13)
    bits.read(1)
    return StreamHead((width, height), bool(bits.read(1)))


def _vp8(data: bytes) -> StreamHead | None:
    if data[0] & 1 or data[3:6] != b"\x9d\x01\x2a":
        return None
    return StreamHead((int.from_bytes(data[6:8], "little") & 0x3FFF, int.from_bytes(data[8:10], "little") & 0x3FFF))


def _vp9(data: bytes) -> StreamHead | None:
    """Of the uncompressed header of a keyframe (VP9 bitstream specification, 6.2)."""
    bits = Bits(data)
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
    return StreamHead((bits.read(16) + 1, bits.read(16) + 1))


def _mjpeg(data: bytes) -> StreamHead | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        if 0xC0 <= data[at + 1] <= 0xCF and data[at + 1] not in (0xC4, 0xC8, 0xCC):
            height, width = (int.from_bytes(data[first : first + 2], "big") for first in (at + 5, at + 7))
            return StreamHead((width, height))
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


_PARSERS: dict[str, Callable[[bytes], StreamHead | None]] = {
    "h264": _h264,
    "hevc": _hevc,
    "mpeg2": _mpeg2,
    "mpeg4": _mpeg4,
    "vp8": _vp8,
    "vp9": _vp9,
    "mjpeg": _mjpeg,
}
_WITHOUT_START_CODES = ("vp8", "vp9", "mjpeg")
