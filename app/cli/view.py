"""The body of the command ``view``, and how a viewer is served."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stream_recon.app.cli.console import DONE, PlainConsole
from stream_recon.app.result.cameras import revision_since_causal
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.metric_scale import T_current_own
from stream_recon.app.result.tracks import read_tracks
from stream_recon.app.viewer.viewer import Viewer, show_results
from stream_recon.configs.errors import OutputError
from stream_recon.configs.schema import PointsConfig


@dataclass(frozen=True)
class ViewerChoice:
    """Where the page is served, and for how long."""

    host: str
    port: int
    keep_open: bool
    """Serve on when the run is over, until Ctrl-C."""
    token: bool = True
    """Ask for a token where other machines can reach the page."""

    def open(self, points: PointsConfig, out: PlainConsole, err: PlainConsole) -> Viewer:
        """A viewer whose address is printed, with a warning where other machines can reach it. Raises ResourceError."""
        viewer = Viewer(points, self.host, self.port, token=self.token)
        out.print(f"viewer: {viewer.url}")
        if viewer.is_open:
            who = "whoever has this address" if self.token else "everybody who can reach this machine"
            line = f"warning: the viewer is open to other machines: {who} can see and steer it, unencrypted"
            err.print(line, soft_wrap=True)
        return viewer


def view_folder(folder: Path, view: ViewerChoice) -> int:
    """Show a result folder until Ctrl-C. Raises StreamReconError."""
    out, err = PlainConsole(soft_wrap=True), PlainConsole(stderr=True, soft_wrap=True)
    result = read_result(folder)
    with view.open(result.points, out, err) as viewer:
        state = ", interrupted" if result.run["interrupted"] else ""
        viewer.status(f"{result.run['source']}{state}")
        viewer.offer_cloud(folder / POINTS_NAME)
        damaged: list[OutputError] = []
        count = show_result(viewer, result, damaged.append)
        viewer.finish()
        if damaged:
            err.print(f"warning: {len(damaged)} frames are left out: {damaged[0]}")
        out.print(f"{count} frames of {result.run['source']}{state}; Ctrl-C ends the viewer")
        viewer.wait()
    return DONE


def show_result(viewer: Viewer, result: ResultFolder, on_damaged: Callable[[OutputError], None]) -> int:
    """Show all frames of a result as they were first given out, then all at once as they are by now: so the page knows
    what was before. Gives their number."""
    shown = set()
    for first in result.readable(on_damaged, causal=True):
        show_results(viewer, [first])
        shown.add(first.index)
    unit = T_current_own(result.run).scale
    viewer.revise(revision_since_causal((camera for camera in result.cameras if camera.index in shown), unit))
    if (tracks := read_tracks(result.folder)) is not None:
        viewer.show_map(tracks.points, tracks.loops)
    return len(shown)
