"""Interfaces around a run: the back end in front of its listeners, and observers of its progress."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from stream_recon.app.core.types import FrameResult, PreparedFrame, Revision

if TYPE_CHECKING:
    from stream_recon.app.result.verdict import Verdict


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
    """Gets the progress of a run and of its stages. All methods do nothing here; subclasses override what they show.

    They are called in the thread that called the run.
    """

    @property
    def paused(self) -> bool:
        """While it is true, no frame enters the engine. A live source drops and counts frames meanwhile."""
        return False

    def on_progress(self, progress: Progress) -> None:
        """After some frames, and after the last one."""

    def on_stage(self, name: str, number: int, count: int) -> None:
        """A stage begins, the ``number``-th (from 1) of ``count``. Frames count as one where they come before."""

    def on_step(self, step: str, done: int, total: int, note: str = "") -> None:
        """The number done of a step, such as frames; ``note``: what it does at the moment."""

    def on_share(self, step: str, share: float, note: str = "") -> None:
        """As `on_step` with the share done, from 0 to 1."""

    def on_result(self, lines: Sequence[str]) -> None:
        """What a stage has found, in lines for the user."""

    def on_verdict(self, verdict: "Verdict") -> None:
        """The judgement of the result, after its last stage, or after an early end."""

    def on_message(self, line: str, *, warning: bool = False) -> None:
        """A line for the user."""
