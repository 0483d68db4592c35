"""Stereo in the stream, seen in a real headless Chromium: surfaces move to confirmed depth while frames arrive."""

import threading
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult, ImageTransform, NetworkEstimate
from stream_recon.app.run.live_dense import LiveDense, StereoProcess
from stream_recon.app.viewer.viewer import Viewer
from stream_recon.configs.schema import PointsConfig
from tests.app.slam.dense.test_stereo import CAMERA, SIZE, rendered
from tests.app.viewer.test_viewer_browser import page_text, share_of_hue, wait_for
from tests.chromium import needs_browser

pytestmark = [pytest.mark.browser, pytest.mark.slow, needs_browser]
BOX = 1.4
"""Depth of the box in front of the wall."""
TOO_FAR = 1.5
"""Factor of the network's depth of the box: it lies on the wall."""
PERIOD = 24
"""Frames in which the camera moves to and fro."""
EYE, TARGET = (-1.5, 0.0, 0.2), (-0.5, 0.0, 1.2)
"""A camera that sees the box on the right of its picture's middle, and on the left where the network sees it."""
CENTRE, HALF = 512, 180
"""Middle of the page, and columns on either side that neither the panel nor a notice covers."""


def frame(index: int) -> FrameResult:
    """A keyframe that shows a red box, with the network's depth."""
    position = 0.3 * float(np.sin(2 * np.pi * index / PERIOD))
    grey, depth = rendered(position)
    on_box = depth == np.float32(BOX)
    rgb = np.repeat(grey[..., None], 3, axis=2)
    rgb[on_box] = np.stack([80 + 0.6 * grey[on_box], 0.3 * grey[on_box], 0.3 * grey[on_box]], axis=-1)
    T = np.eye(4)
    T[0, 3] = position
    transform = ImageTransform(SIZE, (0.0, 0.0, float(SIZE[0]), float(SIZE[1])), SIZE)
    prior = np.where(on_box, np.float32(TOO_FAR), np.float32(1)) * depth
    confidence, estimate = np.full(depth.shape, 9, np.float32), NetworkEstimate(T, CAMERA, 1.0)
    image = rgb.clip(0, 255).astype(np.uint8)
    return FrameResult(index, index / 8, T, CAMERA, prior, confidence, image, transform, True, network=estimate)


class Stream:
    """Gives keyframes to a listener at a steady pace, until it is stopped."""

    def __init__(self, live: LiveDense, fps: float) -> None:
        self.count = 0
        self._live, self._period_s = live, 1 / fps
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _feed(self) -> None:
        while not self._stop.wait(self._period_s):
            result = frame(self.count)
            self._live.add_image(result.index, result.rgb)
            self._live.add(result)
            self.count += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def red_shares(viewer: Viewer, browser: Any) -> tuple[float, float]:
    """Shares of red pixels left and right of the middle of the page, as seen from `EYE`."""
    for client in viewer.clients:
        client.camera.position, client.camera.look_at = EYE, TARGET
    png = np.frombuffer(browser.get_screenshot_as_png(), np.uint8)
    image: NDArray[np.uint8] = np.asarray(cv2.cvtColor(cv2.imdecode(png, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB))
    left, right = image[:, CENTRE - HALF : CENTRE], image[:, CENTRE : CENTRE + HALF]
    return share_of_hue(left, 0), share_of_hue(right, 0)


def test_surfaces_move_to_confirmed_depth_while_the_stream_runs(browser: Any, tmp_path: Path) -> None:
    allowed = threading.Event()
    with Viewer(PointsConfig(confidence=0.0, voxel=0.04), port=0, point_budget=60_000) as viewer:
        live = LiveDense(viewer, StereoProcess("cpu"), allowed.is_set)
        stream = Stream(live, fps=3)
        try:
            browser.get(viewer.url)
            wait_for(lambda: "surfaces of" in page_text(browser))
            left, right = wait_for(lambda: (shares := red_shares(viewer, browser))[0] > 0.01 and shares)
            assert right < 0.3 * left, "the box is where the network sees it"
            browser.save_screenshot(str(tmp_path / "network.png"))

            allowed.set()
            wait_for(lambda: live.shown >= 3, timeout_s=180)
            wait_for(lambda: red_shares(viewer, browser)[1] > 0.5 * left, timeout_s=180)
            browser.save_screenshot(str(tmp_path / "confirmed.png"))
            assert stream.is_running
            certain = [s.is_dense for s in viewer.state.surfaces.surfaces.values()]
            assert any(certain)
        finally:
            stream.stop()
            live.close()
