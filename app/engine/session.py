"""Base of all engines: gathers scale frames, and keeps all submaps in one world. Needs no torch."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

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
from stream_recon.cache.block_manager import CacheUse
from stream_recon.configs.schema import Preset

MAX_MIN_GAP = 10
"""Largest `min_gap` that a video's length chooses: with it 320 views are 3,119 frames."""


class HostOutput(NamedTuple):
    """Network output for one frame, in host memory."""

    T_world_camera: NDArray[np.float64]  # [4, 4]
    focal: float
    """In source pixels, which are square."""
    depth: NDArray[np.float32]  # [h, w]
    confidence: NDArray[np.float32]  # [h, w]


class StreamingSession(ABC):
    """Reconstructs one run of frames at a time, in one submap or several.

    The first ``scale_frames`` frames are processed together: `push` returns nothing until they are complete, then all
    of their results at once, and from then on one result per frame.
    """

    def __init__(self, preset: Preset) -> None:
        self.preset = preset
        self.reset()

    @abstractmethod
    def _begin_stream(self, frames: Sequence[PreparedFrame]) -> list[FrameResult]:
        """Start a new stream: results of its scale frames, in the stream's own world."""

    @abstractmethod
    def _advance(self, frame: PreparedFrame, *, keep: bool = False) -> FrameResult:
        """Result of the stream's next frame, in the stream's own world; ``keep``: it is a keyframe in any case."""

    @property
    def reference_frames(self) -> tuple[int, ...]:
        """Indices of the current submap's scale frames."""
        return self._submap_manager.reference_frames

    def reset(self) -> None:
        """Drop all frames; the next one starts another run."""
        self._waiting: list[PreparedFrame] = []
        self._gathers = True
        """Whether the next frames are scale frames of a new stream."""
        self._segment = 0
        self.submaps = 0
        """Submaps of the run so far; see `SubmapManager`."""
        self.min_gap = 1
        """See `FlowKeyframes` and `expect`."""
        self._use = CacheUse()
        """Of the present submap; engines set it after each step."""
        self._past = 0
        """Frames in the caches of earlier submaps."""
        self._transform: ImageTransform | None = None
        stream = self.preset.stream
        more = 0 if stream.max_views is None else stream.scale_frames
        self._submap_manager = SubmapManager(stream.submap_overlap, stream.scale_frames, more)

    def expect(self, frames: int | None) -> str | None:
        """Prepare for a run of so many frames, after `reset`; None: nobody knows. Returns what was chosen, in a line.

        With ``max_views``, keyframes chosen by flow get a least distance with which one submap takes the run where
        the camera is slow enough: a new submap has forgotten the past.
        """
        stream = self.preset.stream
        if stream.max_views is None:
            return None
        if frames is not None and stream.keyframes == "flow":
            # A frame after the last keyframe sees one view more.
            gap = (frames - stream.scale_frames - 1) / (stream.max_views - stream.scale_frames - 1)
            self.min_gap = min(max(1, math.ceil(gap)), MAX_MIN_GAP)
        apart = f"keyframes {self.min_gap} frames apart where the camera is slow, and " if self.min_gap > 1 else ""
        return f"{apart}a new submap after {stream.max_views} keyframes: the network was trained with as many views"

    @property
    def cache_use(self) -> dict[str, Any]:
        """Frames that the KV cache holds, and how many it has evicted so far, for ``run.json``."""
        use, given = self._use, self._past + self._use.frames
        counts = {"views": use.special, "views_with_patches": use.patches, "evicted": given - use.special}
        chosen = {"max_views": self.preset.stream.max_views, "min_keyframe_gap": self.min_gap}
        return counts | {"evicted_patches": given - use.patches} | chosen

    def prepare(self, frame: Frame) -> PreparedFrame:
        """Resize a frame to the network's image; the first one after `reset` decides its size.

        One other thread may call this ahead of `push`: they share no state. Raises InputError: a frame of another size.
        """
        if self._transform is None:
            height, width = frame.rgb.shape[:2]
            self._transform = plan_image((width, height), self.preset.image, self.preset.network.patch_size)
        return prepare(frame, self._transform)

    def push(self, frame: Frame | PreparedFrame) -> list[FrameResult]:
        """Process the next frame; returns the results that are ready.

        Raises InputError as `prepare`; ResourceError: the caches do not fit in memory (first frame). After an error
        the frame does not count, and another one may follow.
        """
        if isinstance(frame, Frame):
            frame = self.prepare(frame)
        if frame.segment != self._segment:
            return [*self._end_segment(frame.segment), *self.push(frame)]
        if self._gathers:
            return self._gather(frame)
        manager, stream = self._submap_manager, self.preset.stream
        if manager.needs_submap or (stream.max_views is not None and self._use.frames >= stream.max_views):
            manager.start_submap(self._replay(manager.recent_frames, stream.scale_frames))
        return manager.align([frame], [self._advance(frame)])

    def finish(self) -> list[FrameResult]:
        """Results of frames still gathered, when a run ends before its scale frames are complete."""
        return self._release_waiting()

    def resume(self, first: Sequence[Pair], later: Sequence[Pair] = ()) -> OverlapError:
        """Continue an interrupted run in its world; called before the first frame.

        The frames are run again without giving results; the last of them are aligned with their earlier results.

        Args:
            first: scale frames of the last submap, or substitutes, with their results.
            later: keyframes after these, with their results; as many as the caches hold restore them exactly.

        Raises ResourceError: see `push`.
        """
        self._transform, self._segment, self._gathers = first[0][0].transform, first[0][0].segment, False
        results = self._replay([frame for frame, _ in (*first, *later)], len(first))
        return self._submap_manager.resume([*first, *later], results, len(first))

    def stream(self, frames: Iterable[Frame]) -> Iterator[FrameResult]:
        """Results of all frames, as they are ready."""
        for frame in frames:
            yield from self.push(frame)
        yield from self.finish()

    def _gather(self, frame: PreparedFrame) -> list[FrameResult]:
        self._waiting.append(frame)
        if len(self._waiting) < self.preset.stream.scale_frames:
            return []
        try:
            return self._release_waiting()
        except BaseException:
            self._waiting.pop()
            raise

    def _release_waiting(self) -> list[FrameResult]:
        if not self._waiting:
            return []
        results = self._begin(self._waiting)
        waiting, self._waiting, self._gathers = self._waiting, [], False
        return self._submap_manager.align(waiting, results)

    def _end_segment(self, following: int) -> list[FrameResult]:
        """Results of frames still gathered; the next segment starts a submap without overlap."""
        results = self._release_waiting()
        self._submap_manager.end_segment()
        self._gathers, self._segment = True, following
        return results

    def _replay(self, keyframes: Sequence[PreparedFrame], scale_frames: int) -> list[FrameResult]:
        """Start a new stream with keyframes of an earlier one, of which the first are scale frames."""
        results = self._begin(keyframes[:scale_frames])
        return results + [self._advance(frame, keep=True) for frame in keyframes[scale_frames:]]

    def _begin(self, frames: Sequence[PreparedFrame]) -> list[FrameResult]:
        ended = self._use.frames
        results = self._begin_stream(frames)
        self._past += ended
        self.submaps += 1
        return results


def frame_result(frame: PreparedFrame, output: HostOutput, *, is_keyframe: bool, flow: float | None) -> FrameResult:
    """A frame's result; ``flow``: image motion since the last keyframe in pixels, if measured."""
    left, top, crop_width, crop_height = frame.transform.crop
    return FrameResult(
        index=frame.index,
        timestamp=frame.timestamp,
        T_world_camera=output.T_world_camera,
        intrinsics=Intrinsics(fx=output.focal, fy=output.focal, cx=left + crop_width / 2, cy=top + crop_height / 2),
        depth=output.depth,
        confidence=output.confidence,
        rgb=frame.rgb,
        transform=frame.transform,
        is_keyframe=is_keyframe,
        flow=flow,
        segment=frame.segment,
    )
