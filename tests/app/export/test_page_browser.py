"""The page that needs no server, opened from the disk in a real headless Chromium."""

import time
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.export.formats import export
from tests.app.export.rooms import write_room
from tests.app.export.test_glb_browser import coloured
from tests.app.viewer.test_viewer_browser import CHROMIUM, DRIVER, FLAGS

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="no chromium and chromedriver here"),
]


def test_the_scene_is_drawn_still_and_framed_with_its_name(tmp_path: Path) -> None:
    webdriver = pytest.importorskip("selenium.webdriver")
    write_room(tmp_path / "out", 12, source=False)
    target, _ = export(tmp_path / "out", "html", tmp_path / "scene.html")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'chromium'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        driver.get(target.as_uri())
        deadline = time.monotonic() + 60
        seen = coloured(driver)
        still = 0
        # Its surfaces are loaded one after another; then nothing plays.
        while still < 3 and time.monotonic() < deadline:
            time.sleep(1.0)
            before, seen = seen, coloured(driver)
            still = still + 1 if len(seen) > 1000 and abs(len(seen) - len(before)) < 0.01 * len(seen) else 0
        assert driver.title == "out"
    finally:
        driver.quit()
    assert still == 3, "something plays"
    # Two of the room's walls, green and blue, are in the middle of the picture.
    assert (np.bincount(seen.argmax(axis=1), minlength=3)[1:] > 200).all()
