"""Readers of video files and folders of images, which step through all frames."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.rig import Rig
from stream_recon.app.sources.calibration import TURNED_BY_90, Calibration
from stream_recon.app.sources.capture import (
    PixelShape,
    capture_frame_count,
    capture_rate,
    frame_times,
    open_capture,
    packet_times,
    resized,
    shown_frame_count,
)
from stream_recon.app.sources.colour import colour_warnings, tone_curve
from stream_recon.app.sources.containers import VideoTrack, film
from stream_recon.app.sources.exif import camera_from_photographs, camera_of_video, read_exif
from stream_recon.app.sources.frame_choice import check_frame_size
from stream_recon.app.sources.image_decoding import EXIF_SAMPLES, oriented, read_with_opacity, used_bits
from stream_recon.app.sources.interlacing import DecodingCheck, deinterlaced, is_combed
from stream_recon.app.sources.picture_size import SizeWatch
from stream_recon.configs.errors import ConfigError, InputError

if TYPE_CHECKING:
    from stream_recon.app.sources.scan_folder import ScanFeedback

IMAGE_FOLDER_FPS = 30.0
"""Frames per second assumed for a folder of images; most videos they come from have it."""
COUNTERCLOCKWISE = 8
"""EXIF orientation of an image to be turned by 90 degrees counterclockwise."""
GRAB_ATTEMPTS = 4
"""Attempts to pass damage: the decoder still holds frames, or finds the next keyframe."""
END_TOLERANCE_FRAMES = 2.5
"""Frames by which a container's length and the last timestamp differ in undamaged files."""


@dataclass(frozen=True)
class FrameRange:
    """Start of a segment: frames from here on are not known to show the same place as those before."""

    index: int
    """Number of the segment's first frame in its source."""
    timestamp: float
    """Time of that frame in seconds."""
    reason: str
    """Discontinuity before it, for the user."""


class Reader(ABC):
    """Steps through the frames of one source in order: ``grab`` moves on, ``retrieve`` decodes and converts."""

    image_names: list[str] | None = None
    """File names by frame number; None: the frames are not files."""
    calibration: Calibration | None = None
    """Camera that the source itself describes; None if it does not."""
    origin_ns: int | None = None
    """Time of second 0 in nanoseconds since 1970, by the clock that stamped the images; None if they have no stamps."""
    stored_size: tuple[int, int] | None = None
    """Width and height of the last frame before its pixels were made square; None: they were."""
    transparent: NDArray[np.bool_] | None = None
    """Pixels [H, W] of the last frame that its file masks, such as transparent ones, whose colours show nothing."""
    has_topics = False
    """Whether it is a recording of topics, of which one is chosen."""
    live = False
    """Whether frames arrive in real time and are dropped if they are not taken in time."""
    feedback: "ScanFeedback | None" = None
    """Where a run reports to the person who films; None: nobody listens."""

    rig: Rig | None = None
    """Views that are read one after the other, each a segment; None: the frames are of one camera."""

    def __init__(self, name: str, rate: float, frame_hint: int | None = None) -> None:
        self.name = name
        self.rate = rate
        """Nominal frames per second."""
        self.frame_hint = frame_hint
        self.damaged = 0
        """Number of frames that could not be decoded."""
        self.dropped = 0
        """Number of frames that a live source dropped."""
        self.warnings: list[str] = []
        self.segments: list[FrameRange] = []
        """Starts of segments, without the first segment."""
        self.segment = 0
        """Segment number of the frame of the last ``grab``."""
        self.lost = False
        """Whether a live source ended and could not be reopened."""

    @abstractmethod
    def grab(self) -> tuple[int, float] | None:
        """Go to the next frame. Returns its index and timestamp in seconds, or None at the end."""

    @abstractmethod
    def retrieve(self) -> NDArray[np.uint8] | None:
        """Frame of the last ``grab`` as RGB [H, W, 3], or None if it is unreadable."""

    @property
    def orientation(self) -> int:
        """EXIF orientation (1 to 8) by which the image of the last ``grab`` was turned for display."""
        return 1

    def exif_camera(self, size: tuple[int, int]) -> Calibration:
        """Camera by the metadata of the files, for frames of ``size`` (width, height).

        Raises InputError: the files do not state a focal length; ConfigError: this kind of source has no such metadata.
        """
        raise ConfigError(f"--intrinsics exif is for photographs and films of phones, which {self.name} is not")

    @abstractmethod
    def close(self) -> None:
        """Release the file or device."""

    def interrupt(self) -> None:
        """End a wait for frames, from any thread: ``grab`` returns None. A file never waits."""
        if self.live:
            self.close()

    def seek(self, index: int) -> bool:
        """Go to frame ``index``, before the first ``grab``.

        Returns False, and does nothing, if a frame can only be found by reading all before it.
        """
        return False


class VideoReader(Reader):
    """A video file, decoded in order. It is entered by the exact time of a packet, since seeking by frame number is
    wrong with a varying frame rate."""

    def __init__(self, capture: cv2.VideoCapture, name: str, path: Path | None = None) -> None:
        """``path``: file, for `seek`; None: `seek` is impossible.

        Raises InputError: no frame can be decoded, or the file is text or shows two views.
        """
        count = capture_frame_count(capture) if path is None else shown_frame_count(capture, path)
        super().__init__(name, capture_rate(capture), count)
        self._capture = capture
        self._path = path
        self._watch = SizeWatch(path, name) if path is not None else None
        self._pixels = PixelShape.of(capture)
        self._tones = None if path is None else tone_curve(path)
        capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
        turned = round(capture.get(cv2.CAP_PROP_ORIENTATION_META) or 0.0) % 360
        self._orientation = {90: 6, 180: 3, 270: 8}.get(turned, 1)
        self._decoding: DecodingCheck | None = None
        self._is_combed = False
        self._index = -1
        self._time = -1.0 / self.rate
        self._size: tuple[int, int] | None = None
        # FFmpeg decodes plain text files as pictures of a terminal.
        if int(capture.get(cv2.CAP_PROP_FOURCC)) == cv2.VideoWriter.fourcc(*"ansi"):
            raise InputError(f"{name} is a text file, not a video")
        self._first = self._step()
        if self._first is None:
            raise InputError(f"no frame of {name} can be decoded{_codec_hint(capture, name)}")
        if path is None:
            return
        stated = film(path)
        track = (*stated.tracks, VideoTrack())[0]
        self._orientation = track.orientation or self._orientation
        self.warnings += colour_warnings(name, track) + [f"{name}: {note}" for note in (*stated.notes, *track.notes)]
        if not stated.container:
            self.warnings.append(f"MediaInfo does not read {name}: whether it is HDR or interlaced is not known")
        if count is not None and stated.container in ("Matroska", "WebM"):
            # Matroska states the time of its end, also where its first frame is late.
            late = capture.get(cv2.CAP_PROP_PTS)
            self.frame_hint = max(1, count - round(late)) if 0 < late < count else count
        self._decoding = DecodingCheck(path, name, interlaced=track.interlaced)

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
        capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
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
        if self._decoding is not None:
            self._decoding.add(self._index, bgr)
        bgr = self._pixels.squared(self._unstretched(self._deinterlaced(bgr)))
        stored = self._pixels.stored(bgr)
        self.stored_size = stored[::-1] if stored is not None and self._orientation in TURNED_BY_90 else stored
        bgr = oriented(bgr, self._orientation)
        size = (bgr.shape[1], bgr.shape[0])
        self._size = self._size or size
        if size != self._size:
            raise InputError(
                f"{self.name} changes from {self._size[0]}x{self._size[1]} to {size[0]}x{size[1]} "
                f"at {self._time:.2f} s: use --end {self._time:.2f} or --start {self._time:.2f}"
            )
        bgr = bgr if self._tones is None else np.asarray(cv2.LUT(bgr, self._tones), np.uint8)
        return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)

    @property
    def orientation(self) -> int:
        return self._orientation

    def exif_camera(self, size: tuple[int, int]) -> Calibration:
        if self._path is None:
            return super().exif_camera(size)
        return camera_of_video(self._path, size)

    def close(self) -> None:
        self._capture.release()
        if self._watch is not None:
            self._watch.close()

    def _deinterlaced(self, bgr: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The image, or its first field where its moving edges are combs."""
        if not is_combed(bgr):
            return bgr
        if not self._is_combed:
            self._is_combed = True
            self.warnings.append(
                f"{self.name} is interlaced: one field of each frame is used, with half the detail; deinterlace it "
                "first for more, for example with ffmpeg -vf bwdif"
            )
        return deinterlaced(bgr)

    def _unstretched(self, bgr: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Image at the aspect ratio of its packet: OpenCV stretches all frames to the size of the first."""
        if self._watch is None:
            return bgr
        self._watch.advance(self._index)
        first, current = self._watch.first, self._watch.size
        if first is None or current is None or first == current:
            return bgr
        return resized(bgr, (current[0] / first[0], current[1] / first[1]))

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
                f"{self.name} is cut off at {end:.2f} s of {end + lost / self.rate:.2f} s "
                f"(after frame {self._index}): the frames before are used",
            )
        return None

    def _missing(self) -> int:
        """Number of frames from here to the container's end; 0 at the end or if the container does not state it.

        The count alone is not reliable: for a varying rate some containers state length times the highest rate.
        The length in seconds decides.
        """
        if self.frame_hint is None or self._index + 1 >= self.frame_hint:
            return 0
        short = self.frame_hint - (self._time * self.rate + 1)
        if short <= END_TOLERANCE_FRAMES:
            return 0
        # Some containers count from a time before their first frame, and the length of a raw stream is a guess. A
        # file that is not cut off misses only what cannot be decoded.
        if self._path is not None and not film(self._path).cut_off:
            last = 1000 * (self._time + END_TOLERANCE_FRAMES / self.rate)
            return sum(time > last for time in packet_times(self._path, self.name))
        return round(short)

    def _timestamp(self) -> float:
        # Containers without timestamps report 0 for every frame; timestamps must increase.
        time = float(self._capture.get(cv2.CAP_PROP_POS_MSEC)) / 1000
        return time if time > self._time else self._time + 1 / self.rate

    def _report(self, lost: int, warning: str) -> None:
        self.damaged += lost
        self.warnings.append(warning)


def _codec_hint(capture: cv2.VideoCapture, name: str) -> str:
    fourcc = int(capture.get(cv2.CAP_PROP_FOURCC))
    code = fourcc.to_bytes(4, "little").decode("latin-1") if fourcc > 0 else ""
    if not code.isprintable() or not code.strip():
        return ""
    return f" (codec {code}): convert it first, for example with ffmpeg -i {name} -c:v libx264 film.mp4"


class ImageReader(Reader):
    """Image files as frames. Unreadable files are skipped and counted."""

    def __init__(
        self, paths: list[Path], name: str, fps: float | None, *, as_stored: bool = False, by_90: Collection[Path] = ()
    ) -> None:
        """``as_stored``: read images without their EXIF orientation; ``by_90``: those to turn by 90 degrees."""
        assert paths, "an empty folder is an InputError of the caller"
        super().__init__(name, fps or IMAGE_FOLDER_FPS, len(paths))
        self._paths = paths
        self._as_stored, self._by_90 = as_stored, by_90
        self.image_names = [path.name for path in paths]
        self._index = -1
        self._first: tuple[str, tuple[int, int]] | None = None
        self._bits: int | None = None
        self._noted: set[str] = set()

    @property
    def paths(self) -> list[Path]:
        return self._paths

    def grab(self) -> tuple[int, float] | None:
        self._index += 1
        return (self._index, self._index / self.rate) if self._index < len(self._paths) else None

    def retrieve(self) -> NDArray[np.uint8] | None:
        path = self._paths[self._index]
        if self._bits is None:
            self._bits = used_bits(self._paths)
            if self._bits < 16:
                self.warnings.append(f"{self.name} has images of 16 bits that use {self._bits}: read as such")
        rgb, opacity = read_with_opacity(path, as_stored=self._as_stored, bits=self._bits)
        if rgb is None:
            self.damaged += 1
            self.warnings.append(f"{path.name} is not a readable image and was skipped")
            return None
        notes, self.transparent = [*read_exif(path).notes], None
        if opacity is not None and not opacity.all():
            # Programs without opacity may write 0 for all pixels.
            self.transparent = opacity == 0 if opacity.any() else None
            notes.append("its transparent pixels are masked" if opacity.any() else "its alpha of 0 is not applied")
        if path in self._by_90:
            rgb = oriented(rgb, COUNTERCLOCKWISE)
            self.transparent = None if self.transparent is None else oriented(self.transparent, COUNTERCLOCKWISE)
        size = (rgb.shape[1], rgb.shape[0])
        self._first = self._first or (path.name, size)
        check_frame_size(path.name, size, *self._first)
        new = [note for note in notes if note not in self._noted]
        self._noted |= {*new}
        self.warnings += [f"{path.name}: {note}" for note in new]
        return rgb

    @property
    def orientation(self) -> int:
        if self._paths[self._index] in self._by_90:
            return COUNTERCLOCKWISE
        return 1 if self._as_stored else read_exif(self._paths[self._index]).orientation

    def exif_camera(self, size: tuple[int, int]) -> Calibration:
        chosen = self._paths[:: -(-len(self._paths) // EXIF_SAMPLES)]
        return camera_from_photographs(chosen, size, self.name)

    def close(self) -> None:
        self._paths = []
