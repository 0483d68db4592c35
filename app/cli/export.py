"""The body of the command ``export``. Prints for the user."""

from pathlib import Path

from stream_recon.app.cli.console import DONE, PlainConsole
from stream_recon.app.cli.progress import steps_bar
from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportOptions
from stream_recon.app.pipeline.process import stop_on_signals


def export_folder(folder: Path, name: str, target: Path | None, options: ExportOptions, *, overwrite: bool) -> int:
    """Export a result folder; gives the exit code. Raises StreamReconError, or KeyboardInterrupt after Ctrl-C."""
    out, err = PlainConsole(soft_wrap=True), PlainConsole(stderr=True)
    with stop_on_signals() as stop, steps_bar(err) as bar:

        def show(done: int, total: int) -> None:
            if stop.requested:
                raise KeyboardInterrupt
            bar("frames", done, total)

        where, report = export(folder, name, target, options, overwrite=overwrite, progress=show)
    for warning in report.warnings:
        err.print(f"warning: {warning}", soft_wrap=True)
    out.print(f"{where}: {report.summary}")
    return DONE
