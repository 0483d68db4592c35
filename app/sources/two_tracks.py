"""Films of a GoPro MAX (`.360`), whose two video tracks have three faces of an equi-angular cube map each."""

from io import BufferedReader, FileIO
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.sources.capture import open_capture
from stream_recon.app.sources.containers import film, whole_file
from stream_recon.app.sources.readers import VideoReader
from stream_recon.configs.errors import InputError

SUFFIX = ".360"
OVERLAPS = {(4096, 1344): 64, (2272, 736): 32}
"""Columns that both lenses show, in the middle of the first and last face of a track of this width and height."""


class TwoTrackReader(VideoReader):
    """Frames of both tracks, one above the other, without what is there twice."""

    def __init__(self, path: Path) -> None:
        """Raises InputError: these are not the tracks of a GoPro MAX, or cannot be read."""
        sizes = [track.size for track in film(path).tracks]
        if len(sizes) != 2 or sizes[0] != sizes[1] or sizes[0] not in OVERLAPS:
            raise InputError(f"{path.name} has not the two video tracks of a GoPro MAX")
        self._overlap = OVERLAPS[sizes[0]]
        self._file = _SecondTrack(path)
        self._second = open_capture(self._file, path.name)
        super().__init__(open_capture(path, path.name), path.name, path)
        self._orientation = 1  # faces are those of frames as stored

    def retrieve(self) -> NDArray[np.uint8] | None:
        first, (ok, second) = super().retrieve(), self._second.retrieve()
        if first is None or not ok:
            return None
        return np.vstack([_faces(track, self._overlap) for track in (first, cv2.cvtColor(second, cv2.COLOR_BGR2RGB))])

    def close(self) -> None:
        super().close()
        self._second.release()
        self._file.close()

    def _step(self) -> tuple[int, float] | None:
        step = super()._step()
        if step is None or not self._second.grab():
            return None
        if abs(self._second.get(cv2.CAP_PROP_POS_MSEC) / 1000 - step[1]) > 0.5 / self.rate:
            raise InputError(f"the two video tracks of {self.name} are apart at {step[1]:.2f} s: one is damaged")
        return step


def _faces(track: NDArray[np.uint8], overlap: int) -> NDArray[np.uint8]:
    """Three square faces of 90 degrees in a row, of a track's frame."""
    side, outer = len(track), (track.shape[1] - len(track)) // 2
    half = (outer - overlap) // 2
    first, middle, last = np.split(track, [outer, outer + side], axis=1)
    whole = (np.hstack([face[:, :half], face[:, -half:]]) for face in (first, last))
    first, last = (cv2.resize(face, (side, side), interpolation=cv2.INTER_CUBIC) for face in whole)
    return np.hstack([first, middle, last])


class _SecondTrack(BufferedReader):
    """A file with its first video track called free space, since OpenCV reads the first one."""

    def __init__(self, path: Path) -> None:
        super().__init__(FileIO(path))
        self._name_at = -4
        tracks = whole_file(self).inside(b"moov", b"trak")
        self._name_at = next(box.begin for box in tracks if box.table(b"mdia", b"hdlr")[8:12] == b"vide") - 4
        self.seek(0)

    def read(self, size: int | None = -1) -> bytes:
        begin = self.tell()
        data = bytearray(super().read(size))
        for at, letter in enumerate(b"free", self._name_at - begin):
            if 0 <= at < len(data):
                data[at] = letter
        return bytes(data)
