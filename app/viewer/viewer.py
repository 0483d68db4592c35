"""Live viewer: a web server that shows a reconstruction while it grows."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from stream_recon.app.core.splats import Splats
from stream_recon.app.core.types import FrameResult, Revision
from stream_recon.app.viewer.cameras import RESEND_S
from stream_recon.app.viewer.document import PageBody
from stream_recon.app.viewer.downloads import Downloads, vertex_count
from stream_recon.app.viewer.guard import checked_public, is_loopback, new_token, shown_host
from stream_recon.app.viewer.measure import METRE, Unit
from stream_recon.app.viewer.nodes import MapLayer
from stream_recon.app.viewer.panel import WAITING, PanelEvents
from stream_recon.app.viewer.place_layers import PlaceLayers
from stream_recon.app.viewer.points import send_file
from stream_recon.app.viewer.scene_mesh import SceneMesh
from stream_recon.app.viewer.server import start_server, stop_server
from stream_recon.app.viewer.state import ViewerState
from stream_recon.app.viewer.update_queue import DenseUpdate, FrameUpdate, UpdateQueue
from stream_recon.configs.schema import PointsConfig

log = logging.getLogger(__name__)

SHORTEST_UPDATE_S = 0.25
"""Shortest time between updates: more often than that, clients gain nothing."""
LONGEST_UPDATE_S = 2.0
"""Longest time between updates, so that the view stays live."""
UPDATE_SHARE = 0.15
"""Share of the viewer thread's time that updates may take at first: heavier updates become rarer."""
FAILED_STATUS = (
    "**The viewer has failed:** see the log. This view is frozen; the run continues, and its results are kept."
)


class Viewer:
    """Serves clients until closed. `add`, `revise` and `status` are queued and never wait for clients.

    A viewer slower than the video skips points: when `MAX_WAITING_RESULTS` results wait, the oldest one that is not a
    keyframe (or else the oldest) loses its points and thumbnail, and `skipped` counts it. Its camera is shown. A viewer
    that fails reports it once in the log and to its clients, and ignores later calls. Raises ResourceError where the
    port is in use, or host or port cannot be listened on.
    """

    def __init__(
        self,
        points: PointsConfig,
        host: str = "127.0.0.1",
        port: int = 8080,
        point_budget: int = 1_000_000,
        *,
        token: bool = True,
        public: str | None = None,
        exports: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            token: where other machines can reach the viewer, require a token, which `url` then contains.
            public: address at which a proxy shows the viewer.
            exports: labels of formats of ``export`` that pages offer, by name.
        """
        self.is_open = public is not None or not is_loopback(host)
        """Whether other machines can reach the viewer."""
        address = None if public is None else checked_public(public)
        secret = new_token() if token and self.is_open else None
        self._page = PageBody()
        self._server = start_server(host, port, secret, self._page, public)
        self.url = (address or f"http://{shown_host(host)}:{self._server.get_port()}").rstrip("/")
        if secret is not None:
            self.url += f"/?token={secret}"
        self._wake = threading.Condition()
        self._queue = UpdateQueue()
        self._requests: deque[Callable[[], None]] = deque()
        self._cloud: Path | None = None
        self._images: dict[int, NDArray[np.uint8]] = {}
        self._downloads = Downloads(exports or {})
        self._map_layer = MapLayer()
        self._status = WAITING
        self._busy = False
        self._touched = False
        self.failed = False
        """Whether an error has stopped the viewer."""
        self._next_update = 0.0
        self.update_share = UPDATE_SHARE
        """Share of the viewer thread's time that updates may take."""
        self._closed = threading.Event()
        events = PanelEvents(
            self._touch,
            self._save,
            lambda client: self._queue_request(self.state.show_all, client),
            self._queue_request,
            self._downloads.labels,
        )
        self.state = ViewerState(self._server, points, point_budget, events)
        self._thread = threading.Thread(target=self._work, name="viewer", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Viewer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def host(self) -> str:
        return str(self._server.get_host())

    @property
    def port(self) -> int:
        return int(self._server.get_port())

    @property
    def clients(self) -> list[Any]:
        """Viser's handles of the connected pages."""
        return list(self._server.get_clients().values())

    @property
    def paused(self) -> bool:
        """Whether a user paused the video."""
        return self.state.panel.paused

    @property
    def skipped(self) -> int:
        """Number of frames whose points were skipped."""
        return self._queue.skipped

    @property
    def shows_mesh(self) -> bool:
        """Whether a mesh replaces the keyframes' surfaces; `flush` after `show_mesh` makes sure."""
        return self.state.scene.mesh is not None

    def name(self, title: str) -> None:
        """Set the title of the page and of the panel, such as the result's name."""
        self._page.title = title
        self._server.gui.set_panel_label(title)

    def add_image(self, index: int, image: NDArray[np.uint8]) -> None:
        """The source's image [H, W, 3] of a frame whose result is added next; becomes the texture of its surface."""
        self._images = {index: image}

    def add(self, result: FrameResult) -> None:
        """Queue a frame's result. Call in the order of the video."""
        image = self._images.pop(result.index, None) if result.is_keyframe else None
        with self._wake:
            if not self.failed:
                self._queue.add_result(result, image)
                self._wake.notify()

    def show_dense(self, result: FrameResult, image: NDArray[np.uint8]) -> None:
        """Queue a better depth map of an earlier frame, which replaces the frame's surface.

        ``result``: in the present unit, as the revisions so far have it; ``image`` [H, W, 3] shows the same as its
        depth map, at any size.
        """
        with self._wake:
            if not self.failed:
                self._queue.add_dense(DenseUpdate(result, image))
                self._wake.notify()

    def clear_surfaces(self) -> None:
        """Remove the surfaces of all frames that were added so far, to show them anew with `show_dense`."""
        self.flush()
        with self._wake:
            self._requests.append(self.state.surfaces.clear)
            self._wake.notify()
        self.flush()

    def wait_for_dense(self, timeout_s: float = 60.0) -> None:
        """Wait until another call of `show_dense` would drop nothing."""
        deadline = time.monotonic() + timeout_s
        with self._wake:
            while self._queue.dense_is_full and self._thread.is_alive() and time.monotonic() < deadline:
                self._wake.wait(0.05)

    def show_mesh(self, path: Path, R_world_mesh: NDArray[np.floating]) -> None:
        """Show a GLB file in place of the keyframes' surfaces, if it exists.

        ``R_world_mesh``: rotation [3, 3] from the axes of the file to the world.
        """
        with suppress(OSError):
            self._queue_request(self.state.show_mesh, SceneMesh.read(path, R_world_mesh))
            self._touch()

    def show_splats(self, splats: Splats, most: int | None = None) -> None:
        """Show Gaussian splats in place of the last ones. ``most``: see `SplatLayer.show`."""
        self._queue_request(self.state.splats.show, splats, most)
        self._touch()

    def offer_stop(self, stop: Callable[[], None] | None) -> None:
        """Offer a button that ends a training, which calls ``stop`` in a thread of the server; None: no longer."""
        self._queue_request(self.state.splats.offer_stop, stop)

    def show_verdict(self, level: str, text: str) -> None:
        """Show whether the result is ``good``, ``doubtful`` or ``failed``, with a line that says why."""
        self.state.panel.show_verdict(level, text)

    def set_unit(self, name: str, scale_error: float | None) -> None:
        """State the unit of the world: ``metre``, or another name for no metric unit. ``scale_error``: see `Unit`."""
        self.state.unit = Unit(name, scale_error) if name == METRE else Unit()
        self._touch()

    def revise(self, revision: Revision) -> None:
        """Queue a revision of earlier frames, which is shown as one change."""
        with self._wake:
            if not self.failed:
                self._queue.add_revision(revision)
                self._wake.notify()

    def show_map(self, points: NDArray[np.floating], edges: NDArray[np.integer]) -> None:
        """Replace the map layer, which the panel can switch on; ``points``, ``edges``: see `MapLayer`."""
        layer = MapLayer(np.array(points, np.float32).reshape(-1, 3), np.array(edges, np.int64).reshape(-1, 2))
        with self._wake:
            self._map_layer = layer
            self._touched = True
            self._wake.notify()

    def show_place(self, change: Callable[[PlaceLayers, float], None]) -> None:
        """Change the layers of other pictures and results; ``change`` gets them and the typical depth."""
        self._queue_request(lambda: change(self.state.scene.place, self.state.cameras.typical_depth))
        self._touch()

    def status(self, text: str) -> None:
        """Show a text (Markdown) at the top of the panel."""
        with self._wake:
            self._status = text
            self._touched = True
            self._wake.notify()

    def offer_cloud(self, path: Path) -> None:
        """Let the button for points send the result's complete PLY file, if it exists."""
        with suppress(OSError):
            size = decimal(path.stat().st_size)
            self.state.cloud_points = vertex_count(path)
            self.state.labels["points"] = f"All points (PLY, {size})"
            self._cloud = path
            self._touch()

    def offer(self, kind: str, make: Callable[[Path], Path]) -> None:
        """Offer a download by its kind; ``make`` writes its file into a folder and may raise StreamReconError."""
        self._downloads.offer(kind, make)

    def has_room(self) -> bool:
        """Whether adding a result would skip no points; always true for a viewer that has stopped."""
        with self._wake:
            return self._queue.has_room or not self._thread.is_alive()

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Wait until everything added so far is sent to the clients; False after the timeout."""
        deadline = time.monotonic() + timeout_s
        with self._wake:
            self._touched = True
            self._next_update = 0.0
            self._wake.notify_all()
            while len(self._queue) or self._requests or self._busy or self._touched:
                if time.monotonic() > deadline or not self._thread.is_alive():
                    return False
                self._wake.wait(0.05)
        return True

    def finish(self) -> None:
        """End the video: remove the pause, and make the overview the first view. The viewer keeps serving."""
        self.state.panel.end_stream()
        self.state.ended = True
        self._touch()

    def wait(self) -> None:
        """Serve until Ctrl-C or `close`."""
        try:
            self._closed.wait()
        except KeyboardInterrupt:
            log.info("viewer stopped")

    def close(self) -> None:
        """Stop serving. Queued updates are dropped."""
        if self._closed.is_set():
            return
        with self._wake:
            self._closed.set()
            self._wake.notify_all()
        self._thread.join(timeout=10.0)
        stop_server(self._server)

    def _touch(self) -> None:
        with self._wake:
            self._touched = True
            self._next_update = min(self._next_update, time.monotonic() + 0.05)
            self._wake.notify()

    def _queue_request(self, serve: Callable[..., None], *arguments: Any) -> None:
        """Queue something for the viewer's thread."""
        with self._wake:
            self._requests.append(partial(serve, *arguments))
            self._wake.notify()

    def _save(self, kind: str, client: Any) -> None:
        page = self.state.pages.get(client.client_id)
        is_cut = page is not None and page.tools.box is not None
        if kind == "points" and self._cloud is not None and not is_cut:
            send_file(client, self._cloud)  # in the server's thread, so that a large file does not delay updates
        elif kind not in ("points", "plan") and not (kind == "mesh" and is_cut):
            self._downloads.send(kind, client, self.state.ended)
        elif self.failed:
            client.add_notification("No file", "The viewer has failed; the cloud is in the result folder.", color="red")
        else:
            self._queue_request(self.state.send_made, kind, client, self._cloud)

    def _work(self) -> None:
        """Body of the viewer's thread."""
        try:
            while not self._closed.is_set():
                self._step()
        except Exception:
            log.exception("the viewer failed and stops updating; the run continues")
            with self._wake:
                self.failed = True
                self._queue.clear()
                self._requests.clear()
                self._wake.notify_all()
            self.state.panel.end_stream()  # a pause could not be ended
            self.state.panel.show_status(FAILED_STATUS)

    def _step(self) -> None:
        """Process one queued item and one request, and send an update if it is due."""
        with self._wake:
            self._wait_for_work()
            item = self._queue.take()
            request = self._requests.popleft() if self._requests else None
            self._touched |= item is not None
            self._busy = True
        if isinstance(item, FrameUpdate):
            self.state.add_frame_result(item.index, item.T_world_camera, item.intrinsics, item.result, item.image)
        elif isinstance(item, DenseUpdate):
            self.state.show_dense(item.result, item.image)
        elif item is not None:
            self.state.revise(item)
        if request is not None:
            request()
        if self._touched and time.monotonic() >= self._next_update:
            self._update()
        with self._wake:
            self._busy = False
            self._wake.notify_all()

    def _wait_for_work(self) -> None:
        """Wait until something is queued, an update is due, or views have to be sent again. The lock is held."""
        wait_s = self._next_update - time.monotonic()
        if len(self._queue) or self._requests or (self._touched and wait_s <= 0):
            return
        resend = RESEND_S if self.state.cameras.waiting else None
        if not self._wake.wait(wait_s if self._touched else resend) and resend is not None:
            self._requests.append(self.state.cameras.send)

    def _update(self) -> None:
        began = time.monotonic()
        with self._wake:
            self._touched = False
            status, self.state.map_layer = self._status, self._map_layer
            settled = not len(self._queue)
        unfinished = self.state.update(status, self.skipped, settled=settled)
        ended = time.monotonic()
        rest_s = (ended - began) * (1 / self.update_share - 1)
        with self._wake:
            self._touched |= unfinished
            self._next_update = ended + min(max(rest_s, SHORTEST_UPDATE_S), LONGEST_UPDATE_S)


def show_results(viewer: Viewer, results: Iterable[FrameResult]) -> int:
    """Show results without skipping points: waits for the viewer. Gives the number of frames."""
    count = 0
    for result in results:
        while not viewer.has_room():
            time.sleep(0.005)
        viewer.add(result)
        count += 1
    return count
