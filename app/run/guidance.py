"""What a person who scans is told: results, and one line from the images as they arrive and from the results."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult, Revision
from stream_recon.app.publishing.tracking_state import TrackingState, result_message
from stream_recon.app.result.causes import BARE, BLURRED, DARK
from stream_recon.app.run.pictures import FAST, PICTURES, PictureCheck, PictureConfig

if TYPE_CHECKING:
    from stream_recon.app.sources.scan_folder import ScanFeedback

LOST = "Lost the place: turn back to what you have seen"
LINES = tuple(cause.line for cause in (DARK, FAST, BLURRED, BARE))
"""Lines on the picture, the most urgent first; at most one is shown."""


@dataclass(frozen=True)
class GuidanceConfig:
    """How long a line stays, and when the place is lost."""

    pictures: PictureConfig = PICTURES
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


class Guidance:
    """A `ResultListener` that also sees each image as it arrives. Both may come from threads of their own."""

    def __init__(self, tell: Callable[[dict[str, Any]], None], config: GuidanceConfig = DEFAULT_GUIDANCE) -> None:
        """``tell`` takes what the person is told: messages of the protocol of streams (docs/server.md)."""
        self._tell, self._config = tell, config
        self._lock = threading.Lock()
        self._votes: deque[str] = deque(maxlen=self._config.frames)
        self._check = PictureCheck(config.pictures)
        self._health: deque[float] = deque(maxlen=self._config.health_frames)
        self._segment = 0
        self._lost_since: float | None = None
        self._said, self._said_at = "", 0.0
        self._state = TrackingState()

    @staticmethod
    def of(feedback: "ScanFeedback") -> "Guidance":
        """Guidance of a scan, connected to its images."""
        guidance = Guidance(feedback.tell)
        feedback.observe = guidance.observe
        return guidance

    def observe(self, seconds: float, rgb: NDArray[np.uint8]) -> None:
        """Judge an image [H, W, 3] that arrived at ``seconds`` of the source."""
        with self._lock:
            fault = self._check.fault(rgb)
            self._votes.append(fault.line if fault else "")
            self._update()

    def add(self, result: FrameResult) -> None:
        self._state.add(result)
        self._tell(result_message(result, self._state.state))
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

    def _update(self) -> None:
        """Show the line that is due, if it is another one."""
        now = time.monotonic()
        if self._lost_since is not None and now - self._lost_since > self._config.lost_seconds:
            self._lost_since = None
        line = LOST if self._lost_since is not None else ""
        for candidate in LINES:
            if self._votes.count(candidate) >= self._config.votes:
                line = candidate
                break
        if line != self._said and (not self._said or now - self._said_at >= self._config.min_seconds):
            self._said, self._said_at = line, now
            self._tell({"type": "guidance", "text": line})
