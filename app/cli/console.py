"""Where commands print.

Exit codes of all commands.
"""

import os
from contextlib import suppress

from rich.console import Console

PIPE_WIDTH = 200
"""Columns of tables where the output is not a terminal, so that no figure is cut off."""


class PlainConsole(Console):
    """Prints text as it is. A reader that goes away, as ``head`` does, costs what follows, not the run."""

    def __init__(self, *, stderr: bool = False, width: int | None = None, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, width=width, soft_wrap=soft_wrap, highlight=False, markup=False)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # What is in the file's buffer would fail once more when the interpreter ends.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.file.fileno())
            os.close(nowhere)


def wide_console() -> PlainConsole:
    """As wide as the terminal, or else as any table."""
    console = PlainConsole()
    return console if console.is_terminal else PlainConsole(width=PIPE_WIDTH)


DONE = 0
FAILED = 1
"""Some scene of a batch failed; the others are done."""
BAD_INPUT = 2
"""Input, options or surroundings that cannot work: one line on stderr says what to do."""
INTERRUPTED = 130
"""128 + SIGINT, as shells report a program that Ctrl-C ended. What was finished is kept."""
