"""A stage: one step that follows the last frame of a run and changes its finished result folder."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

from stream_recon.app.core.cancel import Cancel
from stream_recon.app.core.views import ResultListener, RunView
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.run.listeners import RunObserver
from stream_recon.app.run.options import RunOptions
from stream_recon.app.sources.source import Source


@dataclass
class StageContext:
    """What the stages of one result share."""

    folder: Path
    open_again: Callable[[], Source] | None = None
    """Opens the source again; None: only what the result holds is there."""
    observer: RunObserver = field(default_factory=RunObserver)
    listeners: Sequence[ResultListener] = ()
    """Get the revision of a refinement."""
    view: RunView | None = None
    cancel: Cancel = field(default_factory=Cancel)
    lock: FolderLock | None = None
    """The folder's lock where the caller holds it; None: the chain takes it."""
    follows_frames: bool = False
    """The stages follow a run's frames, which count as its first step."""
    max_bytes: int | None = None
    """Bound for all files of the result; None: no bound."""

    @property
    def result(self) -> ResultFolder:
        """The result as it is now. Raises OutputError."""
        return read_result(self.folder)

    def progress(self, step: str) -> Callable[[int, int], None]:
        """Function for the number done and the total of a step. It raises Cancelled."""
        return self.cancel.checked(partial(self.observer.on_step, step))


class Stage(ABC):
    """One stage with its options. Order, lock, Ctrl-C, errors of memory and the verdict are the chain's work."""

    name: ClassVar[str]
    absent: ClassVar[str] = ""
    """What the user is told before the reason of `why_not`."""
    stopped: ClassVar[str] = ""
    """What the user is told where it was cancelled."""
    outlasts_errors: ClassVar[bool] = False
    """After an InputError the other stages run all the same, since they are part of a complete result."""

    @classmethod
    @abstractmethod
    def of(cls, options: RunOptions) -> "Stage | None":
        """The stage that these options ask for; None: they ask for none."""

    def check(self) -> None:  # noqa: B027 - most stages have nothing to check
        """Find out before anything begins that it cannot be done. Raises StreamReconError."""

    @abstractmethod
    def is_done(self, context: StageContext) -> bool:
        """Whether the result has what the stage gives."""

    def why_not(self, context: StageContext) -> str | None:
        """Why a result like this gets nothing from the stage, which is no error; None: it does."""
        return None

    @abstractmethod
    def run(self, context: StageContext) -> Sequence[str]:
        """Change the result; returns lines for the user. It is unchanged after Cancelled and StreamReconError."""
