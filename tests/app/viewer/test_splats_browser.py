"""Gaussian splats in a real headless Chromium, in the live page and in the page that needs no server."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_recon.app.core.splats import SH_0, Splats, splats_bytes
from stream_recon.app.export.formats import export
from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import SPLATS_NAME, read_result, revision_of
from tests.app.export.rooms import write_room
from tests.app.export.test_glb_browser import coloured
from tests.chromium import needs_browser

pytestmark = [pytest.mark.browser, needs_browser]


def magenta_wall(centre: Any, size: float) -> Splats:
    """A square of opaque magenta splats, a colour that the room does not have."""
    side = np.linspace(-size, size, 24)
    x, y = np.meshgrid(side, side)
    means = np.stack([x.ravel(), y.ravel(), np.zeros(x.size)], 1).astype(np.float32) + np.float32(centre)
    count = len(means)
    sh = np.tile(np.array([0.9, 0.02, 0.9], np.float32) - 0.5, (count, 1, 1)) / SH_0
    scales = np.full((count, 3), np.log(size / 15), np.float32)
    quats = np.tile(np.array([1, 0, 0, 0], np.float32), (count, 1))
    return Splats(means, scales, quats, np.full(count, 4, np.float32), sh.astype(np.float32))


def test_a_page_without_a_server_shows_the_splats_of_a_result(tmp_path: Path, browser: Any) -> None:
    folder = tmp_path / "out"
    write_room(folder, 12, source=False)
    result = read_result(folder)
    ahead = [camera.T_world_camera[:3, 3] + 2 * camera.T_world_camera[:3, 2] for camera in result.cameras]
    (folder / SPLATS_NAME).write_bytes(splats_bytes(magenta_wall(np.median(ahead, axis=0), 1.0)))
    record = json.loads((folder / "run.json").read_text())
    replace_json(folder / "run.json", {**record, "splats": {"revision": revision_of(result)}})
    target, report = export(folder, "html", tmp_path / "scene.html")
    assert "576 splats" in report.summary
    browser.get(target.as_uri())
    deadline, magenta = time.monotonic() + 60, 0
    while magenta < 500 and time.monotonic() < deadline:
        time.sleep(1.0)
        seen = coloured(browser).astype(int)
        magenta = int(((seen[:, 0] > seen[:, 1] + 80) & (seen[:, 2] > seen[:, 1] + 80)).sum())
    assert magenta >= 500
