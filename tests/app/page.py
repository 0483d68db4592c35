"""Stand-in for the viewer's page that records its calls."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.splats import Splats
from stream_recon.app.core.types import FrameResult, Revision


class Page:
    """Records results, revisions, maps and status texts."""

    paused = False

    def __init__(self) -> None:
        self.added: list[FrameResult] = []
        self.revisions: list[Revision] = []
        self.maps: list[tuple[int, int]] = []
        """Number of points and edges of each map."""
        self.said: list[str] = []
        self.images: list[int] = []
        self.dense: list[FrameResult] = []
        self.splats: list[int] = []
        self.stop: Callable[[], None] | None = None
        self.verdicts: list[tuple[str, str]] = []

    def add(self, result: FrameResult) -> None:
        self.added.append(result)

    def revise(self, revision: Revision) -> None:
        self.revisions.append(revision)

    def show_map(self, points: NDArray[np.floating], edges: NDArray[np.integer]) -> None:
        assert points.shape[1:] == (3,) and edges.shape[1:] == (2,)
        self.maps.append((len(points), len(edges)))

    def add_image(self, index: int, image: NDArray[np.uint8]) -> None:
        self.images.append(index)

    def show_dense(self, result: FrameResult, image: NDArray[np.uint8]) -> None:
        self.dense.append(result)

    def show_splats(self, splats: Splats, most: int) -> None:
        self.splats.append(len(splats))

    def offer_stop(self, stop: Callable[[], None] | None) -> None:
        self.stop = stop

    def status(self, text: str) -> None:
        self.said.append(text)

    def show_verdict(self, level: str, text: str) -> None:
        self.verdicts.append((level, text))
