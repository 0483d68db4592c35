"""The recording for Rerun, read by Rerun itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportOptions
from stream_recon.configs.errors import ResourceError
from tests.app.export.rooms import write_room


def test_rerun_finds_cameras_pictures_points_and_path(tmp_path: Path) -> None:
    pytest.importorskip("rerun")
    write_room(tmp_path / "out", 8, source=False)
    target, report = export(tmp_path / "out", "rrd", tmp_path / "room.rrd", ExportOptions(points=5000))
    assert "4 cameras, 4 of them with images" in report.summary
    command = [str(Path(sys.executable).with_name("rerun")), "rrd"]
    verified = subprocess.run([*command, "verify", str(target)], capture_output=True, text=True, check=False)
    assert verified.returncode == 0 and "without error" in verified.stdout + verified.stderr
    printed = subprocess.run([*command, "print", str(target)], capture_output=True, text=True, check=True).stdout
    for entity in ("/world/path", "/world/camera", "/world/camera/image", "/world/points/0", "/world/points/6"):
        assert entity in printed


def test_without_the_library_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_room(tmp_path / "out", 4, source=False)
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(ResourceError, match="pip install rerun-sdk"):
        export(tmp_path / "out", "rrd", tmp_path / "room.rrd")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
