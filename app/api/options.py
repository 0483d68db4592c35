"""Checks of options, which the command line's parser does otherwise, and progress for a function of the user."""

from collections.abc import Callable, Collection

from stream_recon.app.run.listeners import Progress, RunObserver
from stream_recon.configs.errors import ConfigError


def chosen(name: str, value: object, choices: Collection[str]) -> None:
    """Raises ConfigError where an option has none of its values."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}: use {', '.join(choices)}")


def dense_side_of(dense: str, dense_side: int) -> int | None:
    """Longer side of dense depth maps; None: none are made. Raises ConfigError."""
    chosen("dense", dense, ("on", "off"))
    return dense_side if dense == "on" else None


OnProgress = Callable[[str, float | None], object]
"""Gets the step under way, such as ``frames``, and the share of it that is done; None: its length is not known."""


class ProgressCalls(RunObserver):
    """Calls a function with the progress; None: nothing."""

    def __init__(self, call: OnProgress | None) -> None:
        self._call: OnProgress = call or (lambda step, share: None)

    def on_progress(self, progress: Progress) -> None:
        hint = progress.frame_hint
        self._call("frames", None if not hint else min(progress.frames / hint, 1.0))

    def on_stage(self, name: str, number: int, count: int) -> None:
        self._call(name, 0.0)

    def on_step(self, step: str, done: int, total: int, note: str = "") -> None:
        self._call(step, done / total if total else None)

    def on_share(self, step: str, share: float, note: str = "") -> None:
        self._call(step, share)
