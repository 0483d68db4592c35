"""Interlaced video: pictures of two fields, whose lines were taken at different times."""

import zlib
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.sources.capture import open_capture
from stream_recon.configs.errors import InputError

COLUMN_STEP = 4
"""Every fourth column of pixels is looked at, since combs are as wide as what moves."""
LOOKED_AT = 480, 960
"""Lines and columns in the middle of an image that are looked at, since every frame is."""
MOVING_LEVELS = 12
"""Difference of neighbouring lines in grey levels from which a pixel counts: noise is less."""
MOVING_SHARE = 0.004
"""Share of pixels that must differ so much: a still picture has no combs."""
COMBED_RATIO = 1.25
"""Neighbouring lines of a comb differ by this much more than lines of one field do; those of a picture differ less."""


ONE_WAY = 4.0
"""Combs are so many times as frequent along lines as across: 6 to 30 times in combed frames, twice in others."""
SAME_FRAMES = 8
"""Equal frames at the start of a film after which its packets are looked at."""
REPEATED_BYTES = 200
"""Size up to which a packet may say that its picture is the one before."""


class DecodingCheck:
    """Finds films of which OpenCV decodes nothing without an error: since version 5 it does not convert interlaced
    pictures, and gives the content of its memory."""

    def __init__(self, path: Path, name: str, *, interlaced: bool) -> None:
        """``interlaced``: what the file says. Raises InputError: the first frames are not decoded."""
        self._path, self._name, self._interlaced = path, name, interlaced
        self._digest: int | None = None
        self._same = 0
        self._is_settled = False
        if interlaced:
            capture = open_capture(path, name)
            for index in range(3):
                ok, bgr = capture.read()
                if ok:
                    self.add(index, bgr)
            capture.release()
            self._digest = None

    def add(self, index: int, bgr: NDArray[np.uint8]) -> None:
        """Take the decoded frame ``index``. Raises InputError."""
        if self._is_settled:
            return
        digest = zlib.crc32(np.ascontiguousarray(bgr).data)
        same, first, self._digest = digest == self._digest, self._digest is None, digest
        if not same:
            self._same = 0
            # Where the file says nothing of fields, only a film that begins with equal frames is suspected.
            self._is_settled = not first and not self._interlaced
            return
        self._same += 1
        if self._same >= (1 if self._interlaced else SAME_FRAMES) and self._packets_differ(index):
            what = "is interlaced, which OpenCV cannot decode here" if self._interlaced else "decodes to one picture"
            raise InputError(
                f"{self._name} {what}: convert it first, for example with ffmpeg -i {self._name} -vf bwdif film.mp4"
            )

    def _packets_differ(self, index: int) -> bool:
        """Whether all packets up to a frame hold more than a repetition of the one before."""
        capture = open_capture(self._path, self._name)
        try:
            if not capture.set(cv2.CAP_PROP_FORMAT, -1):
                return False
            sizes: list[int] = []
            while len(sizes) <= index and capture.grab():
                ok, data = capture.retrieve()
                sizes.append(data.size if ok and data is not None else 0)
        finally:
            capture.release()
        return len(sizes) > 1 and min(sizes[-2:]) > REPEATED_BYTES


def is_combed(lines: NDArray[np.uint8]) -> bool:
    """Whether moving edges of an image [H, W, 3] as stored are combs, as in a picture of two fields."""
    if min(lines.shape[:2]) < 8:
        return False
    top, left = (max(0, (side - most) // 2) for side, most in zip(lines.shape, LOOKED_AT, strict=False))
    lines = lines[top : top + LOOKED_AT[0], left : left + LOOKED_AT[1]]
    share, ratio = _combs(lines[:, ::COLUMN_STEP, 1])
    if share < MOVING_SHARE or ratio < COMBED_RATIO:
        return False
    # The dots of a dithered picture alternate in both directions.
    return share > ONE_WAY * _combs(lines[::COLUMN_STEP, :, 1].T)[0]


def _combs(grey: NDArray[np.uint8]) -> tuple[float, float]:
    """Share of pixels that differ from both neighbouring lines in one direction, and the ratio of the differences of
    neighbouring lines at edges to those of lines of one field."""
    lines = np.ascontiguousarray(grey)
    line, above, below = lines[1:-1], lines[:-2], lines[2:]
    to_above, of_field = cv2.absdiff(line, above), cv2.absdiff(below, above)
    least = cv2.min(to_above, cv2.absdiff(line, below))
    combed = ((line > above) == (line > below)) & (least > MOVING_LEVELS)
    edge = (cv2.max(to_above, of_field) > MOVING_LEVELS).view(np.uint8)
    differences, of_fields = (cv2.sumElems(cv2.multiply(values, edge))[0] for values in (to_above, of_field))
    return float(np.count_nonzero(combed)) / combed.size, differences / max(1.0, of_fields)


def deinterlaced(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The first field of an image [H, W, 3] at full size; lines between are the means of their neighbours."""
    lines = image.copy()
    above, below = np.ascontiguousarray(lines[0:-2:2]), np.ascontiguousarray(lines[2::2])
    lines[1:-1:2] = cv2.addWeighted(above, 0.5, below, 0.5, 0)
    if len(lines) % 2 == 0:
        lines[-1] = lines[-2]
    return lines
