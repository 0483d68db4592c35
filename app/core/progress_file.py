"""Progress of a command for the server that started it: one small JSON file, replaced a few times a second."""

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "STREAM_RECON_PROGRESS"
"""Environment variable with the path of the file; commands write none without it."""
WRITE_SECONDS = 0.25
"""Least time between two writes of the same step."""


class ProgressFile:
    """Writes the state of a command. Errors of the file never reach the command.

    The object has ``step``, ``done``, ``total``, ``left`` (seconds, or null), ``fps`` (or null) and ``text``.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._written: tuple[str, float] = ("", 0.0)

    @staticmethod
    def from_environment() -> "ProgressFile":
        """The file that the environment names, or one that writes nothing."""
        named = os.environ.get(VARIABLE)
        return ProgressFile(Path(named) if named else None)

    def write(
        self, step: str, done: float, total: float | None, left: float | None, fps: float | None = None, text: str = ""
    ) -> None:
        """Replace the state, unless the same step was written a moment ago and is not complete."""
        if self._path is None:
            return
        now = time.monotonic()
        if self._written[0] == step and now - self._written[1] < WRITE_SECONDS and done != total:
            return
        self._written = step, now
        state = {"step": step, "done": done, "total": total, "left": left, "fps": fps, "text": text}
        part = self._path.with_suffix(".part")
        with suppress(OSError, ValueError):
            part.write_text(json.dumps(state, allow_nan=False), encoding="utf-8")
            part.replace(self._path)


def read_progress(path: Path) -> dict[str, Any]:
    """The last state that was written; empty where there is none."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}
