"""State of tracking for diagnostics, from the health of the latest frames."""

import math
from collections import deque
from dataclasses import asdict
from typing import Any

from stream_recon.app.core.types import FrameResult
from stream_recon.app.publishing.frame_tree import Tracked
from stream_recon.app.publishing.messages import State

WINDOW = 5
"""Frames over which health is averaged, as in the run's own record of tracking quality."""
LOW, RECOVERED = 0.25, 0.4
"""Mean health below which tracking is weak, and above which it is good again."""
NO_HEALTH = 0.02
"""Mean health below which consecutive frames have nothing in common: the pose is a guess."""


class TrackingState:
    """State after each frame."""

    def __init__(self, silence_s: float = math.inf) -> None:
        """``silence_s``: time without a frame after which tracking is lost; infinite for a file."""
        self.state = State.INITIALISING
        self.reason = "no frame yet"
        self._silence_s = silence_s
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._segment: int | None = None

    def add(self, frame: Tracked | FrameResult) -> None:
        """Take the next frame."""
        if self._segment is not None and frame.segment != self._segment:
            self._recent.clear()
            self.state, self.reason = State.LOST, "the video was interrupted: the pose since then is a guess"
        self._segment = frame.segment
        if frame.health is None:
            if self.state is State.INITIALISING:
                self.reason = "the first frame has no predecessor"
            return
        self._recent.append(frame.health)
        mean = sum(self._recent) / len(self._recent)
        if mean < NO_HEALTH:
            self.state, self.reason = State.LOST, "consecutive frames have nothing in common"
        elif mean >= RECOVERED:
            self.state, self.reason = State.TRACKING, ""
        elif mean < LOW:
            self.state, self.reason = State.WEAK, "consecutive frames do not agree well"
        elif self.state is not State.TRACKING:
            self.state, self.reason = State.WEAK, "tracking recovers"

    def silent(self, seconds: float) -> None:
        """No frame has arrived for some time."""
        if seconds > self._silence_s and self._segment is not None:
            self.state, self.reason = State.LOST, f"no frame for {seconds:.0f} s"
            self._recent.clear()


def result_message(result: FrameResult, state: State) -> dict[str, Any]:
    """The message ``result`` of the protocol of streams (docs/server.md), with the frame's index as its number."""
    return {
        "type": "result",
        "frame": result.index,
        "time": result.timestamp,
        "pose": result.T_world_camera.tolist(),
        "intrinsics": asdict(result.intrinsics),
        "segment": result.segment,
        "keyframe": result.is_keyframe,
        "health": result.health,
        "state": state,
    }
