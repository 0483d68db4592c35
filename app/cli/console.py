"""Output of commands: consoles, exit codes, and errors as one line."""

import functools
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn, ParamSpec

import typer
from rich.console import Console
from rich.text import Text

from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.core.output_file import is_disk_full
from stream_recon.app.core.progress_file import ProgressFile
from stream_recon.configs.errors import SourceLostError, StreamReconError

if TYPE_CHECKING:
    from stream_recon.app.result.verdict import Verdict

P = ParamSpec("P")

DONE = 0
FAILED = 1
"""Some scene of a batch failed and the others are done, or the verdict is one that ``--fail-on`` names."""
BAD_INPUT = 2
"""Input, options or machine do not allow the run: one line on stderr says what to do."""
SOURCE_LOST = 3
"""A live source did not return. What came is reconstructed."""
DISK_FULL = 4
"""The disk is full. Finished frames are kept."""
INTERRUPTED = 130
"""128 + SIGINT, as shells report a program that Ctrl-C ended. Finished frames are kept."""

PIPE_WIDTH = 200
"""Columns of tables where the output is not a terminal, so that no figure is cut off."""
MAX_LINE = 600
"""Characters of an error line: a file name may have thousands."""


def at_terminal() -> bool:
    """Whether a user can press Ctrl-C. Service managers close stdin."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


class PlainConsole(Console):
    """Prints text without markup. A reader that ends early, as ``head`` does, ends the output but not the run."""

    def __init__(self, *, stderr: bool = False, width: int | None = None, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, width=width, soft_wrap=soft_wrap, highlight=False, markup=False)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # The rest of the file's buffer would fail again when the interpreter ends.
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.file.fileno())
            os.close(null)


def wide_console() -> PlainConsole:
    """Console as wide as the terminal, or else wide enough for any table."""
    console = PlainConsole()
    return console if console.is_terminal else PlainConsole(width=PIPE_WIDTH)


def result_consoles() -> tuple[PlainConsole, PlainConsole]:
    """Consoles of stdout, for paths and results in one line each, and of stderr, for progress and warnings."""
    return PlainConsole(soft_wrap=True), PlainConsole(stderr=True)


@dataclass(frozen=True)
class Terminal:
    """What a command prints, and where."""

    as_json: bool = False
    """Stdout gets the result as one JSON object at the end, and stderr all lines for people."""
    progress: Literal["bars", "json"] = "bars"
    log_level: Literal["info", "warning", "error"] = "info"
    """Least level of what is printed; progress has the level ``info``."""

    def consoles(self) -> tuple[PlainConsole, PlainConsole]:
        """Consoles for paths and results, and for warnings."""
        out, err = result_consoles()
        if self.as_json:
            out = PlainConsole(stderr=True, soft_wrap=True)
        out.quiet, err.quiet = self.log_level != "info", self.log_level == "error"
        return out, err


VERDICT_COLOURS = {"good": "bold green", "unsure": "bold", "doubtful": "bold yellow", "failed": "bold red"}


def verdict_text(verdict: "Verdict", prefix: str = "") -> Text:
    """A verdict in one line, with its level in colour on a terminal. ``prefix``: what it is about."""
    return Text.assemble(prefix, (verdict.level, VERDICT_COLOURS[verdict.level]), f": {verdict.explanation}")


def reported(command: Callable[P, int]) -> Callable[P, None]:
    """Decorator of all commands: ends the program with their exit code; see `exit_code`."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        raise typer.Exit(exit_code(functools.partial(command, *args, **kwargs)))

    return run


def exit_code(command: Callable[[], int]) -> int:
    """Exit code of a command. Errors that users can act on become one line on stderr."""
    _escape_unprintable()
    try:
        with _sigterm_as_ctrl_c():
            return command()
    except StreamReconError as error:
        _print_failure(_shortened(error))
        return DISK_FULL if is_disk_full(error) else SOURCE_LOST if isinstance(error, SourceLostError) else BAD_INPUT
    except MemoryError:
        _print_failure("out of memory")
    except OSError as error:
        # Errors that no other place handles, such as a limit on open files.
        _print_failure(f"the system refuses an operation: {_shortened(error)}")
        return DISK_FULL if is_disk_full(error) else BAD_INPUT
    except ImportError as error:
        _print_failure(f"the program cannot be loaded (too little memory, or a broken installation): {error}")
    except (Cancelled, KeyboardInterrupt):
        _print_error("stopped")
        return INTERRUPTED
    return BAD_INPUT


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    try:
        previous = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # signals reach the main thread only
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _print_failure(reason: str) -> None:
    ProgressFile.from_environment().note(error=reason)
    _print_error(f"error: {reason}")


def _print_error(line: str) -> None:
    # The reader of stderr may have ended.
    with suppress(OSError, ValueError):
        typer.echo(f"stream-recon: {line}", err=True)


def _shortened(error: Exception) -> str:
    line = " ".join(str(error).split())
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE // 2]} ... {line[-MAX_LINE // 2 :]}"


def _escape_unprintable() -> None:
    """Print characters of file names that the terminal's encoding lacks as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
