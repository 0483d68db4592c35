"""Entry point: a group of commands, of which `reconstruct` is the default.

Command files import only what their options need; bodies import the rest, so that ``--help`` is fast, and torch is
loaded after threads and GPUs are configured.
"""

import atexit
import copy
import difflib
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer
import typer.core

from stream_recon.app.cli.batch import batch_command, datasets_command
from stream_recon.app.cli.console import exit_code
from stream_recon.app.cli.demo import demo_command
from stream_recon.app.cli.evaluate import eval_command
from stream_recon.app.cli.export import convert_command, export_command, render_command
from stream_recon.app.cli.finish import merge_command, refine_command, scale_command
from stream_recon.app.cli.localize import localize_command
from stream_recon.app.cli.plan import plan_command
from stream_recon.app.cli.reconstruct import reconstruct_command
from stream_recon.app.cli.serve import serve_command
from stream_recon.app.cli.splat import splat_command
from stream_recon.app.cli.view import view_command
from stream_recon.configs.errors import InputError

PROGRAM = "stream-recon"
DEFAULT = "reconstruct"
"""Command that gets the arguments where the first one is no command."""
COMMANDS: dict[str, Callable[..., None]] = {
    DEFAULT: reconstruct_command,
    "demo": demo_command,
    "view": view_command,
    "serve": serve_command,
    "refine": refine_command,
    "scale": scale_command,
    "splat": splat_command,
    "localize": localize_command,
    "merge": merge_command,
    "export": export_command,
    "render": render_command,
    "batch": batch_command,
    "datasets": datasets_command,
    "eval": eval_command,
    "plan": plan_command,
    "convert": convert_command,
}
EPILOG = (
    "A word is a command only as the first argument; for a video or folder with such a name write ./view. "
    "Exit codes: 0 done, 1 some scene failed or --fail-on, 2 bad input, 3 lost live source, 4 disk full, 130 stopped "
    "by Ctrl-C (finished frames are kept)."
)


class DefaultCommandGroup(typer.core.TyperGroup):
    """Commands; without a command word the arguments go to `DEFAULT`, whose options ``--help`` shows, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # While the shell completes a first word, commands are offered next to what the default command takes.
        is_empty_completion = not args and ctx.resilient_parsing
        own_options = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        if not is_empty_completion and (not args or args[0] not in {*self.commands, *own_options}):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS] SOURCE | COMMAND [ARGS]..."]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        shown = copy.copy(self)
        shown.params = [*self.commands[DEFAULT].params, *self.params]
        super(DefaultCommandGroup, shown).format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        default = self.commands[DEFAULT]
        context = default.make_context(DEFAULT, [], parent=ctx, resilient_parsing=True)
        return [*super().shell_complete(ctx, incomplete), *default.shell_complete(context, incomplete)]


def _help(command: Callable[..., None]) -> str:
    """The docstring with each paragraph in one line, which the terminal wraps."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


app = typer.Typer(cls=DefaultCommandGroup, add_completion=True, epilog=EPILOG, help=_help(reconstruct_command))
for word, command in COMMANDS.items():
    app.command(word, help=_help(command))(command)


def program() -> None:
    """`main` in a process that then ends at once.

    Python's own end takes half a second with torch, and aborts where a camera's thread still waits in OpenCV.
    """
    code: object = None
    try:
        main()
    except SystemExit as end:
        code = end.code
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main() -> None:
    """Run the program with the arguments of the command line."""
    arguments = sys.argv[1:]
    if len(arguments) == 1 and arguments[0] in COMMANDS and Path(arguments[0]).exists():
        sys.exit(exit_code(lambda: _refuse_name(arguments[0])))
    if arguments and arguments[0] not in COMMANDS:
        _leave_where_names_are_misread(arguments)
    typer.main.get_command(app).main(arguments, prog_name=PROGRAM)


def _leave_where_names_are_misread(arguments: list[str]) -> None:
    """Exit with a hint at a misspelt command, a pattern that the shell expanded, or a file named like an option."""
    first = arguments[0]
    if first.startswith("-") and Path(first).exists():
        sys.exit(exit_code(lambda: _refuse(f"for the file {first} write ./{first}")))
    images = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp")
    similar = difflib.get_close_matches(first, COMMANDS, n=1, cutoff=0.75)
    if similar and first.isalpha() and not Path(first).exists():
        sys.exit(exit_code(lambda: _refuse(f"no command, file or folder '{first}': did you mean '{similar[0]}'?")))
    if len(arguments) > 1 and all(name.lower().endswith(images) and Path(name).is_file() for name in arguments[:2]):
        folder = Path(first).parent
        sys.exit(exit_code(lambda: _refuse(f"several images: give their folder, {folder}, or a pattern in quotes")))


def _refuse(message: str) -> int:
    raise InputError(message)


def _refuse_name(word: str) -> int:
    raise InputError(f"'{word}' is a command: for the file or folder of that name write ./{word}")


if __name__ == "__main__":
    program()
