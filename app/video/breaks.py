"""Where a video breaks: cuts, black stretches, a covered lens. What follows may show another place.

Two frames belong together if the middle of one is found again in the other, by correlation of small images, or else if
enough ORB features (Rublee et al., ICCV 2011) of both agree on one homography. A frame that does not belong to the one
before is held back until the next ones tell a cut, after which frames belong together again, from a moment of blur, in
which none do. Of two hundred pairs from different videos one has as many features in common as asked for here.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.results import PreparedFrame
from stream_recon.app.video.readers import Stretch

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
CALM = 5
"""Frames before a cut that have to be tied surely: where frames are far apart, as with a stride, none can be told."""
COHERENT = 2
"""Frames after a cut that have to be tied surely to those before them."""
LONGEST_DOUBT = 5
"""Frames that are held back at most."""
DARK = 16.0
"""Mean brightness, of 255, below which a picture without contrast is dark, not covered."""
PLAIN = 4.0
"""Standard deviation of brightness below which there is nothing to see."""
LEAST_KEYPOINTS = 20


@dataclass
class _View:
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

    @property
    def shows_nothing(self) -> str | None:
        """Why there is nothing to see, if so."""
        if self.thumbnail.std() >= PLAIN:
            return None
        return "dark" if self.thumbnail.mean() < DARK else "covered"

    def correlation(self, other: "_View") -> float:
        middle = self.thumbnail[MIDDLE]
        if middle.std() < 1:
            return 0.0
        found: NDArray[np.float32] = cv2.matchTemplate(other.thumbnail, middle, cv2.TM_CCOEFF_NORMED)
        return float(found.max())

    def in_common(self, other: "_View") -> int:
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

    def tie(self, other: "_View") -> int:
        """How surely both show one place: features in common, and enough where the correlation tells already."""
        return SURE if self.correlation(other) >= ALIKE else self.in_common(other)


class BreakWatch:
    """Passes frames on, with the number of their stretch raised at each break; what shows nothing is left out."""

    def __init__(self) -> None:
        self.stretches: list[Stretch] = []
        """Where new ones were found to begin."""
        self.unseen = 0
        """Frames left out, since there is nothing on them."""
        self._before: _View | None = None
        self._begins: list[int] = []
        self._ties: deque[int] = deque(maxlen=CALM)
        self._coherent = 0
        self._held: list[_View] = []
        self._blind: tuple[float, str] | None = None
        """Since when nothing is to be seen, in seconds, and why."""

    def watch(self, frames: Iterable[PreparedFrame]) -> Iterator[PreparedFrame]:
        """The frames that show something, in order."""
        for frame in frames:
            yield from self._push(frame)
        yield from self._release()

    def _push(self, frame: PreparedFrame) -> list[PreparedFrame]:
        view = _View(frame)
        if self._before is not None and frame.stretch != self._before.frame.stretch:
            # The source knows of a gap itself.
            released = self._release()
            self._before, self._blind = None, None
            self._ties.clear()
            return [*released, *self._push(frame)]
        reason = view.shows_nothing
        if self._before is None or (reason is not None and self._before.shows_nothing):
            # A video that shows nothing from its beginning on is a matter of its own.
            return [self._accept(view)]
        if reason is not None:
            self.unseen += 1
            self._blind = self._blind or (frame.timestamp, reason)
            return []
        if self._before.shows_nothing:
            self._begin(view, f"the picture was {self._before.shows_nothing} until {frame.timestamp:.2f} s")
            return [self._accept(view)]
        if self._held:
            return self._decide(view)
        tie = view.tie(self._before)
        calm = bool(self._ties) and min(self._ties) >= SURE
        if tie >= IN_COMMON or not (calm or self._blind):
            self._ties.append(tie)
            self._blind = None
            return [self._accept(view)]
        self._held, self._coherent = [view], 0
        return []

    def _decide(self, view: _View) -> list[PreparedFrame]:
        """Whether what is held back is of another place than what came before, by one more frame."""
        assert self._before is not None
        back = view.tie(self._before) >= IN_COMMON
        self._coherent = self._coherent + 1 if view.tie(self._held[-1]) >= SURE else 0
        self._held.append(view)
        if not back and self._coherent < COHERENT and len(self._held) < LONGEST_DOUBT:
            return []
        if not back and (self._coherent >= COHERENT or self._blind):
            first = self._held[-1 - COHERENT] if self._coherent >= COHERENT else self._held[0]
            self._begin(first, self._why(first.frame.timestamp))
            self._ties.extend([SURE] * COHERENT)
        else:
            self._ties.append(0)
        return self._release()

    def _begin(self, view: _View, reason: str) -> None:
        self.stretches.append(Stretch(view.frame.index, view.frame.timestamp, reason))
        self._begins.append(view.frame.index)

    def _why(self, seconds: float) -> str:
        if self._blind is None:
            return f"a cut at {seconds:.2f} s"
        return f"the picture was {self._blind[1]} from {self._blind[0]:.2f} s to {seconds:.2f} s"

    def _release(self) -> list[PreparedFrame]:
        held, self._held, self._blind = self._held, [], None
        return [self._accept(view) for view in held]

    def _accept(self, view: _View) -> PreparedFrame:
        self._before = view
        frame = view.frame
        begun = bisect_right(self._begins, frame.index)
        return replace(frame, stretch=frame.stretch + begun) if begun else frame
