"""A page in the browser that shows a reconstruction while it grows."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from stream_recon.app.core.types import FrameResult, Revision
from stream_recon.app.viewer.guard import EVERYWHERE, is_loopback, new_token, outward_address
from stream_recon.app.viewer.nodes import MapLayer
from stream_recon.app.viewer.page import Page
from stream_recon.app.viewer.panel import PanelEvents
from stream_recon.app.viewer.points import ply_bytes, send_bytes, send_file
from stream_recon.app.viewer.queue import FrameUpdate, UpdateQueue
from stream_recon.app.viewer.server import start_server, stop_server
from stream_recon.configs.schema import PointsConfig

log = logging.getLogger(__name__)

SHORTEST_UPDATE_S = 0.25
LONGEST_UPDATE_S = 2.0
UPDATE_SHARE = 0.15
"""Share of the viewer thread's time that goes into page updates: they get rarer as they get heavier."""
STANDS_STILL = "**This page stands still:** its viewer failed, see the log. The run goes on, and its results are kept."


class Viewer:
    """Serves the page until closed. `add`, `revise` and `status` only leave a note and never wait for the page.

    A viewer slower than the video skips points by this rule: when ``WAITING_RESULTS`` results wait, the oldest
    waiting frame that is not a keyframe (the oldest of all where only keyframes wait) gives up its points and
    picture, and `skipped` counts it. Its camera is shown all the same.

    A viewer that fails says so, once, in the log and on the page. What it is told from then on is ignored.

    Raises:
        ResourceError: the port is in use, or host or port cannot be listened on.
    """

    def __init__(
        self,
        points: PointsConfig,
        host: str = "127.0.0.1",
        port: int = 8080,
        point_budget: int = 1_000_000,
        *,
        token: bool = True,
    ) -> None:
        """``token``: where other machines can reach the page, let in only who has the token that `url` then holds."""
        self.is_open = not is_loopback(host)
        """Whether other machines can reach the page."""
        secret = new_token() if token and self.is_open else None
        self._server = start_server(host, port, secret)
        shown_host = outward_address(host) if host in EVERYWHERE else host
        shown_host = f"[{shown_host}]" if ":" in shown_host else shown_host
        self.url = f"http://{shown_host}:{self._server.get_port()}"
        if secret is not None:
            self.url += f"/?token={secret}"
        self._wake = threading.Condition()
        self._inbox = UpdateQueue()
        self._requests: deque[Callable[[], None]] = deque()
        self._cloud: Path | None = None
        self._landmarks = MapLayer()
        self._status = ""
        self._busy = False
        self._touched = False
        self._failed = False
        self._next_update = 0.0
        self._closed = threading.Event()
        events = PanelEvents(self._touch, self._download, partial(self._ask, self._show_all))
        self.page = Page(self._server, points, point_budget, events)
        self._thread = threading.Thread(target=self._work, name="viewer", daemon=True)
        self._thread.start()

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
        return self.page.panel.paused

    @property
    def failed(self) -> bool:
        """Whether the page stands still for good, by an error."""
        return self._failed

    @property
    def skipped(self) -> int:
        """Frames without points, to keep up."""
        return self._inbox.skipped

    @property
    def points_shown(self) -> int:
        """Points on the page."""
        return self.page.scene.shown

    def add(self, result: FrameResult) -> None:
        """Show a frame's result, soon. Call in the order of the video."""
        with self._wake:
            if not self._failed:
                self._inbox.put_result(result)
                self._wake.notify()

    def revise(self, revision: Revision) -> None:
        """Move earlier frames, soon, and all at once."""
        with self._wake:
            if not self._failed:
                self._inbox.put_revision(revision)
                self._wake.notify()

    def show_map(self, points: NDArray[np.floating], edges: NDArray[np.integer]) -> None:
        """Show what a map stands on, in place of what was shown of it before, soon; the page has switches for it.

        Args:
            points: [N, 3], in the world.
            edges: [E, 2], pairs of frames that close a loop, by their numbers in the source.
        """
        pairs = np.array(edges, np.int64).reshape(-1, 2)
        landmarks = MapLayer(np.array(points, np.float32).reshape(-1, 3), pairs)
        with self._wake:
            self._landmarks = landmarks
            self._touched = True
            self._wake.notify()

    def status(self, text: str) -> None:
        """Show ``text`` (markdown) at the top of the panel."""
        with self._wake:
            self._status = text
            self._touched = True
            self._wake.notify()

    def offer_cloud(self, path: Path) -> None:
        """Let the download button give the result's own PLY, now that it is complete; no file, no change."""
        with suppress(OSError):
            self.page.panel.offer_cloud(decimal(path.stat().st_size))
            self._cloud = path

    def has_room(self) -> bool:
        """Whether a result added now would skip no points. A viewer that has stopped never makes anyone wait."""
        with self._wake:
            return self._inbox.has_room or not self._thread.is_alive()

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Wait until everything added so far is on the page; False if it took too long."""
        deadline = time.monotonic() + timeout_s
        with self._wake:
            self._touched = True
            self._next_update = 0.0
            self._wake.notify_all()
            while len(self._inbox) or self._busy or self._touched:
                if time.monotonic() > deadline or not self._thread.is_alive():
                    return False
                self._wake.wait(0.05)
        return True

    def finish(self) -> None:
        """The video is over: nothing can be paused any more; the page stays, and is seen as a whole first."""
        self.page.panel.end_stream()
        self.page.ended = True
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

    def _ask(self, serve: Callable[[Any], None], client: Any) -> None:
        """Let the viewer's thread serve a browser."""
        with self._wake:
            self._requests.append(partial(serve, client))
            self._wake.notify()

    def _download(self, client: Any) -> None:
        if self._cloud is not None:
            send_file(client, self._cloud)  # in the server's thread: a large file does not hold up the page
        elif self._failed:
            client.add_notification("No PLY", "This page stands still; the cloud is in the result folder.", color="red")
        else:
            self._ask(self._send_points, client)

    def _send_points(self, client: Any) -> None:
        send_bytes(client, ply_bytes(self.page.points()))

    def _show_all(self, client: Any) -> None:
        self.page.show_all(client)

    def _work(self) -> None:
        """Body of the viewer's thread."""
        try:
            while not self._closed.is_set():
                self._turn()
        except Exception:
            log.exception("the viewer failed: its page stands still from here on, the run goes on")
            with self._wake:
                self._failed = True
                self._inbox.clear()
                self._requests.clear()
                self._wake.notify_all()
            self.page.panel.end_stream()  # nobody could see what a pause holds
            self.page.panel.show_status(STANDS_STILL)

    def _turn(self) -> None:
        """Take in what arrived, and update the page at a bounded rate."""
        with self._wake:
            wait_s = self._next_update - time.monotonic()
            if not len(self._inbox) and not self._requests and (not self._touched or wait_s > 0):
                self._wake.wait(wait_s if self._touched else None)
            item = self._inbox.take()
            request = self._requests.popleft() if self._requests else None
            self._touched |= item is not None
            self._busy = True
        if isinstance(item, FrameUpdate):
            self.page.take_in(item.index, item.T_world_camera, item.intrinsics, item.result)
        elif item is not None:
            self.page.revise(item)
        if request is not None:
            request()
        if self._touched and time.monotonic() >= self._next_update:
            self._update()
        with self._wake:
            self._busy = False
            self._wake.notify_all()

    def _update(self) -> None:
        began = time.monotonic()
        with self._wake:
            self._touched = False
            status, self.page.landmarks = self._status, self._landmarks
        unfinished = self.page.update(status, self.skipped)
        ended = time.monotonic()
        rest_s = (ended - began) * (1 / UPDATE_SHARE - 1)
        with self._wake:
            self._touched |= unfinished
            self._next_update = ended + min(max(rest_s, SHORTEST_UPDATE_S), LONGEST_UPDATE_S)


def show_results(viewer: Viewer, results: Iterable[FrameResult]) -> int:
    """Show results without skipping; waits for the viewer instead. Gives the count of frames."""
    count = 0
    for result in results:
        while not viewer.has_room():
            time.sleep(0.005)
        viewer.add(result)
        count += 1
    return count
