"""Commands ``refine`` and ``scale``: the last steps of a run, for a finished or interrupted result."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream_recon.app.cli.console import DONE, INTERRUPTED, reported, result_consoles
from stream_recon.app.cli.options import DENSE_SIDE, SCALE_FORMS, Dense, DenseSide, Device, Folder, KeepMap, Mesh

if TYPE_CHECKING:
    from stream_recon.app.stages.dense import DenseOptions


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
    from stream_recon.app.stages.dense import DenseOptions

    return refine_folder(folder, mesh, DenseOptions(dense_side, device) if dense == "on" else None, keep_map)


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
    return scale_folder(folder, what)


def refine_folder(folder: Path, mesh: bool = True, dense: "DenseOptions | None" = None, keep_map: bool = True) -> int:
    """Refine a result, compute its dense depth, bring it to metres again if it was, and make its mesh.

    Returns the exit code.

    Raises StreamReconError.
    """
    from stream_recon.app.cli.progress import TerminalObserver
    from stream_recon.app.export.source_images import source_of
    from stream_recon.app.result.folder import read_result
    from stream_recon.app.result.run_record import ONTO
    from stream_recon.app.stages.finish import Finisher, FinishSteps

    result = read_result(folder)
    unit, earlier = result.metric_scale, result.run.get(ONTO)
    onto = Path(earlier["result"]) if isinstance(earlier, dict) and isinstance(earlier.get("result"), str) else None
    with TerminalObserver(*result_consoles()) as observer:
        finisher = Finisher(folder, source_of(result), observer, keep_map=keep_map)
        if finisher.refine() is None:
            return INTERRUPTED
        steps = FinishSteps(False, None, mesh, dense, onto)
        if unit is not None and onto is None:
            observer.on_message(f"again to metres, by {unit.given}")
            steps = FinishSteps.parse(refine=False, scale_from=unit.given, mesh=mesh, dense=dense)
        return DONE if finisher.run(steps) else INTERRUPTED


def scale_folder(folder: Path, what: str) -> int:
    """Convert a result to metres; returns the exit code. Raises StreamReconError."""
    from stream_recon.app.cli.progress import TerminalObserver
    from stream_recon.app.result.folder import read_result
    from stream_recon.app.result.mesh import MESH_NAME
    from stream_recon.app.stages.finish import Finisher, FinishSteps

    read_result(folder)  # an error before a lock file is written
    steps = FinishSteps.parse(refine=False, scale_from=what, mesh=(folder / MESH_NAME).exists())
    with TerminalObserver(*result_consoles()) as observer:
        return DONE if Finisher(folder, None, observer).run(steps) else INTERRUPTED
