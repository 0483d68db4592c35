"""Frames of every kind of input: video file, folder of images, camera, stream address, ROS recording.

>>> with open_source("walk.mp4", FrameChoice(stride=2)) as source:
...     for frame in source:
...         frame.index, frame.timestamp, frame.rgb.shape
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.rig import Rig, view_of
from stream_recon.app.core.types import Frame, Intrinsics
from stream_recon.app.sources.calibration import EXIF, parse_camera
from stream_recon.app.sources.colour import MOSAIC, is_mosaic
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.live import LIVE_LIMITS, RECONNECT_SECONDS, LiveLimits
from stream_recon.app.sources.masks import BLACK, MOSTLY, MaskFolder
from stream_recon.app.sources.opening import layout_of, open_reader
from stream_recon.app.sources.panorama import CONTENT, kind_of_picture, refusal
from stream_recon.app.sources.photographs import are_unordered
from stream_recon.app.sources.readers import FrameRange, ImageReader, Reader
from stream_recon.app.sources.scan_folder import ScanFeedback
from stream_recon.app.sources.undistort import Undistorter
from stream_recon.configs.errors import ConfigError, InputError, StreamReconError

T = TypeVar("T")
ALL_FRAMES = FrameChoice()
"""Choice of every frame of a source."""


class _OfReader(Generic[T]):
    """An attribute of a source that its reader has."""

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, source: "Source", _: type) -> T:
        return cast(T, getattr(source._reader, self._name))


class Source:
    """Chosen frames of one input, in order. An iterator, to be used once, and a context manager."""

    name, rig, image_names = _OfReader[str](), _OfReader[Rig | None](), _OfReader[list[str] | None]()
    rate = _OfReader[float]()
    live, lost, damaged, dropped = _OfReader[bool](), _OfReader[bool](), _OfReader[int](), _OfReader[int]()
    origin_ns, feedback = _OfReader[int | None](), _OfReader[ScanFeedback | None]()
    """See `Reader`; numbers are those so far."""

    def __init__(self, reader: Reader, choice: FrameChoice = ALL_FRAMES, *, is_panorama: bool = False) -> None:
        """``is_panorama``: its frames are known to be of 360 degrees, and wanted as they are."""
        self._reader = reader
        self._choice = choice
        self._start = choice.start or 0.0
        self._end = math.inf if choice.end is None else choice.end
        self._to_skip = 0
        self._resume_index: int | None = None
        self._resume_count = 0
        self._exif = choice.camera == EXIF
        known = parse_camera(choice.camera) if choice.camera and not self._exif else None
        self._calibration = known or reader.calibration
        reader.warnings += self._calibration.notes if self._calibration is not None else ()
        self._undistorter: Undistorter | None = None
        self._is_checked = is_panorama or reader.rig is not None
        self._masks = MaskFolder(Path(choice.masks)) if choice.masks else None
        if self._masks is not None:
            self._masks.check(reader.image_names)
            names = reader.image_names
            reader.warnings += self._masks.number(reader.frame_hint) if names is None else self._masks.unused(names)
        self._is_blind = False
        self._frames = self._choose()

    @property
    def intrinsics(self) -> Intrinsics | None:
        """Camera of the frames, in pixels, from the first frame on; None if it is not known."""
        return self._undistorter.intrinsics if self._undistorter else None

    @property
    def camera(self) -> str | None:
        """Known camera of the images before undistortion, as `Calibration.text`, or `EXIF`; None for a rig's views."""
        if self._reader.rig is not None:
            return None
        if self._exif:
            return EXIF
        return self._calibration.text() if self._calibration else None

    @property
    def segments(self) -> list[FrameRange]:
        """Starts of segments so far, without the first segment."""
        return list(self._reader.segments)

    @property
    def warnings(self) -> list[str]:
        """Warnings so far, one line each."""
        return list(self._reader.warnings)

    @property
    def frame_hint(self) -> int | None:
        """Approximate number of frames, for progress bars; containers often state a wrong number."""
        count = self._choice.count(self._reader.frame_hint, self._reader.rate)
        return None if count is None else max(1, count)

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __next__(self) -> Frame:
        """
        Raises:
            InputError: images of different sizes, or no readable frame in the chosen range.
        """
        return next(self._frames)

    def __enter__(self) -> "Source":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the file or device. While another thread iterates use `interrupt`."""
        self._reader.close()

    def skip(self, frames: int, *, read_through: bool = False) -> None:
        """Skip the first ``frames`` chosen frames without decoding images or converting colours.

        A video with exact packet times is entered by seeking. A damaged video may have packets without a frame, so
        that seeking enters it too early; ``read_through`` counts frames in place of packets.
        """
        assert self._choice.fps is None and self._start == 0.0 and frames >= 0, (
            "skip counts frames and needs a choice without fps and start"
        )
        self._to_skip = frames
        if frames and not read_through and self._reader.seek(frames * self._choice.stride):
            self._to_skip = 0

    def resume(self, index: int, timestamp: float, taken: int) -> bool:
        """Continue after frame ``index`` at ``timestamp`` seconds, the last of ``taken`` frames of an earlier run.

        Returns False if the file's packets do not lead to that frame: reopen the source and `resume_by_reading`.
        """
        self.resume_by_reading(index, taken)
        if self._choice.fps is None and self._reader.seek(index):
            step = self._reader.grab()
            return step is not None and step[0] == index and abs(step[1] - timestamp) < 1e-6
        return True

    def resume_by_reading(self, index: int, taken: int) -> None:
        """Continue after frame ``index`` as `resume` does, but read all frames before it."""
        self._resume_index, self._resume_count = index, taken

    @cached_property
    def unordered(self) -> bool:
        """Whether frames are photographs in no order, see `are_unordered`. It reads some of them."""
        reader = self._reader
        # A subclass knows the times of its images.
        return type(reader) is ImageReader and are_unordered(reader.paths[:: self._choice.stride])

    def frames_at(self, indices: Collection[int]) -> Iterator[Frame]:
        """The frames of these numbers, in order, without decoding others. Use it instead of iteration."""
        last = max(indices, default=-1)
        return self.frames_where(lambda index, _: index in indices if index <= last else None)

    def frames_where(self, is_wanted: Callable[[int, float], bool | None]) -> Iterator[Frame]:
        """The frames whose number and time are wanted, up to the first None, without decoding others. Use it instead of
        iteration; the choice of frames does not count."""
        while (step := self._reader.grab()) is not None and (wanted := is_wanted(*step)) is not None:
            if wanted and (rgb := self._retrieve()) is not None:
                yield self._frame(*step, rgb)

    def interrupt(self) -> None:
        """End a live source, or the wait for an upload, at once, from any thread. A file is not affected."""
        self._reader.interrupt()

    def _choose(self) -> Iterator[Frame]:
        count = self._resume_count
        if count == self._choice.max_frames:
            return
        frames = self._strided_frames() if self._choice.fps is None else self._frames_on_grid(self._choice.fps)
        for frame in frames:
            if self._resume_index is not None and frame.index <= self._resume_index:
                continue
            yield frame
            count += 1
            if count == self._choice.max_frames:
                return
        if not count and not self._reader.live:
            raise InputError(self._no_frame_message())

    def _steps_in_range(self) -> Iterator[tuple[int, float]]:
        while (step := self._reader.grab()) is not None:
            if step[1] >= self._end:
                return
            if step[1] >= self._start:
                yield step

    def _retrieve(self) -> NDArray[np.uint8] | None:
        rgb = self._reader.retrieve()
        if rgb is not None and not self._is_checked:
            self._is_checked = bool(rgb[::8, ::8].std() > CONTENT)
            self._reader.warnings += [MOSAIC.format(self.name)] if self._is_checked and is_mosaic(rgb) else []
            # Whoever gives a camera knows what the images are.
            if self._calibration is None and not self._exif and (kind := kind_of_picture(rgb)):
                raise InputError(refusal(self.name, kind, is_seen=True))
        if rgb is None or (self._calibration is None and not self._exif):
            return rgb
        size = rgb.shape[1], rgb.shape[0]
        if self._calibration is None:
            self._calibration = self._reader.exif_camera(size)
            self._reader.warnings += self._calibration.notes
        if self._undistorter is None or self._undistorter.size != size:
            stored = self._reader.stored_size
            # It counts only where the camera is one of the image as stored.
            turned = self._reader.orientation if size[0] != size[1] else 1
            self._undistorter = Undistorter(self._calibration.for_size(size, turned, stored), size)
        return self._undistorter(rgb)

    def _frame(self, index: int, timestamp: float, rgb: NDArray[np.uint8]) -> Frame:
        mask = self._reader.transparent
        if self._masks is not None:
            names = self._reader.image_names
            size = (rgb.shape[1], rgb.shape[0])
            name, stored = names[index] if names else None, self._reader.stored_size
            given = self._masks.read(name, index, size, lambda: self._reader.orientation, stored)
            if given is not None and given.mean() > MOSTLY and not self._is_blind:
                self._is_blind = True
                left = f"the mask of frame {index} leaves {1 - given.mean():.0%} of it"
                self._reader.warnings.append(f"{left}: black is what is excluded")
            mask = given if mask is None else mask if given is None else mask | given
        if mask is not None and self._undistorter is not None and self._undistorter.changes_image:
            # Masks are undistorted with their image. Pixels that the camera does not show come out black: masked.
            mask = self._undistorter(np.where(mask, np.uint8(0), np.uint8(255))) < BLACK
        turn = None if self.rig is None else self.rig.T_body_view[view_of(index), :3, :3]
        return Frame(index, timestamp, rgb, self._reader.segment, mask, turn)

    def _strided_frames(self) -> Iterator[Frame]:
        taken = self._resume_index
        due = -1 if taken is None else taken + self._choice.stride
        for index, timestamp in self._steps_in_range():
            if index >= due and self._to_skip:
                due = index + self._choice.stride
                self._to_skip -= 1
                continue
            # A remainder would not do: a live source may have dropped the frame that was due.
            if index >= due and (rgb := self._retrieve()) is not None:
                due = index + self._choice.stride
                yield self._frame(index, timestamp, rgb)

    def _frames_on_grid(self, fps: float) -> Iterator[Frame]:
        """Frame nearest to each point of the grid: first timestamp + k / fps.

        A live source takes the first frame of a grid cell, since waiting for a nearer one would add latency.
        """
        cell, best, error = -1, None, math.inf
        origin: float | None = None
        end = 0.0
        for index, timestamp in self._steps_in_range():
            origin = timestamp if origin is None else origin
            position = (timestamp - origin) * fps
            nearest = math.floor(position + 0.5)
            end = position + fps / self._reader.rate
            if nearest != cell:
                if best is not None:
                    yield best
                cell, best, error = nearest, None, math.inf
            if abs(position - nearest) < error and not (self.live and error < math.inf):
                rgb = self._retrieve()
                if rgb is not None:
                    best, error = self._frame(index, timestamp, rgb), abs(position - nearest)
                    if self.live:
                        yield best
                        best = None
        # A last grid point after the end of the last frame lies outside the source.
        if best is not None and (cell == 0 or cell < end - 1e-6):
            yield best

    def _no_frame_message(self) -> str:
        if self._reader.damaged:
            return (
                f"no frame of {self.name} is readable{f', such as {names[0]}' if (names := self.image_names) else ''}"
            )
        end = f" and --end {self._end:g} s" if self._end < math.inf else " and its end"
        return f"{self.name} has no frame between --start {self._start:g} s{end}"


def open_source(
    spec: str,
    choice: FrameChoice = ALL_FRAMES,
    *,
    reconnect: float = RECONNECT_SECONDS,
    limits: LiveLimits = LIVE_LIMITS,
) -> Source:
    """Open a video file, an image file, a folder of images, a ROS recording, a camera or a stream address.

    Args:
        spec: a path; a camera number such as ``0``; an address (rtsp, http, https, rtmp, srt, udp, tcp, zenoh).
            A path that exists wins over a camera number.
        choice: which frames to take, and what is known of them.
        reconnect: seconds to wait for a lost camera or stream; 0: its end is the end of the source.

    Raises InputError: nothing there, or nothing that can be decoded; ConfigError: the choice does not fit the source,
    or takes both ``stride`` and ``fps`` of a video.
    """
    if not 0 <= reconnect < math.inf:
        raise ConfigError(f"--reconnect must be 0 or more seconds, not {reconnect:g}")
    if choice.rig is not None:
        from stream_recon.app.sources.rig_files import open_rig  # it imports this module

        return open_rig(spec, choice)
    if choice.camera is None and (layout := layout_of(spec)) is not None:
        from stream_recon.app.sources.panorama_views import open_views  # it imports this module

        return open_views(spec, choice, layout)
    return source_of(open_reader(spec, choice.fps, reconnect, choice.topic, limits), choice)


def source_of(reader: Reader, choice: FrameChoice, *, is_panorama: bool = False) -> Source:
    """Chosen frames of a reader. Raises ConfigError: the choice does not fit it; InputError: it states no camera."""
    try:
        if choice.topic is not None and not reader.has_topics:
            raise ConfigError(f"--topic {choice.topic}: {reader.name} is not a ROS recording")
        if choice.camera == EXIF:
            reader.exif_camera((3, 2))  # a missing focal length is reported before anything is read
        if isinstance(reader, ImageReader):
            choice = dataclasses.replace(choice, fps=None)
        elif choice.fps is not None and choice.stride != 1:
            raise ConfigError("use --fps or --stride, not both")
    except StreamReconError:
        reader.close()
        raise
    return Source(reader, choice, is_panorama=is_panorama)
