"""A reconstruction as given on the command line, and the name of its result folder."""

import dataclasses
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stream_recon.app.cli.console import Terminal
from stream_recon.app.cli.view import ViewerChoice

if TYPE_CHECKING:
    from stream_recon.app.result.verdict import Level
    from stream_recon.app.run.options import RunOptions

MAX_NAME = 80
"""Characters of the name of a default result folder; a source's name may be longer than file systems allow."""


def at_terminal() -> bool:
    """Whether a user can press Ctrl-C. Service managers close stdin."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


@dataclasses.dataclass(frozen=True)
class ReconstructJob:
    """A source, the options of its run, and where the result goes."""

    spec: str
    """The source; see `open_source`."""
    options: "RunOptions"
    view: ViewerChoice | None = None
    output: Path | None = None
    overwrite: bool = False
    resume: bool = False
    terminal: Terminal = dataclasses.field(default_factory=Terminal)
    fail_on: "Level | None" = None
    """Verdict from which on the exit code is 1; None: none."""
    on_finished: Callable[[Path], None] = lambda folder: None
    """Called with the complete result, before the viewer stays open."""


def default_output(spec: str, overwrite: bool) -> Path:
    """``NAME-recon`` in the current folder; where it exists, the next free number unless ``overwrite`` is set."""
    from stream_recon.app.sources.source import ADDRESS

    if ADDRESS.match(spec):
        name = urlsplit(spec).hostname or "stream"
    elif spec.isdecimal() and not Path(spec).exists():
        name = f"camera-{spec}"
    else:
        path = Path(spec).expanduser().resolve()
        name = path.name if _is_folder(path) else path.stem
    base = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:MAX_NAME] or "stream"
    folder, number = Path(f"{base}-recon"), 1
    while folder.exists() and not overwrite:
        number += 1
        folder = Path(f"{base}-recon-{number}")
    return folder


def may_exist(spec: str) -> bool:
    """Whether a source is worth loading the network for; found out without imports."""
    with suppress(OSError, RuntimeError):  # such as a name that is too long, or an unknown user
        return "://" in spec or spec.isdecimal() or Path(spec).expanduser().exists()
    return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # such as a name that is too long
        return False
