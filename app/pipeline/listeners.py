"""Who takes what the engine gives: listeners, and a stage in front of them."""

from collections.abc import Sequence
from typing import Any, Protocol

from stream_recon.app.core.types import FrameResult, PreparedFrame, Revision


class ResultListener(Protocol):
    """Hears every result and every revision once and in order, all in one thread.

    `revise` names only frames whose results were added before: the pipeline checks it.
    """

    def add(self, result: FrameResult) -> None: ...

    def revise(self, revision: Revision) -> None: ...


class BackEnd(Protocol):
    """Stands between engine and listeners and may place results anew, revise earlier ones, or hold some back a while.

    All calls come from one thread of its own. Every result that goes in comes out once, before any revision of it.
    """

    @property
    def wants_grey(self) -> bool:
        """Whether frames shall carry `PreparedFrame.grey`."""

    @property
    def status_line(self) -> str:
        """A line of figures for the user; may be asked for in another thread."""

    @property
    def figures(self) -> dict[str, Any]:
        """What ``run.json`` keeps of it; likewise."""

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[FrameResult | Revision]:
        """Take a result with the frame that it is of; gives what is ready for the listeners, in order."""

    def finish(self) -> Sequence[FrameResult | Revision]:
        """What is left to say once the last result is in."""


class DelegatingBackEnd:
    """A `BackEnd` that has another one do everything: whoever watches it overrides what is to be watched."""

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
