"""What every engine does around the network's steps: gather scale frames, keep to one world. Needs no torch."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import (
    Frame,
    FrameResult,
    ImageTransform,
    Intrinsics,
    OverlapError,
    Pair,
    PreparedFrame,
)
from stream_recon.app.engine.submap import SubmapManager
from stream_recon.app.sources.preprocess import plan_image, prepare
from stream_recon.configs.schema import Preset


class StreamingSession(ABC):
    """Reconstructs one stream at a time.

    The first ``scale_frames`` frames are gathered and processed together, so `push` returns nothing until then,
    and all of their results at once; from then on one result for each frame.
    """

    def __init__(self, preset: Preset) -> None:
        self.preset = preset
        self.reset()

    @abstractmethod
    def _begin_stream(self, frames: Sequence[PreparedFrame]) -> list[FrameResult]:
        """Results of the scale frames of a new stream, in its own world. What was before is forgotten."""

    @abstractmethod
    def _advance(self, frame: PreparedFrame) -> FrameResult:
        """The stream's next frame."""

    @property
    def reference_frames(self) -> tuple[int, ...]:
        """Numbers of the scale frames of the stream under way."""
        return self._anchor.reference_frames

    def reset(self) -> None:
        """Forget the frames; the next one begins another run."""
        self._waiting: list[PreparedFrame] = []
        self._gathers = True
        """The next frames are scale frames of a stream to come."""
        self._segment = 0
        self.submaps = 0
        """So many has the run been; see `SubmapManager`."""
        self._transform: ImageTransform | None = None
        self._anchor = SubmapManager(self.preset.stream.submap_overlap, self.preset.stream.scale_frames)

    def prepare(self, frame: Frame) -> PreparedFrame:
        """Make the network's image of a frame; the first one since `reset` decides its size.

        One other thread may do this ahead of `push`: neither touches what the other one changes.

        Raises:
            InputError: the frame's size differs from the first one's.
        """
        return prepare(frame, self._plan(frame))

    def push(self, frame: Frame | PreparedFrame) -> list[FrameResult]:
        """Take the next frame, which is prepared here if it is not yet.

        Raises:
            InputError: see `prepare`.
            ResourceError: the caches do not fit in memory (first frame).
        """
        if isinstance(frame, Frame):
            frame = self.prepare(frame)
        if frame.segment != self._segment:
            return [*self._end_segment(frame.segment), *self.push(frame)]
        if self._gathers:
            self._waiting.append(frame)
            return [] if len(self._waiting) < self.preset.stream.scale_frames else self._release_waiting()
        if self._anchor.is_lost:
            self._anchor.renew(self._begin(self._anchor.frames))
        return self._anchor.place([frame], [self._advance(frame)])

    def finish(self) -> list[FrameResult]:
        """Results of frames still waiting, when a stream ends before its scale frames are complete."""
        return self._release_waiting()

    def resume(self, first: Sequence[Pair], later: Sequence[Pair] = ()) -> OverlapError:
        """Go on where an earlier run was cut off, in its world: before the first frame.

        Frames are run again, and give no results; the last of them are laid onto their own results.

        Args:
            first: the scale frames that its last stream stood on, or others in their stead, with their results.
            later: its keyframes after these: as many as the caches hold make them what they were.

        Raises:
            ResourceError: see `push`.
        """
        self._transform, self._segment, self._gathers = first[0][0].transform, first[0][0].segment, False
        results = self._begin([frame for frame, _ in first])
        for frame, _ in later:
            results.append(self._advance(frame))
        return self._anchor.go_on([*first, *later], results, len(first))

    def stream(self, frames: Iterable[Frame]) -> Iterator[FrameResult]:
        """Results of all frames, as they come."""
        for frame in frames:
            yield from self.push(frame)
        yield from self.finish()

    def _release_waiting(self) -> list[FrameResult]:
        if not self._waiting:
            return []
        waiting, self._waiting, self._gathers = self._waiting, [], False
        return self._anchor.place(waiting, self._begin(waiting))

    def _end_segment(self, following: int) -> list[FrameResult]:
        """Results of frames still waiting; what comes next is a stream without any tie to what came before."""
        results = self._release_waiting()
        self._anchor.part()
        self._gathers, self._segment = True, following
        return results

    def _begin(self, frames: Sequence[PreparedFrame]) -> list[FrameResult]:
        self.submaps += 1
        return self._begin_stream(frames)

    def _plan(self, frame: Frame) -> ImageTransform:
        height, width = frame.rgb.shape[:2]
        if self._transform is None:
            self._transform = plan_image((width, height), self.preset.image, self.preset.network.patch_size)
        return self._transform


def frame_result(
    frame: PreparedFrame,
    T_world_camera: NDArray[np.float64],
    focal: float,
    depth: NDArray[np.float32],
    confidence: NDArray[np.float32],
    *,
    is_keyframe: bool,
    flow: float | None,
) -> FrameResult:
    """A frame's result: ``focal`` in pixels of its crop, square ones; depth and confidence [h, w] of its image."""
    left, top, crop_width, crop_height = frame.transform.crop
    return FrameResult(
        index=frame.index,
        timestamp=frame.timestamp,
        T_world_camera=T_world_camera,
        intrinsics=Intrinsics(fx=focal, fy=focal, cx=left + crop_width / 2, cy=top + crop_height / 2),
        depth=depth,
        confidence=confidence,
        rgb=frame.rgb,
        transform=frame.transform,
        is_keyframe=is_keyframe,
        flow=flow,
        segment=frame.segment,
    )
