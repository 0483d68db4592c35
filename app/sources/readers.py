"""What can be opened: video files and folders of images. A reader steps through all frames of one."""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.capture import capture_frame_count, capture_rate, frame_times, open_capture
from stream_recon.app.sources.exif import camera_from_photographs, camera_of_video
from stream_recon.app.sources.frame_choice import check_frame_size
from stream_recon.configs.errors import ConfigError, InputError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".jp2", ".ppm", ".pgm", ".pnm"})
IMAGE_FOLDER_FPS = 30.0
"""Rate that a folder of images is taken to have unless told otherwise."""
PNG = b"\x89PNG\r\n\x1a\n"
"""What such a file begins with."""
MAX_IMAGE_BYTES = 2**31
MOST_ASKED = 100
"""Photographs of a folder that are asked for their camera."""

# Some damage is passed by trying again: the decoder hands out what it still holds, or finds a keyframe.
GRAB_ATTEMPTS = 4
# A container's length and the last timestamp may differ by this many frames without anything being lost.
END_TOLERANCE_FRAMES = 2.5


@dataclass(frozen=True)
class FrameRange:
    """Frames from here on may show another place than those before: nothing connects the two."""

    index: int
    """The first frame's number in its source."""
    timestamp: float
    """Its time in seconds."""
    reason: str


class Reader(ABC):
    """Steps through the frames of one source in order. ``grab`` moves on; ``retrieve`` is the costly part."""

    image_names: list[str] | None = None
    """Of a source of image files, by the frames' numbers; None: its frames have none."""
    calibration: Calibration | None = None
    """Of the camera, where the source itself says it."""
    live = False
    """Frames come by the clock and are dropped when nobody takes them."""

    def __init__(self, name: str, rate: float, frame_hint: int | None = None) -> None:
        self.name = name
        self.rate = rate
        """Nominal frames a second."""
        self.frame_hint = frame_hint
        self.damaged = 0
        """Frames that should be there and could not be decoded."""
        self.dropped = 0
        self.warnings: list[str] = []
        self.segments: list[FrameRange] = []
        """Where new ones began; not the first."""
        self.segment = 0
        """Number of the stretch that the frame of the last ``grab`` is of."""
        self.lost = False
        """A live source broke off and did not come back."""

    @abstractmethod
    def grab(self) -> tuple[int, float] | None:
        """Go to the next frame: its index and timestamp in seconds, or None at the end."""

    @abstractmethod
    def retrieve(self) -> NDArray[np.uint8] | None:
        """The frame of the last ``grab`` as RGB [H, W, 3], or None where it is unreadable."""

    def exif_camera(self, size: tuple[int, int]) -> Calibration:
        """The camera by what it wrote into its files, for frames of that width and height.

        Raises:
            InputError: it did not say.
            ConfigError: no such thing can be said of this kind of source.
        """
        raise ConfigError(f"--intrinsics exif is for photographs and films of phones, which {self.name} is not")

    @abstractmethod
    def close(self) -> None:
        """Let go of the file or device."""

    def seek(self, index: int) -> bool:
        """Before the first ``grab``: have it go to frame ``index``. False, and nothing done, where that frame cannot be
        told from its neighbours without reading all before it."""
        return False


class VideoReader(Reader):
    """A video with an end. Frames are decoded in order; where to begin is told by time, which the packets give
    exactly: by number seeking is wrong with a varying frame rate."""

    def __init__(self, capture: cv2.VideoCapture, name: str, path: Path | None = None) -> None:
        """``path``: of a file, in which `seek` may be possible.

        Raises:
            InputError: not one frame can be decoded, or the file is text that a decoder draws.
        """
        super().__init__(name, capture_rate(capture), capture_frame_count(capture))
        self._capture = capture
        self._path = path
        self._index = -1
        self._time = -1.0 / self.rate
        self._size: tuple[int, int] | None = None
        # FFmpeg renders plain text files as a terminal's screen.
        if int(capture.get(cv2.CAP_PROP_FOURCC)) == cv2.VideoWriter.fourcc(*"ansi"):
            raise InputError(f"{name} is a text file, not a video")
        self._first = self._step()
        if self._first is None:
            raise InputError(f"no frame of {name} can be decoded")

    def grab(self) -> tuple[int, float] | None:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return self._step()

    def seek(self, index: int) -> bool:
        assert self._first is not None, "frames were read already"
        times = frame_times(self._path, self.name) if self._path is not None else None
        if times is None or not index < len(times) or times[0] != 1000 * self._first[1]:
            return False
        assert self._path is not None, "it has times"
        capture = open_capture(self._path, self.name)
        capture.set(cv2.CAP_PROP_POS_MSEC, times[index])
        if not capture.grab() or capture.get(cv2.CAP_PROP_POS_MSEC) != times[index]:
            capture.release()
            return False
        self._capture.release()
        self._capture, self._index, self._time = capture, index, times[index] / 1000
        self._first = self._index, self._time
        return True

    def retrieve(self) -> NDArray[np.uint8] | None:
        ok, bgr = self._capture.retrieve()
        if not ok:
            self.damaged += 1
            return None
        size = (bgr.shape[1], bgr.shape[0])
        self._size = self._size or size
        if size != self._size:
            raise InputError(
                f"{self.name} changes from {self._size[0]}x{self._size[1]} to {size[0]}x{size[1]} "
                f"at {self._time:.2f} s: use --end {self._time:.2f} or --start {self._time:.2f}"
            )
        rgb: NDArray[np.uint8] = cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
        return rgb

    def exif_camera(self, size: tuple[int, int]) -> Calibration:
        if self._path is None:
            return super().exif_camera(size)
        return camera_of_video(self._path, size)

    def close(self) -> None:
        self._capture.release()

    def _step(self) -> tuple[int, float] | None:
        for attempt in range(GRAB_ATTEMPTS):
            if self._capture.grab():
                before, self._time = self._time, self._timestamp()
                self._index += 1
                if attempt and (lost := round((self._time - before) * self.rate) - 1) > 0:
                    self._report(lost, f"{self.name} is damaged at {before:.2f} s: {lost} frames are missing")
                return self._index, self._time
            if not self._missing():
                return None
        lost = self._missing()
        if lost and self._index >= 0:
            end = self._time + 1 / self.rate
            self._report(
                lost,
                f"{self.name} breaks off at {end:.2f} s of {end + lost / self.rate:.2f} s "
                f"(after frame {self._index}): what was decoded before is used",
            )
        return None

    def _missing(self) -> int:
        """Frames between here and the container's end; 0 where this is the end or the container does not say.

        The count alone is no proof: for a varying rate some containers give length times the highest rate.
        The length in seconds decides.
        """
        if self.frame_hint is None or self._index + 1 >= self.frame_hint:
            return 0
        short = self.frame_hint - (self._time * self.rate + 1)
        return round(short) if short > END_TOLERANCE_FRAMES else 0

    def _timestamp(self) -> float:
        # Containers without timestamps report 0 for ever; time always moves on here.
        time = float(self._capture.get(cv2.CAP_PROP_POS_MSEC)) / 1000
        return time if time > self._time else self._time + 1 / self.rate

    def _report(self, lost: int, warning: str) -> None:
        self.damaged += lost
        self.warnings.append(warning)


class ImageReader(Reader):
    """Image files as frames. Unreadable ones are left out and counted."""

    def __init__(self, paths: list[Path], name: str, fps: float | None) -> None:
        assert paths, "a folder without images is refused before"
        super().__init__(name, fps or IMAGE_FOLDER_FPS, len(paths))
        self._paths = paths
        self.image_names = [path.name for path in paths]
        self._index = -1
        self._first: tuple[str, tuple[int, int]] | None = None

    def grab(self) -> tuple[int, float] | None:
        self._index += 1
        return (self._index, self._index / self.rate) if self._index < len(self._paths) else None

    def retrieve(self) -> NDArray[np.uint8] | None:
        path = self._paths[self._index]
        rgb = read_image(path)
        if rgb is None:
            self.damaged += 1
            self.warnings.append(f"{path.name} is not a readable image and was left out")
            return None
        size = (rgb.shape[1], rgb.shape[0])
        self._first = self._first or (path.name, size)
        check_frame_size(path.name, size, *self._first)
        return rgb

    def exif_camera(self, size: tuple[int, int]) -> Calibration:
        chosen = self._paths[:: -(-len(self._paths) // MOST_ASKED)]
        return camera_from_photographs(chosen, size, self.name)

    def close(self) -> None:
        self._paths = []


def read_image(path: Path) -> NDArray[np.uint8] | None:
    """An image file as 8-bit RGB [H, W, 3], or None where it is unreadable.

    Grey becomes three equal channels, alpha is dropped, 16-bit and float images map their full range
    (0..65535, 0..1) to 0..255, and the orientation noted by the camera is applied.
    """
    data = image_bytes(path)
    if data is None:
        return None
    try:
        bgr = cv2.imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    except cv2.error:
        return None
    if bgr is None:
        return None
    if bgr.dtype == np.uint16:
        bgr >>= 8
        bgr = bgr.astype(np.uint8)
    elif bgr.dtype != np.uint8:
        np.nan_to_num(bgr, copy=False)
        np.clip(bgr, 0, 1, out=bgr)
        bgr *= 255
        bgr = np.rint(bgr, out=bgr).astype(np.uint8)
    # In place, as all the above: a large image is there once.
    rgb: NDArray[np.uint8] = cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB, dst=bgr)
    return rgb


def read_depth_image(path: Path) -> NDArray[np.uint16] | None:
    """A 16-bit image of one channel as it is, [H, W]; None where it is something else or unreadable."""
    data = image_bytes(path)
    try:
        units = None if data is None else cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    except cv2.error:
        return None
    return units if units is not None and units.dtype == np.uint16 and units.ndim == 2 else None


def image_bytes(path: Path) -> NDArray[np.uint8] | None:
    """The content of an image file; None where it cannot be read, is empty, no plain file, or too long for an image."""
    try:
        # A pipe would keep its reader waiting, and a device may never end.
        if not path.is_file() or not 0 < path.stat().st_size <= MAX_IMAGE_BYTES:
            return None
        data = np.fromfile(path, np.uint8)
    except (OSError, ValueError):  # such as a name with a zero byte
        return None
    return None if breaks_off(data) else data


def breaks_off(data: NDArray[np.uint8]) -> bool:
    """Whether a chunk of a PNG says that it is longer than the file: OpenCV asks for that much memory, up to 4 GB,
    before it finds out."""
    if data[: len(PNG)].tobytes() != PNG:
        return False
    at, kind = len(PNG), b""
    while at + 8 <= len(data) and kind != b"IEND":
        kind = data[at + 4 : at + 8].tobytes()
        at += 12 + int.from_bytes(data[at : at + 4].tobytes(), "big")
    return at > len(data)


def list_images(folder: Path) -> list[Path]:
    """Image files right in ``folder``, in natural order, without hidden ones."""
    paths = [p for p in folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES and not p.name.startswith(".")]
    return sorted((p for p in paths if p.is_file()), key=lambda p: natural_key(p.name))


def natural_key(name: str) -> tuple[list[str | tuple[int, str]], str]:
    """Sort key under which 2 comes before 10: runs of digits count as numbers, of any length."""
    parts: list[str | tuple[int, str]] = []
    for number, part in enumerate(re.split(r"([0-9]+)", name.casefold())):
        digits = part.lstrip("0")
        parts.append((len(digits), digits) if number % 2 else part)
    return parts, name
