"""The GLB file in three.js, which viser's page is drawn with, in a real headless Chromium."""

import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import viser
from numpy.typing import NDArray

from stream_recon.app.export.formats import export
from tests.app.export.rooms import write_room
from tests.chromium import needs_browser

pytestmark = [pytest.mark.browser, needs_browser]


def coloured(driver: Any) -> NDArray[np.uint8]:
    """Pixels [N, 3] (red, green, blue) of the canvas' middle that are neither white nor grey."""
    bgr = cv2.imdecode(np.frombuffer(driver.get_screenshot_as_png(), np.uint8), cv2.IMREAD_COLOR)
    rgb = bgr[60:420, 320:680, ::-1].reshape(-1, 3)
    return rgb[np.ptp(rgb, axis=1) > 60]


def by_channel(rgb: NDArray[np.uint8]) -> NDArray[np.intp]:
    """How many pixels [n, 3] are strongest in each channel, [3]."""
    return np.bincount(rgb.argmax(axis=1), minlength=3)


@pytest.mark.slow
def test_points_cameras_and_path_are_drawn_in_their_colours(browser: Any, tmp_path: Path) -> None:
    write_room(tmp_path / "out", 12)
    target, _ = export(tmp_path / "out", "glb", tmp_path / "scene.glb")
    server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
    try:
        server.scene.set_up_direction("+y")
        server.initial_camera.position, server.initial_camera.look_at = (0.0, 0.0, 3.5), (0.0, 0.0, -4.0)
        server.scene.add_glb("/scene", target.read_bytes())
        browser.get(f"http://127.0.0.1:{server.get_port()}")
        deadline = time.monotonic() + 60
        # What is large comes in pieces: the last of the walls is waited for.
        while (by_channel(seen := coloured(browser)) < [200, 200, 2000]).any() and time.monotonic() < deadline:
            time.sleep(0.5)
    finally:
        server.stop()
    # Walls are blue, red and green, as `boxroom` paints them; the page's tone mapping makes all a little paler.
    assert (by_channel(seen) >= [200, 200, 2000]).all(), by_channel(seen)
    blue = seen[seen.argmax(axis=1) == 2]
    light, dark = np.quantile(blue[:, 2], [0.9, 0.1])
    assert light > 1.2 * dark  # the checks
