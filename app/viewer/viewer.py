"""A page in the browser that shows a reconstruction while it grows."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.results import FrameResult, Revision
from stream_recon.app.viewer.chunks import ChunkStore, ranked_points
from stream_recon.app.viewer.panel import ViewerPanel
from stream_recon.app.viewer.ply import ply_bytes
from stream_recon.app.viewer.scene import SceneOptions, ViewerScene
from stream_recon.app.viewer.server import start_server, stop_server
from stream_recon.app.viewer.timeline import Timeline, make_view
from stream_recon.configs.errors import StreamReconError
from stream_recon.configs.schema import PointsConfig

log = logging.getLogger(__name__)

WAITING_RESULTS = 16
"""Results whose points may wait for the viewer."""
SHORTEST_UPDATE_S = 0.25
LONGEST_UPDATE_S = 2.0
UPDATE_SHARE = 0.15
"""Share of the viewer thread's time that goes into page updates: they get rarer as they get heavier."""


@dataclass
class _Arrival:
    """A result on its way to the page; ``result`` is dropped if the viewer is too slow, the pose never is."""

    index: int
    T_world_camera: NDArray[np.float64]
    is_keyframe: bool
    result: FrameResult | None


class Viewer:
    """Serves the page until closed. `add`, `revise` and `status` only leave a note and never wait for the page.

    A viewer slower than the video skips points by this rule: when ``WAITING_RESULTS`` results wait, the oldest
    waiting frame that is not a keyframe (the oldest of all where only keyframes wait) gives up its points and
    picture, and `skipped` counts it. Its pose is shown all the same.

    ``ply_provider`` may be set to a function that gives the bytes of the PLY for the download button; without one
    the points on the page are sent.

    Raises:
        ResourceError: the port is in use, or host or port cannot be listened on.
    """

    def __init__(
        self,
        points: PointsConfig,
        host: str = "127.0.0.1",
        port: int = 8080,
        point_budget: int = 1_000_000,
    ) -> None:
        self._points = points
        self._server = start_server(host, port)
        shown_host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        self.url = f"http://{shown_host}:{self._server.get_port()}"
        self.ply_provider: Callable[[], bytes] | None = None
        self.skipped = 0
        self.store = ChunkStore(point_budget, points.voxel)
        self.timeline = Timeline()
        self._dress_page()
        self.scene = ViewerScene(self._server)
        self.panel = ViewerPanel(
            self._server,
            round(100 * points.confidence_quantile),
            self._touch,
            lambda client: self._queue(self._send_ply, client),
            lambda client: self._queue(self._show_all, client),
        )
        self._status = ""
        self._wake = threading.Condition()
        self._inbox: deque[_Arrival | Revision] = deque()
        self._heavy: deque[_Arrival] = deque()
        self._requests: deque[Callable[[], None]] = deque()
        self._busy = False
        self._touched = False
        self._next_update = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="viewer", daemon=True)
        self._thread.start()

    def _dress_page(self) -> None:
        server = self._server
        server.gui.set_panel_label("stream-recon")
        server.gui.configure_theme(dark_mode=True, show_logo=False, show_share_button=False, brand_color=(82, 140, 255))
        server.scene.world_axes.visible = False
        server.scene.set_up_direction("-y")
        server.initial_camera.position, server.initial_camera.look_at = (0.0, -0.3, -0.6), (0.0, 0.0, 1.0)

    def __enter__(self) -> "Viewer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def host(self) -> str:
        return str(self._server.get_host())

    @property
    def port(self) -> int:
        return int(self._server.get_port())

    @property
    def paused(self) -> bool:
        """Whether a user asked to hold the video."""
        return self.panel.paused

    @property
    def points_shown(self) -> int:
        """Points on the page."""
        return self.scene.shown

    def add(self, result: FrameResult) -> None:
        """Show a frame's result, soon. Call in the order of the video."""
        arrival = _Arrival(result.index, result.T_world_camera, result.is_keyframe, result)
        with self._wake:
            self._inbox.append(arrival)
            self._heavy.append(arrival)
            if len(self._heavy) > WAITING_RESULTS:
                given_up = next((a for a in self._heavy if not a.is_keyframe), self._heavy[0])
                self._heavy.remove(given_up)
                given_up.result = None
                self.skipped += 1
            self._wake.notify()

    def revise(self, revision: Revision) -> None:
        """Move earlier frames to better poses."""
        with self._wake:
            self._inbox.append(revision)
            self._wake.notify()

    def status(self, text: str) -> None:
        """Show ``text`` (markdown) at the top of the panel."""
        with self._wake:
            self._status = text
            self._touched = True
            self._wake.notify()

    def has_room(self) -> bool:
        """Whether a result added now would skip no points. A viewer that has stopped never makes anyone wait."""
        with self._wake:
            return len(self._heavy) < WAITING_RESULTS or not self._thread.is_alive()

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Wait until everything added so far is on the page; False if it took too long."""
        deadline = time.monotonic() + timeout_s
        with self._wake:
            self._touched = True
            self._next_update = 0.0
            self._wake.notify_all()
            while self._inbox or self._busy or self._touched:
                if time.monotonic() > deadline or not self._thread.is_alive():
                    return False
                self._wake.wait(0.05)
        return True

    def finish(self) -> None:
        """The video is over: nothing can be paused any more; the page stays."""
        self.panel.end_stream()
        self._touch()

    def wait(self) -> None:
        """Serve the page until Ctrl-C or `close`."""
        try:
            self._closed.wait()
        except KeyboardInterrupt:
            log.info("viewer stopped")

    def close(self) -> None:
        """Stop serving. What still waits is dropped."""
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

    def _queue(self, serve: Callable[[Any], None], client: Any) -> None:
        with self._wake:
            self._requests.append(partial(serve, client))
            self._wake.notify()

    def _work(self) -> None:
        """The viewer's thread: takes in what arrived, and updates the page at a bounded rate."""
        while not self._closed.is_set():
            with self._wake:
                wait_s = self._next_update - time.monotonic()
                if not self._inbox and not self._requests and (not self._touched or wait_s > 0):
                    self._wake.wait(wait_s if self._touched else None)
                item = self._inbox.popleft() if self._inbox else None
                result = item.result if isinstance(item, _Arrival) else None
                if result is not None:
                    self._heavy.remove(item)  # type: ignore[arg-type]
                request = self._requests.popleft() if self._requests else None
                self._busy = True
            if isinstance(item, _Arrival):
                self._take_in(item, result)
            elif item is not None:
                self._take_revisions(item)
            if request is not None:
                request()
            self._touched = self._touched or item is not None
            if self._touched and time.monotonic() >= self._next_update:
                self._update()
            with self._wake:
                self._busy = False
                self._wake.notify_all()

    def _take_in(self, arrival: _Arrival, result: FrameResult | None) -> None:
        ordinal = self.timeline.add_pose(arrival.index, arrival.T_world_camera)
        pose = self.timeline.poses[ordinal].copy()
        self.store.add_frame(ordinal, pose)
        if result is None:
            return
        if not self.timeline.views:
            seen = result.depth[np.isfinite(result.depth) & (result.depth > 0)]
            self.scene.start_view(pose, unit=float(np.median(seen)) if len(seen) else 1.0)
        if self.timeline.wants_view(ordinal):
            self.timeline.add_view(make_view(ordinal, result))
        self.store.add_points(ordinal, pose, *ranked_points(result, self._points))

    def _take_revisions(self, first: Revision) -> None:
        """Apply a revision and those that follow it at once, as one change."""
        revisions = [first]
        with self._wake:
            while self._inbox and isinstance(following := self._inbox[0], Revision):
                revisions.append(following)
                self._inbox.popleft()
        frames = [frame for revision in revisions for frame in revision.frames]
        moved = {self.timeline.revise(f.index, f.T_world_camera): f.T_world_camera for f in frames}
        self.store.revise(moved)

    def _update(self) -> None:
        began = time.monotonic()
        with self._wake:
            self._touched = False
            status = self._status
        self.store.settle()
        self.panel.show_frames(self.timeline, self.store.total)
        options = self.panel.options()
        self.scene.sync(self.store, self.timeline, options)
        self.scene.clear_start(self.store)
        self.panel.show_status(self._describe(status))
        self._move_views(options)
        ended = time.monotonic()
        rest_s = (ended - began) * (1 / UPDATE_SHARE - 1)
        self._next_update = ended + min(max(rest_s, SHORTEST_UPDATE_S), LONGEST_UPDATE_S)

    def _describe(self, status: str) -> str:
        counts = f"**{self.scene.shown:,}** points · **{len(self.timeline):,}** frames"
        if self.skipped:
            counts += f" · {self.skipped:,} without points, to keep up"
        if self.paused:
            counts += " · paused"
        return f"{status}\n\n{counts}" if status else counts

    def _move_views(self, options: SceneOptions) -> None:
        if not len(self.timeline):
            return
        from_here = self.panel.from_here
        if from_here is not None:
            pose, back, lift = self.timeline.poses[min(from_here, len(self.timeline) - 1)], 0.0, 0.0
        elif self.panel.follow:
            pose, back, lift = self.timeline.poses[-1], 0.7, 0.3
        else:
            return
        for client in self._server.get_clients().values():
            self.scene.look(client, pose, back, lift)

    def _send_ply(self, client: Any) -> None:
        try:
            content = self.ply_provider() if self.ply_provider is not None else self.ply_bytes()
        except (OSError, StreamReconError) as error:
            client.add_notification("No PLY", str(error), color="red")
            return
        client.send_file_download("points.ply", content, save_immediately=True)

    def _show_all(self, client: Any) -> None:
        self.panel.let_go()
        self.scene.show_all(client, self.store, self.timeline)

    def ply_bytes(self) -> bytes:
        """The points on the page, in world axes, as a binary PLY."""
        options = self.panel.options()
        return ply_bytes(self.store, options.min_rank, options.last_frame)


def view_results(viewer: Viewer, results: Iterable[FrameResult]) -> int:
    """Show a finished reconstruction without skipping; waits for the viewer instead. Gives the count of frames."""
    count = 0
    for result in results:
        while not viewer.has_room():
            time.sleep(0.005)
        viewer.add(result)
        count += 1
    viewer.finish()
    return count
