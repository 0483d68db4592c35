"""Interfaces around a run: listeners of its results, a back end in front of them, observers of its progress."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult, PreparedFrame, Revision

if TYPE_CHECKING:
    from stream_recon.app.mesh.build import MeshReport
    from stream_recon.app.result.metric_scale import MetricScale
    from stream_recon.app.result.verdict import Verdict
    from stream_recon.app.slam.offline.report import RefinementReport
    from stream_recon.app.stages.dense import DenseReport


IMAGE_SIDE = 640
"""Longer side in pixels of images for listeners."""


class ResultListener(Protocol):
    """Gets every result and every revision once and in order, in one thread.

    A revision names only frames whose results were added; the pipeline checks that.
    """

    def add(self, result: FrameResult) -> None: ...

    def revise(self, revision: Revision) -> None: ...


class RefinementView(ResultListener, Protocol):
    """A viewer that shows revisions and the sparse map."""

    def show_map(self, points: NDArray[np.floating], edges: NDArray[np.integer]) -> None:
        """Show sparse points [N, 3] and loop edges, pairs [E, 2] of source frames."""


@runtime_checkable
class ImageListener(Protocol):
    """A `ResultListener` that also gets the source's images, such as a viewer."""

    def add_image(self, index: int, image: NDArray[np.uint8]) -> None:
        """The image [H, W, 3] of the keyframe whose result is added next, with sides of at most `IMAGE_SIDE`."""


class BackEnd(Protocol):
    """Gets results before the listeners; may change their poses, revise earlier ones, or hold some back.

    All calls come from one thread. Every result that goes in comes out once, before any revision of it.
    """

    @property
    def wants_grey(self) -> bool:
        """Whether frames need `PreparedFrame.grey`."""

    @property
    def status_line(self) -> str:
        """Figures for the user in one line; may be read by another thread."""

    @property
    def figures(self) -> dict[str, Any]:
        """The object ``online_mapping`` of ``run.json``; may be read by another thread."""

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[FrameResult | Revision]:
        """Take a result and its frame; returns the items that are ready for the listeners, in order."""

    def finish(self) -> Sequence[FrameResult | Revision]:
        """The remaining items, after the last result."""


class DelegatingBackEnd:
    """A `BackEnd` that delegates to another one; subclasses override the calls that they observe."""

    def __init__(self, back_end: BackEnd) -> None:
        self._back_end = back_end

    @property
    def wants_grey(self) -> bool:
        return self._back_end.wants_grey

    @property
    def status_line(self) -> str:
        return self._back_end.status_line

    @property
    def figures(self) -> dict[str, Any]:
        return self._back_end.figures

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[FrameResult | Revision]:
        return self._back_end.push(result, frame)

    def finish(self) -> Sequence[FrameResult | Revision]:
        return self._back_end.finish()


@dataclass(frozen=True)
class Progress:
    """State of a run, reported after some frames and after the last one."""

    frames: int
    frame_hint: int | None
    """Number of frames of the source, where it is known."""
    keyframes: int
    dropped: int
    fps: float
    """Average over the last frames."""
    memory_mb: float
    """Peak memory of a GPU, or else of this process."""
    notice: str | None = None
    """Message for the user: low tracking quality, blank images, or why the current segment began."""
    back_end: str = ""
    """The back end's status line."""


class RunObserver:
    """Gets the progress of a run. All methods do nothing here; subclasses override what they show.

    Reconstruction, refinement, metric scale and mesh call it in the thread that called them.
    """

    @property
    def paused(self) -> bool:
        """While it is true, no frame enters the engine. A live source drops and counts frames meanwhile."""
        return False

    def on_progress(self, progress: Progress) -> None:
        """After some frames, and after the last one."""

    def on_rebuild(self, done: int, total: int) -> None:
        """After each frame whose points are rebuilt at the end of the reconstruction."""

    def on_refine(self, share: float, step: str) -> None:
        """During refinement: the share done, and the name of the step."""

    def on_refine_points(self, done: int, total: int) -> None:
        """After each frame whose points are rebuilt by a refinement."""

    def on_refined(self, report: "RefinementReport | None") -> None:
        """At the end of a refinement; None: Ctrl-C ended it, and the result is unchanged."""

    def on_dense(self, done: int, total: int) -> None:
        """During dense stereo: the keyframes done."""

    def on_dense_points(self, done: int, total: int) -> None:
        """After each frame whose points are rebuilt from dense depth."""

    def on_densified(self, report: "DenseReport | None") -> None:
        """At the end of dense stereo; None: Ctrl-C ended it, and the result has no dense depth."""

    def on_scale(self, step: str, done: int, total: int) -> None:
        """During the recovery of metric scale: the step, and the frames done in it."""

    def on_scaled(self, unit: "MetricScale | None") -> None:
        """At the end of the recovery of metric scale; None: Ctrl-C ended it, and the result is unchanged."""

    def on_mesh(self, done: int, total: int) -> None:
        """While the mesh is made: the part done, of ``total``."""

    def on_meshed(self, report: "MeshReport | None") -> None:
        """At the end of the mesh; None: Ctrl-C ended it, and the result has none."""

    def on_verdict(self, verdict: "Verdict") -> None:
        """The judgement of the result, after its last step, or after an early end."""

    def on_message(self, line: str, *, warning: bool = False) -> None:
        """A line for the user."""
