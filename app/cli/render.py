"""The body of the command ``render``. Prints for the user."""

from pathlib import Path

from stream_recon.app.cli.console import DONE, PlainConsole
from stream_recon.app.cli.progress import steps_bar
from stream_recon.app.export.render.film import FilmOptions, render_film
from stream_recon.app.pipeline.process import stop_on_signals


def render(folder: Path, video: Path, options: FilmOptions, *, overwrite: bool) -> int:
    """Film a result folder; gives the exit code. Raises StreamReconError, or KeyboardInterrupt after Ctrl-C."""
    out, err = PlainConsole(soft_wrap=True), PlainConsole(stderr=True)
    with stop_on_signals() as stop, steps_bar(err) as bar:

        def show(what: str, done: int, total: int) -> None:
            if stop.requested:
                raise KeyboardInterrupt
            bar(what, done, total)

        description = render_film(folder, video, options, overwrite=overwrite, progress=show)
    out.print(f"{video}: {description}")
    return DONE
