"""Where a video breaks: cuts, black stretches, a covered lens. What follows may show another place.

Two frames belong together if the middle of one is found again in the other, by correlation of small images, or else if
enough ORB features (Rublee et al., ICCV 2011) of both agree on one homography. A frame that does not belong to the one
before is held back until the next ones tell a cut, after which frames belong together again, from a moment of blur, in
which none do. Of two hundred pairs from different videos one has as many features in common as asked for here.

Where the camera moves so fast that neighbouring frames have little in common anyway, colours tell: at a cut they change
by far more than from frame to frame before and after it.

How much two frames of a video have in common, and whether a frame shows anything at all.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import PreparedFrame
from stream_recon.app.sources.readers import FrameRange

THUMBNAIL = (64, 48)
MIDDLE = (slice(10, 38), slice(14, 50))
"""Of a thumbnail: rows and columns that are looked for in the other one."""
FEATURE_PIXELS = 224 * 168
"""Of the image that features are taken from."""
FEATURES = 500
ALIKE = 0.8
"""Correlation above which thumbnails show one place: of pairs from different videos none has more."""
IN_COMMON = 18
"""Features that agree, at the least."""
SURE = 60
"""Features that frames have in common where the camera does not move much between them."""
LEVELS = 32
"""Of a channel's histogram."""
DARK = 16.0
"""Mean brightness, of 255, below which a picture without contrast is dark, not covered."""
PLAIN = 4.0
"""Standard deviation of brightness below which there is nothing to see."""
LEAST_KEYPOINTS = 20


@dataclass
class ImageSignature:
    """A frame with what it is compared by."""

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
        """Positions [N, 2] and descriptors [N, 32]."""
        orb: Any = cv2.ORB_create(  # type: ignore[attr-defined]
            FEATURES, scaleFactor=1.3, nlevels=4, edgeThreshold=12, patchSize=21, fastThreshold=7
        )
        keypoints, descriptors = orb.detectAndCompute(self.grey, None)
        return np.array([k.pt for k in keypoints], np.float32).reshape(-1, 2), descriptors

    @cached_property
    def colours(self) -> NDArray[np.float32]:
        """Shares of pixels up to each level, for each channel [3, LEVELS]."""
        small = cv2.resize(self.frame.rgb, THUMBNAIL, interpolation=cv2.INTER_AREA)
        levels = small.reshape(-1, 3) // (256 // LEVELS)
        counts = [np.bincount(levels[:, channel], minlength=LEVELS) for channel in range(3)]
        shares: NDArray[np.float32] = (np.cumsum(np.stack(counts), axis=1) / len(levels)).astype(np.float32)
        return shares

    @cached_property
    def contrast(self) -> float:
        """Standard deviation of brightness, of 255."""
        return float(self.thumbnail.std())

    @property
    def shows_nothing(self) -> str | None:
        """Why there is nothing to see, if so."""
        if self.contrast >= PLAIN:
            return None
        return "dark" if self.thumbnail.mean() < DARK else "covered"

    def correlation(self, other: "ImageSignature") -> float:
        middle = self.thumbnail[MIDDLE]
        if middle.std() < 1:
            return 0.0
        found: NDArray[np.float32] = cv2.matchTemplate(other.thumbnail, middle, cv2.TM_CCOEFF_NORMED)
        return float(found.max())

    def in_common(self, other: "ImageSignature") -> int:
        """Features of both that agree on one homography."""
        (here, ours), (there, theirs) = self.features, other.features
        if ours is None or theirs is None or min(len(here), len(there)) < LEAST_KEYPOINTS:
            return 0
        pairs = cv2.BFMatcher(cv2.NORM_HAMMING).knnMatch(ours, theirs, k=2)
        good = [p[0] for p in pairs if len(p) == 2 and p[0].distance < 0.8 * p[1].distance]
        if len(good) < 8:
            return 0
        source = here[[match.queryIdx for match in good]]
        target = there[[match.trainIdx for match in good]]
        _, agree = cv2.findHomography(source, target, cv2.RANSAC, 4.0)
        return 0 if agree is None else int(agree.sum())

    def tie(self, other: "ImageSignature") -> int:
        """How surely both show one place: features in common, and enough where the correlation tells already."""
        return SURE if self.correlation(other) >= ALIKE else self.in_common(other)

    def recoloured(self, other: "ImageSignature") -> float:
        """By how many levels, of 256, colours differ, wherever in the picture they are (the earth mover's distance)."""
        return float(np.abs(self.colours - other.colours).sum(axis=1).mean()) * 256 / LEVELS


CALM = 5
"""Frames before a cut that have to be tied surely: where frames are far apart, as with a stride, none can be told."""
COHERENT = 2
"""Frames after a cut that have to be tied surely to those before them."""
LONGEST_DOUBT = 5
"""Frames that are held back at most."""
RECOLOURED = 4.0
"""Times as much as from frame to frame: so far do colours change at a cut."""
FADING = 10
"""Frames in which a picture may fade until nothing is to be seen."""
STEADY = 2.0
"""Levels by which colours change from frame to frame in any video."""


class DiscontinuityDetector:
    """Passes frames on, with the number of their stretch raised at each break; what shows nothing is left out."""

    def __init__(
        self, known: Sequence[FrameRange] = (), blank_frames: int = 0, last: PreparedFrame | None = None
    ) -> None:
        """``known``, ``unseen``, ``last``: of a run that this one goes on with; its last frame comes not again."""
        self.segments = list(known)
        """Where new ones were found to begin."""
        self.blank_frames = blank_frames
        """Frames left out, since there is nothing on them."""
        self._before = None if last is None else ImageSignature(last)
        self._begins = [segment.index for segment in known]
        self._ties: deque[int] = deque(maxlen=CALM)
        self._steps: deque[float] = deque(maxlen=CALM)
        """By how much colours changed from frame to frame."""
        self._clear: deque[ImageSignature] = deque([] if self._before is None else [self._before], maxlen=FADING)
        """The last ones that were passed on."""
        self._coherent = 0
        self._held: list[ImageSignature] = []
        self._blind: tuple[float, str] | None = None

    @property
    def blind(self) -> tuple[float, str] | None:
        """Since when nothing is to be seen, in seconds, and why; another thread may ask."""
        return self._blind

    def watch(self, frames: Iterable[PreparedFrame]) -> Iterator[PreparedFrame]:
        """The frames that show something, in order."""
        for frame in frames:
            yield from self._push(frame)
        yield from self._release()

    def _push(self, frame: PreparedFrame) -> list[PreparedFrame]:
        view = ImageSignature(frame)
        if self._before is not None and frame.segment != self._before.frame.segment:
            # The source knows of a gap itself.
            released = self._release()
            self._before, self._blind = None, None
            self._forget()
            return [*released, *self._push(frame)]
        reason = view.shows_nothing
        if self._before is None or (reason is not None and self._before.shows_nothing):
            # A video that shows nothing from its beginning on is a matter of its own.
            return [self._accept(view)]
        if reason is not None:
            released = self._release() if self._held else []
            if self._blind is None:
                # What fades is compared as it was while it was clear.
                self._before = max(self._clear, key=lambda seen: seen.contrast)
            self.blank_frames += 1
            self._blind = self._blind or (frame.timestamp, reason)
            return released
        if self._before.shows_nothing:
            self._begin(view, f"the picture was {self._before.shows_nothing} until {frame.timestamp:.2f} s")
            return [self._accept(view)]
        if self._held:
            return self._decide(view)
        tie = self._tie(view)
        calm = bool(self._ties) and min(self._ties) >= SURE
        if tie >= IN_COMMON or not (calm or self._blind or self._is_recoloured(view, self._steps)):
            self._ties.append(tie)
            self._blind = None
            return [self._accept(view)]
        self._held, self._coherent = [view], 0
        return []

    def _decide(self, view: ImageSignature) -> list[PreparedFrame]:
        """Whether what is held back is of another place than what came before, by one more frame."""
        back = self._tie(view) >= IN_COMMON
        last = self._held[-1]
        tie = view.in_common(last) if self._blind else view.tie(last)
        together = tie >= SURE or self._is_recoloured(self._held[0], [view.recoloured(last)])
        self._coherent = self._coherent + 1 if together else 0
        self._held.append(view)
        if not back and self._coherent < COHERENT and len(self._held) < LONGEST_DOUBT:
            return []
        if not back and (self._coherent >= COHERENT or self._blind):
            first = self._held[-1 - COHERENT] if self._coherent >= COHERENT else self._held[0]
            self._begin(first, self._why(first.frame.timestamp))
            self._ties.append(tie)
        else:
            self._ties.append(0)
        return self._release()

    def _tie(self, view: ImageSignature) -> int:
        """To the frame before. In the half-dark, before and after a picture without anything, small images are all
        alike: there only features tell."""
        assert self._before is not None
        return view.in_common(self._before) if self._blind else view.tie(self._before)

    def _is_recoloured(self, view: ImageSignature, steps: Iterable[float]) -> bool:
        """Whether colours are so far from those of the frame before as ``steps`` from frame to frame do not explain."""
        assert self._before is not None
        return view.recoloured(self._before) > RECOLOURED * max(STEADY, *steps, 0.0)

    def _begin(self, view: ImageSignature, reason: str) -> None:
        self._forget()
        self.segments.append(FrameRange(view.frame.index, view.frame.timestamp, reason))
        self._begins.append(view.frame.index)

    def _forget(self) -> None:
        """What was before tells nothing of how the next frames hang together."""
        self._ties.clear()
        self._steps.clear()
        self._clear.clear()

    def _why(self, seconds: float) -> str:
        if self._blind is None:
            return f"a cut at {seconds:.2f} s"
        return f"the picture was {self._blind[1]} from {self._blind[0]:.2f} s to {seconds:.2f} s"

    def _release(self) -> list[PreparedFrame]:
        held, self._held, self._blind = self._held, [], None
        return [self._accept(view) for view in held]

    def _accept(self, view: ImageSignature) -> PreparedFrame:
        if self._before is not None:
            self._steps.append(view.recoloured(self._before))
        self._before = view
        self._clear.append(view)
        frame = view.frame
        begun = bisect_right(self._begins, frame.index)
        return replace(frame, segment=frame.segment + begun) if begun else frame
