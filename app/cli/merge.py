"""Command ``merge``: several results of one place become one."""

from pathlib import Path
from typing import Annotated

import typer

from stream_recon.app.cli.console import DONE, reported, result_consoles
from stream_recon.app.cli.options import DENSE_SIDE, Dense, DenseSide, Device, Mesh, option


@reported
def merge_command(
    folders: Annotated[list[Path], typer.Argument(metavar="OUT OUT...", help="Result folders of one place.")],
    output: Annotated[Path, option("The new result folder.", "--output", "-o", metavar="ALL")],
    mesh: Mesh = True,
    dense: Dense = "on",
    dense_side: DenseSide = DENSE_SIDE,
    device: Device = "auto",
) -> int:
    """Merge results of one place into a new one, refined jointly, in the world of the first.

    A result that shares no view with the others is named and left out. The given results do not change.
    """
    from stream_recon.app.cli.progress import TerminalObserver
    from stream_recon.app.engine.model_choice import ModelChoice
    from stream_recon.app.run.options import RunOptions
    from stream_recon.app.stages.merge import merge_results

    side = dense_side if dense == "on" else None
    options = RunOptions(model=ModelChoice(device=device), dense_side=side, mesh=mesh)
    out, err = result_consoles()
    with TerminalObserver(out, err) as observer:
        report = merge_results(folders, output, options, observer)
    out.print(f"{report.folder}: {report.frames} frames of {' + '.join(report.merged)}")
    return DONE
