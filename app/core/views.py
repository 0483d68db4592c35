"""Who gets the results of a run while it goes on: listeners, and the view that shows all of it."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.splats import Splats
from stream_recon.app.core.types import FrameResult, Revision

IMAGE_SIDE = 640
"""Longer side in pixels of images for listeners."""


class ResultListener(Protocol):
    """Gets every result and every revision once and in order, in one thread.

    A revision names only frames whose results were added; the pipeline checks that. Where it has a method
    ``add_image(index, image)``, that gets the source's image [H, W, 3] of each keyframe just before its result, with
    sides of at most `IMAGE_SIDE`.
    """

    def add(self, result: FrameResult) -> None:
        """A frame's result, in the order of the frames."""

    def revise(self, revision: Revision) -> None:
        """New poses and depth scales of frames that were added before."""


class RunView(ResultListener, Protocol):
    """Shows a run and how its result changes. Calls return at once."""

    @property
    def paused(self) -> bool:
        """Whether the user has paused the run."""

    def add_image(self, index: int, image: NDArray[np.uint8]) -> None:
        """See `ResultListener`."""

    def status(self, text: str) -> None:
        """Show ``text`` (markdown) in place of the last one."""

    def show_map(self, points: NDArray[np.floating], edges: NDArray[np.integer]) -> None:
        """Show sparse points [N, 3] and loop edges, pairs [E, 2] of source frames."""

    def show_dense(self, result: FrameResult, image: NDArray[np.uint8]) -> None:
        """Show a keyframe's dense depth with its image [H, W, 3]."""

    def show_splats(self, splats: Splats, most: int) -> None:
        """Show splats, at most ``most`` of them."""

    def show_verdict(self, level: str, text: str) -> None:
        """Show the judgement of the result in its level's colour, and its reason with what to do."""

    def offer_stop(self, stop: Callable[[], None] | None) -> None:
        """Offer to end the present step by a call of ``stop``; None: no longer."""
