"""Points of some keyframes alone for a viewer that has little time: other frames are poses and pictures in it."""

from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult, Revision

LEAST_SECONDS = 0.35
"""Time of the source between two keyframes with points; those of a walking person overlap for longer."""


class Page(Protocol):
    """What it needs of a viewer."""

    def add_image(self, index: int, image: NDArray[np.uint8]) -> None: ...

    def add(self, result: FrameResult) -> None: ...

    def revise(self, revision: Revision) -> None: ...


class KeyframePoints:
    """A `ResultListener` in front of a viewer. Keyframes overlap, so that nothing is missing in the view."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._shown_at = -np.inf

    def add_image(self, index: int, image: NDArray[np.uint8]) -> None:
        self._page.add_image(index, image)

    def add(self, result: FrameResult) -> None:
        if result.is_keyframe and result.timestamp - self._shown_at >= LEAST_SECONDS:
            self._shown_at = result.timestamp
            self._page.add(result)
        else:
            self._page.add(replace(result, depth=np.zeros_like(result.depth), is_keyframe=False))

    def revise(self, revision: Revision) -> None:
        self._page.revise(revision)
