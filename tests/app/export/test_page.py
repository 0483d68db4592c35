"""Export as an HTML page."""

import base64
import re
import threading
from pathlib import Path

import pytest

from stream_recon.app.export import page
from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportOptions
from stream_recon.configs.errors import OutputError
from tests.app.export.rooms import write_room


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "out"
    write_room(folder, 8, source=False)
    return folder


def test_the_file_holds_the_scene_and_no_links(room: Path, tmp_path: Path) -> None:
    before = threading.active_count()
    target, report = export(room, "html", tmp_path / "room.html", ExportOptions(points=3000))
    text = target.read_text()
    data = re.search(r'__VISER_EMBED_DATA__="([A-Za-z0-9+/=]+)"', text)
    assert data is not None and len(base64.b64decode(data[1])) > 9 * 1000
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="?(https?:)?//', text)
    points = int(report.summary.split()[0])
    assert 500 < points <= 3000 and "4 frames" in report.summary
    assert threading.active_count() <= before + 1  # no server is left behind


def test_the_budget_bounds_the_file(room: Path, tmp_path: Path) -> None:
    small, report = export(room, "html", tmp_path / "small.html", ExportOptions(points=1000))
    assert int(report.summary.split()[0]) <= 1000
    # What a point takes in the file, times the most points that there may be.
    large, whole = export(room, "html", tmp_path / "large.html")
    more = int(whole.summary.split()[0]) - int(report.summary.split()[0])
    assert (large.stat().st_size - small.stat().st_size) / more * page.MAX_POINTS + 1e6 < 30e6
    with pytest.raises(OutputError, match="--points"):
        export(room, "html", tmp_path / "none.html", ExportOptions(points=0))
