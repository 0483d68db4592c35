"""Command ``splat``: Gaussian splats trained from a result."""

import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stream_recon.app.cli.console import DONE, INTERRUPTED, at_terminal, reported, result_consoles
from stream_recon.app.cli.downloads import result_name
from stream_recon.app.cli.options import VIEWER, Folder, Host, Overwrite, Port, PublicAddress, Token, option
from stream_recon.app.cli.view import ViewerChoice, show_all
from stream_recon.configs.errors import StreamReconError

if TYPE_CHECKING:
    from rich.console import Console

    from stream_recon.app.viewer.viewer import Viewer

STEPS, MAX_SPLATS, MAX_SIDE = 7_000, 500_000, 640
"""Defaults of the options."""


@reported
def splat_command(
    folder: Folder,
    steps: Annotated[int, option("Steps of the training.", min=1)] = STEPS,
    output: Annotated[
        Path | None,
        option("Write them also to FILE.ply or, a tenth as large, FILE.spz.", "--output", "-o", metavar="FILE"),
    ] = None,
    overwrite: Overwrite = False,
    resume: Annotated[bool, option("Continue a stopped training.", "--resume")] = False,
    frames: Annotated[
        str | None, option("Images that are used, up to 300; default: keyframes.", metavar="keyframes|all|N")
    ] = None,
    max_side: Annotated[int, option("Longer side of the images in pixels.", min=32)] = MAX_SIDE,
    max_splats: Annotated[int, option("Most splats; fewer where the GPU has less memory.", min=1)] = MAX_SPLATS,
    viewer: Annotated[bool, option("Serve a live view.", "--viewer/--no-viewer", panel=VIEWER)] = True,
    host: Host = "127.0.0.1",
    port: Port = None,
    token: Token = True,
    public_address: PublicAddress = None,
    keep_open: Annotated[
        bool, option("Keep the viewer open at the end; always at a terminal.", "--keep-open", panel=VIEWER)
    ] = False,
) -> int:
    """Train Gaussian splats from a result, on an NVIDIA GPU.

    They become splats.ply of the result, and 'export --format splats' gives them to other programs. Needs the extra
    'splat', which is gsplat, and nvcc, with which gsplat compiles its kernels at the first start, for some minutes.
    Every eighth image is held out and measures them. Ctrl-C keeps what is there, and --resume continues it.
    """
    from stream_recon.app.cli.progress import TerminalObserver
    from stream_recon.app.export.target import check_target
    from stream_recon.app.result.folder import read_result
    from stream_recon.app.stages.chain import RunPlan, run_stages
    from stream_recon.app.stages.splats import SplatStage
    from stream_recon.app.stages.stage import StageContext
    from stream_recon.configs.errors import ConfigError

    result = read_result(folder)
    if output is not None:
        if output.suffix not in (".ply", ".spz"):
            raise ConfigError(f"-o {output}: use NAME.ply or NAME.spz")
        check_target(output, overwrite, is_file=True)
    SplatStage().check()
    from stream_recon.app.splat.job import SplatOptions
    from stream_recon.app.splat.scene import SceneOptions
    from stream_recon.app.splat.trainer import TrainOptions

    out, err = result_consoles()
    with ExitStack() as stack:
        view = ViewerChoice(host, port, keep_open or at_terminal(), token, public_address) if viewer else None
        page = stack.enter_context(view.open(result.points, out, err)) if view else None
        if page is not None:
            page.name(result_name(folder))
            # Frames come while the training begins.
            threading.Thread(target=_show_finished, args=(page, folder), daemon=True).start()
        stage = SplatStage(SplatOptions(TrainOptions(steps, max_splats), SceneOptions(frames, max_side), resume))
        with TerminalObserver(out, err, page) as observer:
            end = run_stages(RunPlan((stage,), again=True), StageContext(folder, observer=observer, view=page))
        if output is not None:
            _export(folder, output, overwrite, out)
        if page is not None and view is not None and end.is_complete:
            view.wait(page, folder, out)
    return DONE if end.is_complete else INTERRUPTED


def _show_finished(page: "Viewer", folder: Path) -> None:
    """Show a result's frames and mesh beside its splats."""
    from stream_recon.app.result.folder import read_result

    with suppress(StreamReconError):
        show_all(page, read_result(folder), lambda _: None)


def _export(folder: Path, target: Path, overwrite: bool, out: "Console") -> None:
    from stream_recon.app.export.formats import export

    path, report = export(folder, "splats", target, overwrite=overwrite)
    out.print(f"{path}: {report.summary}")
