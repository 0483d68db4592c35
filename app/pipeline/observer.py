"""Progress of a run, and the interface through which commands show it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stream_recon.app.result.metric_scale import MetricScale
    from stream_recon.app.slam.offline.report import RefinementReport


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

    Reconstruction, refinement and metric scale call it in the thread that called them.
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

    def on_scale(self, step: str, done: int, total: int) -> None:
        """During the recovery of metric scale: the step, and the frames done in it."""

    def on_scaled(self, unit: "MetricScale | None") -> None:
        """At the end of the recovery of metric scale; None: Ctrl-C ended it, and the result is unchanged."""

    def on_message(self, line: str, *, warning: bool = False) -> None:
        """A line for the user."""
