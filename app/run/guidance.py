"""One line of guidance for a person who scans: from the images as they arrive, and from the run's results."""

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult, Revision

if TYPE_CHECKING:
    from stream_recon.app.sources.scan_folder import ScanFeedback

DARK = "Too dark: switch on a light"
FAST = "Too fast: move more slowly"
BLURRED = "Blurred: hold the phone more still"
BARE = "Too little to see: aim at things with pattern and edges"
LOST = "Lost the place: turn back to what you have seen"
"""Lines, the most urgent first; at most one is shown."""


@dataclass(frozen=True)
class GuidanceConfig:
    """When an image is called bad, and how long a line stays."""

    side: int = 256
    """Longer side of the images that are judged."""
    dark_level: float = 40.0
    """Mean brightness, of 255, below which corners are lost in noise."""
    sharp_frames: int = 60
    """Latest frames whose sharpness is the reference."""
    blurred_fineness: float = 0.49
    """Edges at full size relative to those at half size, below which an image is blurred for certain.

    Sharp frames of phone videos and renderings have 0.52 to 0.85, frames blurred over a sixtieth of the width 0.35 to
    0.48.
    """
    doubtful_fineness: float = 0.56
    """The same below which it may be blurred."""
    blur_ratio: float = 0.35
    """Sharpness, as a share of the reference, below which a doubtful frame is blurred."""
    bare_contrast: float = 6.0
    """Standard deviation of brightness of a reduced image below which only a bare surface is in view."""
    fast_shift: float = 0.2
    """Shift of the image from one frame to the next, as a share of its width, above which frames hardly overlap."""
    min_response: float = 0.08
    """Peak of phase correlation below which a shift is a guess."""
    low: float = 0.25
    """Mean health over `health_frames` below which the place is lost."""
    recovered: float = 0.4
    """Mean health above which it is found."""
    health_frames: int = 5
    votes: int = 2
    """Frames that must agree before a line is shown."""
    frames: int = 3
    """Out of how many."""
    min_seconds: float = 1.0
    """Time that a line stays, so that it can be read."""
    lost_seconds: float = 10.0
    """Time after which a new segment is taken for the place to be scanned."""


DEFAULT_GUIDANCE = GuidanceConfig()
COARSE = (24, 18)
"""Size of the image in which contrast is measured."""


class Speaker(Protocol):
    """Shows a line, and learns which frames have a pose."""

    def say(self, text: str) -> None: ...

    def posed(self, index: int) -> None: ...


class Guidance:
    """A `ResultListener` that also sees each image as it arrives. Both may come from threads of their own."""

    def __init__(self, speaker: Speaker, config: GuidanceConfig = DEFAULT_GUIDANCE) -> None:
        self._speaker, self._config = speaker, config
        self._lock = threading.Lock()
        self._votes: deque[str] = deque(maxlen=self._config.frames)
        self._sharpness: deque[float] = deque(maxlen=self._config.sharp_frames)
        self._previous: NDArray[np.float32] | None = None
        self._health: deque[float] = deque(maxlen=self._config.health_frames)
        self._segment = 0
        self._lost_since: float | None = None
        self._said, self._said_at = "", 0.0

    @staticmethod
    def of(feedback: "ScanFeedback") -> "Guidance":
        """Guidance of a scan, connected to its images."""
        guidance = Guidance(feedback)
        feedback.observe = guidance.observe
        return guidance

    def observe(self, seconds: float, rgb: NDArray[np.uint8]) -> None:
        """Judge an image [H, W, 3] that arrived at ``seconds`` of the source."""
        scale = self._config.side / max(rgb.shape[:2])
        size = max(8, round(rgb.shape[1] * scale)), max(8, round(rgb.shape[0] * scale))
        grey = cv2.cvtColor(cv2.resize(rgb, size, interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2GRAY).astype(np.float32)
        with self._lock:
            self._votes.append(self._judge(grey))
            self._update()

    def add(self, result: FrameResult) -> None:
        self._speaker.posed(result.index)
        with self._lock:
            if result.segment != self._segment:
                self._segment, self._lost_since = result.segment, time.monotonic()
                self._health.clear()
            if result.health is not None:
                self._health.append(result.health)
            if len(self._health) == self._config.health_frames:
                mean = sum(self._health) / self._config.health_frames
                if mean < self._config.low and self._lost_since is None:
                    self._lost_since = time.monotonic()
                elif mean > self._config.recovered:
                    self._lost_since = None
            self._update()

    def revise(self, revision: Revision) -> None:
        """Nothing: a closed loop shows in the health of the frames that follow."""

    def _judge(self, grey: NDArray[np.float32]) -> str:
        """The line that one image calls for; empty for a good one."""
        previous, self._previous = self._previous, grey
        if float(grey.mean()) < self._config.dark_level:
            return DARK
        coarse = cv2.resize(grey, COARSE, interpolation=cv2.INTER_AREA)
        contrast = float(coarse.std())
        half = cv2.resize(grey, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
        fineness = _edges(grey) / max(_edges(half), 0.01)
        # Relative to contrast, since a dim image has weak edges, too.
        sharpness = _edges(grey) / max(float(grey.std()), 1.0)
        reference = float(np.percentile(self._sharpness, 75)) if self._sharpness else 0.0
        is_soft = fineness < self._config.blurred_fineness or (
            fineness < self._config.doubtful_fineness and sharpness < self._config.blur_ratio * reference
        )
        if contrast < self._config.bare_contrast:
            return BARE
        if previous is not None and previous.shape == grey.shape:
            (dx, dy), response = cv2.phaseCorrelate(previous, grey, _window(grey.shape[1], grey.shape[0]))
            if response > self._config.min_response and max(abs(dx), abs(dy)) > self._config.fast_shift * max(
                grey.shape
            ):
                return FAST
        if is_soft:
            return BLURRED
        self._sharpness.append(sharpness)
        return ""

    def _update(self) -> None:
        """Show the line that is due, if it is another one."""
        now = time.monotonic()
        if self._lost_since is not None and now - self._lost_since > self._config.lost_seconds:
            self._lost_since = None
        line = LOST if self._lost_since is not None else ""
        for candidate in (DARK, FAST, BLURRED, BARE):
            if self._votes.count(candidate) >= self._config.votes:
                line = candidate
                break
        if line != self._said and (not self._said or now - self._said_at >= self._config.min_seconds):
            self._said, self._said_at = line, now
            self._speaker.say(line)


def _edges(grey: NDArray[np.float32]) -> float:
    return float(np.abs(cv2.Laplacian(grey, cv2.CV_32F)).mean())


_WINDOWS: dict[tuple[int, int], NDArray[np.float32]] = {}


def _window(width: int, height: int) -> NDArray[np.float32]:
    """Hann window of phase correlation."""
    if (width, height) not in _WINDOWS:
        _WINDOWS[width, height] = np.asarray(cv2.createHanningWindow((width, height), cv2.CV_32F), np.float32)
    return _WINDOWS[width, height]
