"""State of a command for the server that started it: one small JSON file, replaced a few times a second."""

import json
import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from stream_recon.app.core.input_file import parse_json, read_file
from stream_recon.app.core.output_file import replacing

VARIABLE = "STREAM_RECON_PROGRESS"
"""Environment variable with the path of the file; commands write none without it."""
WRITE_SECONDS = 0.25
"""Least time between two writes of the same step."""
MAX_BYTES, READ_SECONDS = 1 << 16, 1.0
"""Bounds of a file that is read."""


class ProgressFile:
    """Writes the state of a command. Errors of the file never reach the command.

    The object has ``stage``, such as ``2 of 5: refinement``; ``step``, ``done``, ``total``, ``left`` (seconds, or
    null), ``fps`` (or null) and ``text`` once a step has begun; ``port`` once a viewer is open; and ``error``, one
    line, after a failure.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._state: dict[str, Any] = {}
        self._written: tuple[str, float] = ("", 0.0)

    @staticmethod
    def from_environment() -> "ProgressFile":
        """This process's file, which the environment names, or one that writes nothing."""
        return _file_at(os.environ.get(VARIABLE))

    def note(self, **values: Any) -> None:
        """Replace some values of the state at once."""
        self._state |= values
        self._store()

    def _store(self) -> None:
        if self._path is None:
            return
        with suppress(OSError, ValueError), replacing(self._path) as file:
            file.write(self._text().encode())

    def _text(self) -> str:
        return json.dumps(self._state, allow_nan=False)

    def write(
        self, step: str, done: float, total: float | None, left: float | None, fps: float | None = None, text: str = ""
    ) -> None:
        """Replace the step's state, unless the same step was written a moment ago and is not complete."""
        now = time.monotonic()
        if self._written[0] == step and now - self._written[1] < WRITE_SECONDS and done != total:
            return
        self._written = step, now
        self.note(step=step, done=done, total=total, left=left, fps=fps, text=text)


class ProgressLines(ProgressFile):
    """Prints the state of a command as lines of JSON, with the keys of `ProgressFile`."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(None)
        self._stream = stream

    def _store(self) -> None:
        with suppress(OSError, ValueError):
            print(self._text(), file=self._stream, flush=True)


@cache
def _file_at(path: str | None) -> ProgressFile:
    return ProgressFile(Path(path) if path else None)


def read_progress(path: Path) -> dict[str, Any]:
    """The last state that was written; empty where there is none."""
    try:
        state = parse_json(read_file(path, MAX_BYTES, READ_SECONDS))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}
