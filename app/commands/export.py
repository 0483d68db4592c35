"""The body of the command ``export``. Prints for the user."""

from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stream_recon.app.commands.console import PlainConsole
from stream_recon.app.commands.exit_codes import DONE
from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportOptions
from stream_recon.app.run.interrupts import stop_on_signals


def export_folder(folder: Path, name: str, target: Path | None, options: ExportOptions, *, overwrite: bool) -> int:
    """Export a result folder; gives the exit code. Raises StreamReconError, or KeyboardInterrupt after Ctrl-C."""
    out, err = PlainConsole(soft_wrap=True), PlainConsole(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn()
    with stop_on_signals() as stop, Progress(*columns, console=err, expand=True, refresh_per_second=5) as bar:
        task = bar.add_task("frames", total=None)

        def show(done: int, total: int) -> None:
            if stop.requested:
                raise KeyboardInterrupt
            bar.update(task, completed=done, total=total)

        where, told = export(folder, name, target, options, overwrite=overwrite, progress=show)
    for warning in told.warnings:
        err.print(f"warning: {warning}", soft_wrap=True)
    out.print(f"{where}: {told.summary}")
    return DONE
