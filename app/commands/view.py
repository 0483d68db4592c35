"""The body of the command ``view``, and how a viewer is served."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from stream_recon.app.commands.exit_codes import DONE
from stream_recon.app.output.cloud import POINTS_NAME
from stream_recon.app.output.folder import read_result
from stream_recon.app.viewer.viewer import Viewer, view_results


@dataclass(frozen=True)
class ViewerChoice:
    """Where the page is served, and for how long."""

    host: str
    port: int
    keep_open: bool
    """Serve on when the run is over, until Ctrl-C."""


def view_folder(folder: Path, view: ViewerChoice) -> int:
    """Show a result folder until Ctrl-C. Raises StreamReconError."""
    out = Console(soft_wrap=True, highlight=False)
    result = read_result(folder)
    with Viewer(result.points, view.host, view.port) as viewer:
        out.print(f"viewer: {viewer.url}")
        state = ", interrupted" if result.run["interrupted"] else ""
        viewer.status(f"{result.run['source']}{state}")
        viewer.offer_cloud(folder / POINTS_NAME)
        count = view_results(viewer, result)
        out.print(f"{count} frames of {result.run['source']}{state}; Ctrl-C ends the viewer", markup=False)
        viewer.wait()
    return DONE
