"""Points of some keyframes alone for a viewer that has little time: other frames are poses and pictures in it."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult, Revision
from stream_recon.app.core.views import RunView

MIN_SECONDS = 0.35
"""Time of the source between two keyframes with points; those of a walking person overlap for longer."""
UPDATE_SHARE = 0.05
"""Largest share of the time that the viewer takes."""


class KeyframePoints:
    """A `ResultListener` in front of a viewer. Keyframes overlap, so that nothing is missing in the view."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._shown_at = -np.inf

    def add_image(self, index: int, image: NDArray[np.uint8]) -> None:
        self._view.add_image(index, image)

    def add(self, result: FrameResult) -> None:
        if result.is_keyframe and result.timestamp - self._shown_at >= MIN_SECONDS:
            self._shown_at = result.timestamp
            self._view.add(result)
        else:
            self._view.add(replace(result, depth=np.zeros_like(result.depth), is_keyframe=False))

    def revise(self, revision: Revision) -> None:
        self._view.revise(revision)
