"""Commands ``refine``, ``scale`` and ``merge``: the stages of a run, for finished or interrupted results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream_recon.app.cli.console import DONE, INTERRUPTED, reported, result_consoles
from stream_recon.app.cli.options import (
    DENSE_SIDE,
    SCALE_FORMS,
    Dense,
    DenseSide,
    Device,
    Folder,
    KeepMap,
    Mesh,
    option,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from stream_recon.app.sources.source import Source
    from stream_recon.app.stages.chain import RunPlan


@reported
def refine_command(
    folder: Folder,
    mesh: Mesh = True,
    keep_map: KeepMap = True,
    dense: Dense = "on",
    dense_side: DenseSide = DENSE_SIDE,
    device: Device = "auto",
) -> int:
    """Refine a result by offline bundle adjustment.

    It may be the first refinement or another one: it starts from the network's estimates and reads the source's images
    again. Where they are gone, it uses the result's own small images. Ctrl-C leaves the result as it was.
    """
    from stream_recon.app.engine.model_choice import ModelChoice
    from stream_recon.app.run.options import RunOptions
    from stream_recon.app.stages.again import plan_refinement

    side = dense_side if dense == "on" else None
    options = RunOptions(model=ModelChoice(device=device), dense_side=side, mesh=mesh, keep_map=keep_map)
    return _run_again(folder, *plan_refinement(folder, options))


@reported
def scale_command(
    folder: Folder, what: Annotated[str, typer.Argument(metavar="WHAT", help=f"One of {SCALE_FORMS}.")]
) -> int:
    """Convert a result to metres.

    Cameras, depth, points, tracks and all later exports are in metres then. The scale comes from a printed ArUco or
    AprilTag marker with a known side, the distance between the cameras of two frames, the camera's height above ground,
    a track of positions (GPX, NMEA, CSV, TUM), or the GPS positions of photographs. run.json records the scale and its
    error.
    A second call replaces the first. Ctrl-C leaves the result as it was.
    """
    from stream_recon.app.stages.again import plan_scale

    return _run_again(folder, plan_scale(folder, what), None)


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


def _run_again(folder: Path, plan: "RunPlan", open_again: "Callable[[], Source] | None") -> int:
    """Run stages on a result, which ends where it was: in metres, or in the world of another; gives the exit code."""
    from stream_recon.app.cli.progress import TerminalObserver
    from stream_recon.app.stages.chain import run_stages
    from stream_recon.app.stages.stage import StageContext

    with TerminalObserver(*result_consoles()) as observer:
        end = run_stages(plan, StageContext(folder, open_again, observer))
    if end.is_complete:
        end.check()
    return DONE if end.is_complete else INTERRUPTED
