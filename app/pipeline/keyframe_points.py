"""Points of keyframes alone for a viewer that has little time: other frames show in it as poses and pictures."""

from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult, Revision


class Page(Protocol):
    """What it needs of a viewer."""

    def add_image(self, index: int, image: NDArray[np.uint8]) -> None: ...

    def add(self, result: FrameResult) -> None: ...

    def revise(self, revision: Revision) -> None: ...


class KeyframePoints:
    """A `ResultListener` in front of a viewer. Keyframes overlap, so that nothing is missing in the view."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def add_image(self, index: int, image: NDArray[np.uint8]) -> None:
        self._page.add_image(index, image)

    def add(self, result: FrameResult) -> None:
        self._page.add(result if result.is_keyframe else replace(result, depth=np.zeros_like(result.depth)))

    def revise(self, revision: Revision) -> None:
        self._page.revise(revision)
