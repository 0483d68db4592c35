"""Command ``view``, and the viewer of other commands."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stream_recon.app.cli.console import DONE, PlainConsole, reported, verdict_text
from stream_recon.app.cli.downloads import VIEWER_EXPORTS, offer_result, result_name
from stream_recon.app.cli.options import Folder, Host, Port, PublicAddress, Token
from stream_recon.app.cli.place import show_layers
from stream_recon.app.core.progress_file import ProgressFile

if TYPE_CHECKING:
    from stream_recon.app.result.folder import ResultFolder
    from stream_recon.app.viewer.viewer import Viewer
    from stream_recon.configs.errors import OutputError
    from stream_recon.configs.schema import PointsConfig


@reported
def view_command(
    folder: Folder,
    host: Host = "127.0.0.1",
    port: Port = None,
    token: Token = True,
    public_address: PublicAddress = None,
) -> int:
    """Show a result in the browser until Ctrl-C."""
    from stream_recon.app.result.folder import read_result
    from stream_recon.app.result.verdict import judge, recorded_verdict

    out, err = PlainConsole(soft_wrap=True), PlainConsole(stderr=True, soft_wrap=True)
    result = read_result(folder)
    choice = ViewerChoice(host, port, keep_open=True, token=token, public=public_address)
    with choice.open(result.points, out, err) as viewer:
        state = ", interrupted" if result.run["interrupted"] else ""
        viewer.name(result_name(folder))
        viewer.status(f"{result.run['source']}{state}")
        verdict = recorded_verdict(result.run) or judge(result.run, len(result))
        viewer.show_verdict(verdict.level, verdict.explanation)
        damaged: list[OutputError] = []
        count = show_all(viewer, result, damaged.append)
        show_surfaces(viewer, result)
        out.print(verdict_text(verdict, "verdict: "))
        if damaged:
            err.print(f"warning: {len(damaged)} damaged frames are not shown: {damaged[0]}")
        out.print(f"{count} frames of {result.run['source']}{state}; Ctrl-C ends the viewer")
        viewer.wait()
    return DONE


DEFAULT_PORTS = range(8080, 8180)
"""Ports that are tried in turn where no port was given."""


@dataclass(frozen=True)
class ViewerChoice:
    """Address of the viewer, and how long it stays."""

    host: str
    port: int | None
    """None: the first free one of `DEFAULT_PORTS`."""
    keep_open: bool
    """The viewer stays open after the run, until Ctrl-C."""
    token: bool = True
    """Other machines need the token of the printed address."""
    public: str | None = None
    """Address at which a proxy shows the viewer."""

    def open(self, points: "PointsConfig", out: PlainConsole, err: PlainConsole) -> "Viewer":
        """Start the viewer and print its address, with a warning where other machines can reach it.

        Raises ResourceError where the port that was given is in use, or no port can be listened on; ConfigError: the
        public address is none.
        """
        viewer = self._start(points)
        out.print(f"viewer: {viewer.url}")
        ProgressFile.from_environment().note(port=viewer.port)
        if self.port is None and viewer.port != DEFAULT_PORTS[0]:
            out.print(f"port {DEFAULT_PORTS[0]} is in use: the viewer took port {viewer.port}")
        if viewer.is_open:
            who = "everyone with this address" if self.token else "everyone who can reach this machine"
            how = "" if (self.public or "").startswith("https:") else ", unencrypted"
            line = f"warning: the viewer is open to other machines: {who} can see and control it{how}"
            err.print(line, soft_wrap=True)
        return viewer

    def _start(self, points: "PointsConfig") -> "Viewer":
        from stream_recon.app.viewer.viewer import Viewer
        from stream_recon.configs.errors import PortInUseError

        start = partial(Viewer, points, self.host, token=self.token, public=self.public, exports=VIEWER_EXPORTS)
        if self.port is not None:
            return start(port=self.port)
        for port in DEFAULT_PORTS:
            with suppress(PortInUseError):
                return start(port=port)
        first, last = DEFAULT_PORTS[0], DEFAULT_PORTS[-1]
        raise PortInUseError(f"ports {first} to {last} are in use; choose another with --port")

    def wait(self, viewer: "Viewer", folder: Path, out: PlainConsole) -> None:
        """Show and offer what the finished result has, and serve on where that was chosen."""
        from stream_recon.app.result.folder import read_result
        from stream_recon.configs.errors import StreamReconError

        offer_result(viewer, folder)
        if self.keep_open:
            out.print(f"The viewer stays open at {viewer.url}; Ctrl-C ends it.")
            with suppress(StreamReconError):
                result = read_result(folder)
                if not result.dense:  # those were shown as they were made
                    show_surfaces(viewer, result)
            viewer.wait()


def show_all(viewer: "Viewer", result: "ResultFolder", on_damaged: Callable[["OutputError"], None]) -> int:
    """Show a finished result with its mesh, files and layers; returns the number of its frames that are shown."""
    from stream_recon.app.result.metric_scale import T_current_own

    viewer.state.panel.end_stream()  # nothing to pause
    has_one_unit = T_current_own(result.run).scale == 1
    if has_one_unit:  # the mesh comes first, whole: no surfaces of keyframes are sent then
        offer_result(viewer, result.folder)
    count = show_result(viewer, result, on_damaged)
    viewer.finish()
    if not has_one_unit:  # the first poses do not fit the mesh
        offer_result(viewer, result.folder)
    show_layers(viewer, result)
    return count


def show_result(viewer: "Viewer", result: "ResultFolder", on_damaged: Callable[["OutputError"], None]) -> int:
    """Show all frames of a result with their causal poses, then all revisions at once; returns their number.

    In this order the viewer knows both the causal and the final poses.
    """
    from stream_recon.app.result.cameras import revision_since_causal
    from stream_recon.app.result.metric_scale import T_current_own
    from stream_recon.app.result.tracks import read_tracks
    from stream_recon.app.viewer.viewer import show_results

    shown = set()
    for causal in result.readable(on_damaged, causal=True):
        show_results(viewer, [causal])
        shown.add(causal.index)
    scale = T_current_own(result.run).scale
    viewer.revise(revision_since_causal((camera for camera in result.cameras if camera.index in shown), scale))
    if (tracks := read_tracks(result.folder)) is not None:
        viewer.show_map(tracks.points, tracks.loops)
    return len(shown)


def show_surfaces(viewer: "Viewer", result: "ResultFolder") -> None:
    """Show keyframes' surfaces with dense depth, and with images of the source where it can be read again.

    Nothing is done where a mesh is shown. Call after `show_result` and `offer_result`.
    """
    from stream_recon.app.export.job import ExportJob
    from stream_recon.app.export.source_images import surface_images
    from stream_recon.app.viewer.surface_grid import TEXTURE_SIDE
    from stream_recon.configs.errors import StreamReconError

    viewer.flush()
    if viewer.shows_mesh:
        return
    with suppress(StreamReconError):  # then the surfaces with the network's images stay
        for number, (shown, image) in enumerate(surface_images(ExportJob(result), TEXTURE_SIDE)):
            if not number:
                viewer.clear_surfaces()
            viewer.wait_for_dense()
            viewer.show_dense(shown, image)
