"""Shot-boundary detection: splits a video into segments at cuts and removes blank frames (black or covered lens).

Two frames overlap if thumbnails correlate, or if enough ORB features (Rublee et al., ICCV 2011) agree on one
homography. A frame that does not overlap with its predecessor is held back. After a cut the next frames overlap with
each other again; during blur none do. One of two hundred frame pairs from different videos passes the feature test.

If the camera moves so fast that neighbouring frames hardly overlap, colours decide: at a cut they change far more than
from frame to frame before and after it.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import PreparedFrame
from stream_recon.app.sources.readers import FrameRange

THUMBNAIL = (64, 48)
"""Width and height of the images for correlation: noise and small motion vanish at this size."""
TEMPLATE = (slice(10, 38), slice(14, 50))
"""Rows and columns of a thumbnail that are searched in the other one; the margin allows for motion."""
FEATURE_PIXELS = 224 * 168
"""Size of the image for ORB features: the network's default size, where 500 features take a few milliseconds."""
FEATURES = 500
"""ORB features per frame, with which neighbouring frames share well over `MANY_MATCHES`."""
SAME_CORRELATION = 0.8
"""Correlation of thumbnails above which frames overlap: no pair from different videos exceeds it."""
MIN_MATCHES = 18
"""Matches on one homography from which frames overlap: one of 200 pairs from different videos has as many."""
MANY_MATCHES = 60
"""Matches of frames between which the camera moves little."""
LEVELS = 32
"""Bins of a channel's histogram, coarse enough for noise."""
DARK = 16.0
"""Mean brightness, of 255, below which a blank frame is called dark, else covered."""
BLANK_CONTRAST = 4.0
"""Standard deviation of brightness, of 255, below which a frame is blank: only noise is left."""
MIN_KEYPOINTS = 20
"""Keypoints of a frame below which a homography cannot be told from chance."""


@dataclass
class ImageSignature:
    """A frame with the features by which it is compared; each is computed on first use."""

    frame: PreparedFrame
    grey: NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        grey = cv2.cvtColor(self.frame.rgb, cv2.COLOR_RGB2GRAY)
        height, width = grey.shape
        scale = (FEATURE_PIXELS / (height * width)) ** 0.5
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        self.grey = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)

    @cached_property
    def thumbnail(self) -> NDArray[np.float32]:
        small = cv2.resize(self.grey, THUMBNAIL, interpolation=cv2.INTER_AREA)
        return np.asarray(small, np.float32)

    @cached_property
    def features(self) -> tuple[NDArray[np.float32], NDArray[np.uint8] | None]:
        """Keypoints [N, 2] and ORB descriptors [N, 32]."""
        orb: Any = cv2.ORB_create(  # type: ignore[attr-defined]
            FEATURES, scaleFactor=1.3, nlevels=4, edgeThreshold=12, patchSize=21, fastThreshold=7
        )
        keypoints, descriptors = orb.detectAndCompute(self.grey, None)
        return np.array([k.pt for k in keypoints], np.float32).reshape(-1, 2), descriptors

    @cached_property
    def colours(self) -> NDArray[np.float32]:
        """Cumulative histogram of each channel, [3, `LEVELS`]."""
        small = cv2.resize(self.frame.rgb, THUMBNAIL, interpolation=cv2.INTER_AREA)
        levels = small.reshape(-1, 3) // (256 // LEVELS)
        counts = [np.bincount(levels[:, channel], minlength=LEVELS) for channel in range(3)]
        return np.asarray(np.cumsum(np.stack(counts), axis=1) / len(levels), np.float32)

    @cached_property
    def contrast(self) -> float:
        """Standard deviation of brightness, of 255."""
        return float(self.thumbnail.std())

    @property
    def blank_reason(self) -> str | None:
        """Reason why the frame is blank, for the user; None if it shows something."""
        if self.contrast >= BLANK_CONTRAST:
            return None
        return "dark" if self.thumbnail.mean() < DARK else "covered"

    def correlation(self, other: "ImageSignature") -> float:
        """Highest correlation of the thumbnail's centre with a part of the other thumbnail."""
        template = self.thumbnail[TEMPLATE]
        if template.std() < 1:
            return 0.0
        scores: NDArray[np.float32] = cv2.matchTemplate(other.thumbnail, template, cv2.TM_CCOEFF_NORMED)
        return float(scores.max())

    def matches(self, other: "ImageSignature") -> int:
        """Number of feature matches that agree on one homography."""
        (points, descriptors), (other_points, other_descriptors) = self.features, other.features
        if descriptors is None or other_descriptors is None or min(len(points), len(other_points)) < MIN_KEYPOINTS:
            return 0
        pairs = cv2.BFMatcher(cv2.NORM_HAMMING).knnMatch(descriptors, other_descriptors, k=2)
        good = [p[0] for p in pairs if len(p) == 2 and p[0].distance < 0.8 * p[1].distance]
        if len(good) < 8:
            return 0
        source = points[[match.queryIdx for match in good]]
        target = other_points[[match.trainIdx for match in good]]
        _, agree = cv2.findHomography(source, target, cv2.RANSAC, 4.0)
        return 0 if agree is None else int(agree.sum())

    def overlap(self, other: "ImageSignature") -> int:
        """Number of matches with the other frame; `MANY_MATCHES` if the thumbnails correlate."""
        return MANY_MATCHES if self.correlation(other) >= SAME_CORRELATION else self.matches(other)

    def colour_change(self, other: "ImageSignature") -> float:
        """Earth mover's distance of the colour histograms, in levels of 256."""
        return float(np.abs(self.colours - other.colours).sum(axis=1).mean()) * 256 / LEVELS


OVERLAPS_BEFORE_CUT = 5
"""Latest overlaps that must all have `MANY_MATCHES` for a cut without a colour change: with a large stride neighbouring
frames hardly overlap, and missing overlap proves nothing."""
OVERLAPS_AFTER_CUT = 2
"""Overlaps in a row with `MANY_MATCHES` that end the doubt about a cut: blur has none."""
MAX_PENDING = 5
"""Frames that are held back at most, a delay of a sixth of a second at 30 frames per second."""
CUT_COLOUR_RATIO = 4.0
"""Colour change at a cut relative to the largest change from frame to frame around it."""
FADE_FRAMES = 10
"""Frames before a blank one among which the clearest is compared afterwards: a fade takes up to as many."""
NORMAL_COLOUR_CHANGE = 2.0
"""Levels by which colours change from frame to frame in any video, from exposure and noise."""


class DiscontinuityDetector:
    """Passes frames on with the number of their segment, and removes blank frames."""

    def __init__(
        self,
        known: Sequence[FrameRange] = (),
        blank_frames: int = 0,
        last: PreparedFrame | None = None,
        names: Sequence[str] | None = None,
        unordered: bool = False,
    ) -> None:
        """
        Args:
            known, blank_frames, last: of a continued run: starts of its segments, number of its blank frames, its last
                frame.
            names: file names by frame number, whose times mean nothing; None: frames of a video.
            unordered: consecutive frames need not show the same place, so that nothing is a cut.
        """
        self._names, self._unordered, self._known = names, unordered, len(known)
        self.segments = list(known)
        """Starts of segments, without the first segment."""
        self.blank_frames = blank_frames
        """Number of blank frames, which were removed."""
        self._previous = None if last is None else ImageSignature(last)
        self._starts = [segment.index for segment in known]
        self._overlaps: deque[int] = deque(maxlen=OVERLAPS_BEFORE_CUT)
        self._colour_changes: deque[float] = deque(maxlen=OVERLAPS_BEFORE_CUT)
        """Colour change from frame to frame."""
        self._recent: deque[ImageSignature] = deque(
            [] if self._previous is None else [self._previous], maxlen=FADE_FRAMES
        )
        """Last frames that were passed on."""
        self._coherent_count = 0
        self._pending: list[ImageSignature] = []
        self.blank_since: tuple[float, str] | None = None
        """Time in seconds of the first blank frame of a row, and the reason; None outside. Read from any thread."""

    @property
    def warnings(self) -> list[str]:
        """A line for each segment that was found, without those of the continued run."""
        note = "a new segment begins, whose pose relative to the one before is a guess"
        return [f"{segment.reason}: {note}" for segment in self.segments[self._known :]]

    def copy(self) -> "DiscontinuityDetector":
        """Another one, which goes on from here by itself."""
        twin = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list | deque):
                setattr(twin, name, value.copy())
        return twin

    def watch(self, frames: Iterable[PreparedFrame]) -> Iterator[PreparedFrame]:
        """Yield the frames that are not blank, in order, up to `MAX_PENDING` frames late."""
        for frame in frames:
            yield from self.push(frame)
        yield from self.release()

    def push(self, frame: PreparedFrame) -> list[PreparedFrame]:
        """The next frame; returns the frames that are ready, as `watch` yields them."""
        view = ImageSignature(frame)
        if self._previous is not None and frame.segment != self._previous.frame.segment:
            # The source itself reports a gap.
            released = self.release()
            self._previous, self.blank_since = None, None
            self._reset_history()
            return [*released, *self.push(frame)]
        reason = view.blank_reason
        if self._unordered:
            self.blank_frames += reason is not None
            return [frame] if reason is None else []
        if self._previous is None or (reason is not None and self._previous.blank_reason):
            # Blank frames at the very beginning are passed on: there is no segment to end yet.
            return [self._accept(view)]
        if reason is not None:
            return self._remove_blank(frame, reason)
        if self._previous.blank_reason:
            self._begin_segment(view, f"the picture was {self._previous.blank_reason} until {self._at(frame)}")
            return [self._accept(view)]
        return self._decide(view) if self._pending else self._compare(view)

    def _remove_blank(self, frame: PreparedFrame, reason: str) -> list[PreparedFrame]:
        """Remove a blank frame. Returns the frames held back before it."""
        released = self.release() if self._pending else []
        if self.blank_since is None:
            # After a fade the next frame is compared with the clearest one before it.
            self._previous = max(self._recent, key=lambda signature: signature.contrast)
        self.blank_frames += 1
        self.blank_since = self.blank_since or (frame.timestamp, reason)
        return released

    def _compare(self, view: ImageSignature) -> list[PreparedFrame]:
        """Pass a frame on, or hold it back because it does not overlap with the one before."""
        overlap = self._overlap(view)
        steady = bool(self._overlaps) and min(self._overlaps) >= MANY_MATCHES
        if overlap >= MIN_MATCHES or not (steady or self.blank_since or self._colours_jump(view, self._colour_changes)):
            self._overlaps.append(overlap)
            self.blank_since = None
            return [self._accept(view)]
        self._pending, self._coherent_count = [view], 0
        return []

    def _decide(self, view: ImageSignature) -> list[PreparedFrame]:
        """Decide with one more frame whether the frames held back begin a new segment; [] while in doubt."""
        returned = self._overlap(view) >= MIN_MATCHES
        last = self._pending[-1]
        overlap = view.matches(last) if self.blank_since else view.overlap(last)
        coherent = overlap >= MANY_MATCHES or self._colours_jump(self._pending[0], [view.colour_change(last)])
        self._coherent_count = self._coherent_count + 1 if coherent else 0
        self._pending.append(view)
        if not returned and self._coherent_count < OVERLAPS_AFTER_CUT and len(self._pending) < MAX_PENDING:
            return []
        if not returned and (self._coherent_count >= OVERLAPS_AFTER_CUT or self.blank_since):
            certain = self._coherent_count >= OVERLAPS_AFTER_CUT
            first = self._pending[-1 - OVERLAPS_AFTER_CUT] if certain else self._pending[0]
            self._begin_segment(first, self._cut_reason(first.frame))
            self._overlaps.append(overlap)
        else:
            self._overlaps.append(0)
        return self.release()

    def _overlap(self, view: ImageSignature) -> int:
        """Overlap with the previous frame; around blank frames by features alone, as all dim thumbnails correlate."""
        assert self._previous is not None
        return view.matches(self._previous) if self.blank_since else view.overlap(self._previous)

    def _colours_jump(self, view: ImageSignature, usual: Iterable[float]) -> bool:
        """Whether colours differ from the previous frame's far more than the ``usual`` changes from frame to frame."""
        assert self._previous is not None
        return view.colour_change(self._previous) > CUT_COLOUR_RATIO * max(NORMAL_COLOUR_CHANGE, *usual, 0.0)

    def _begin_segment(self, view: ImageSignature, reason: str) -> None:
        self._reset_history()
        self.segments.append(FrameRange(view.frame.index, view.frame.timestamp, reason))
        self._starts.append(view.frame.index)

    def _reset_history(self) -> None:
        """Forget overlaps and colours from before a discontinuity."""
        self._overlaps.clear()
        self._colour_changes.clear()
        self._recent.clear()

    def _at(self, frame: PreparedFrame) -> str:
        """Time of a frame, or the name of its file."""
        return f"{frame.timestamp:.2f} s" if self._names is None else self._names[frame.index]

    def _cut_reason(self, frame: PreparedFrame) -> str:
        if self.blank_since is None:
            return f"a cut at {self._at(frame)}"
        if self._names is not None:
            return f"the picture was {self.blank_since[1]} until {self._at(frame)}"
        return f"the picture was {self.blank_since[1]} from {self.blank_since[0]:.2f} s to {self._at(frame)}"

    def release(self) -> list[PreparedFrame]:
        """The frames that are still held back."""
        pending, self._pending, self.blank_since = self._pending, [], None
        return [self._accept(view) for view in pending]

    def _accept(self, view: ImageSignature) -> PreparedFrame:
        if self._previous is not None:
            self._colour_changes.append(view.colour_change(self._previous))
        self._previous = view
        self._recent.append(view)
        frame = view.frame
        count = bisect_right(self._starts, frame.index)
        return replace(frame, segment=frame.segment + count) if count else frame
