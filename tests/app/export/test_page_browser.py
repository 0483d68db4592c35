"""The page that needs no server, opened from the disk in a real headless Chromium."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_recon.app.export.formats import export
from tests.app.export.rooms import write_room
from tests.app.export.test_glb_browser import coloured
from tests.chromium import needs_browser

pytestmark = [pytest.mark.browser, needs_browser]


@pytest.mark.slow
def test_the_scene_is_drawn_still_and_framed_with_its_name(browser: Any, tmp_path: Path) -> None:
    write_room(tmp_path / "out", 12, source=False)
    target, _ = export(tmp_path / "out", "html", tmp_path / "scene.html")
    browser.get(target.as_uri())
    deadline = time.monotonic() + 60
    seen = coloured(browser)
    still = 0
    # Its surfaces are loaded one after another; then nothing plays.
    while still < 3 and time.monotonic() < deadline:
        time.sleep(1.0)
        before, seen = seen, coloured(browser)
        still = still + 1 if len(seen) > 1000 and abs(len(seen) - len(before)) < 0.01 * len(seen) else 0
    assert browser.title == "out"
    assert still == 3, "something plays"
    # Two of the room's walls, green and blue, are in the middle of the picture.
    assert (np.bincount(seen.argmax(axis=1), minlength=3)[1:] > 200).all()
    assert "Loading" not in browser.execute_script("return document.body.innerText")
