"""The depth in a depth file brought into another unit in place: nothing else is unpacked, and nothing packed again."""

import io
import struct
import zipfile
import zlib

import numpy as np

from stream_recon.app.output.depth import FLOAT16_MAX

MEMBER = "depth.npy"
HALVES = b"'descr': '<f2'"

LOCAL_CHECKSUM = 14
"""Where in the header before a zip's member its CRC-32 is."""
LOCAL_LENGTHS = struct.Struct("<26xHH")
"""At the end of that header: bytes of the name and of the extra field between it and the member."""
CENTRAL_SIGN = b"PK\x01\x02"
CENTRAL_CHECKSUM = 16
CENTRAL_SIZE = 46
"""Bytes of an entry in the list at a zip's end, before the name."""
ARRAY_LENGTH = struct.Struct("<8xH")
"""In front of an array: bytes of its description."""


class DepthScale:
    """Multiplies the depth of files as `write_depth` leaves them; products are cut to the range of float16."""

    def __init__(self, scale: float) -> None:
        # There are 65,536 halves: looking a product up takes a fifth of the time of working it out.
        halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
        with np.errstate(invalid="ignore"):
            products = np.clip(halves.astype(np.float32) * np.float32(scale), 0, FLOAT16_MAX)
            self._products = products.astype(np.float16).view(np.uint16)

    def apply(self, content: bytearray) -> None:
        """Scale the depth within the bytes of a file.

        Raises:
            ValueError, KeyError, struct.error, zipfile.BadZipFile: they are damaged, or written by another program.
        """
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            member = archive.getinfo(MEMBER)
        local = member.header_offset
        begin = local + LOCAL_LENGTHS.size + sum(LOCAL_LENGTHS.unpack_from(content, local))
        array = memoryview(content)[begin : begin + member.file_size]
        if member.compress_type != zipfile.ZIP_STORED or zlib.crc32(array) != member.CRC:
            raise ValueError(f"{MEMBER} is compressed or damaged")
        data = ARRAY_LENGTH.size + ARRAY_LENGTH.unpack_from(array)[0]
        if HALVES not in bytes(array[:data]):
            raise ValueError(f"{MEMBER} is not float16")
        depth = np.frombuffer(array[data:], np.uint16)
        depth[:] = np.take(self._products, depth)
        # The list of members comes last, so the name's last place is there.
        central = content.rindex(MEMBER.encode()) - CENTRAL_SIZE
        if not content.startswith(CENTRAL_SIGN, central):
            raise ValueError("the list of members is damaged")
        checksum = zlib.crc32(array)
        for place in (local + LOCAL_CHECKSUM, central + CENTRAL_CHECKSUM):
            struct.pack_into("<I", content, place, checksum)
