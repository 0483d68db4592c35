"""Interfaces of what gets the engine's results: listeners, and a back end in front of them."""

from collections.abc import Sequence
from typing import Any, Protocol

from stream_recon.app.core.types import FrameResult, PreparedFrame, Revision


class ResultListener(Protocol):
    """Gets every result and every revision once and in order, in one thread.

    A revision names only frames whose results were added; the pipeline checks that.
    """

    def add(self, result: FrameResult) -> None: ...

    def revise(self, revision: Revision) -> None: ...


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
