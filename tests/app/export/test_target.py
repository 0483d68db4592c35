"""Files of the user and of the result beside the target of an export."""

import os
import time
from pathlib import Path

import pytest

from stream_recon.app.export.formats import export
from stream_recon.app.export.target import check_target
from stream_recon.configs.errors import OutputError
from tests.app.export.rooms import write_room


def test_a_readme_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    write_room(tmp_path / "out", 3)
    mine = tmp_path / "room.glb.README.txt"
    mine.write_text("my notes")
    with pytest.raises(OutputError, match="was not written by an export"):
        export(tmp_path / "out", "glb", tmp_path / "room.glb")
    assert mine.read_text() == "my notes" and not (tmp_path / "room.glb").exists()
    mine.unlink()
    export(tmp_path / "out", "glb", tmp_path / "room.glb")
    export(tmp_path / "out", "glb", tmp_path / "room.glb", overwrite=True)


@pytest.mark.parametrize("name", ["points.ply", "cameras.json", "trajectory.txt", "tracks.npz", "run.json"])
def test_files_of_the_result_are_no_targets(tmp_path: Path, name: str) -> None:
    write_room(tmp_path / "out", 3)
    with pytest.raises(OutputError, match="file of the result itself"):
        check_target(tmp_path / "out" / name, True, is_file=True)


def test_what_killed_exports_left_is_removed_after_a_day(tmp_path: Path) -> None:
    write_room(tmp_path / "out", 3)
    day, hexes = 90_000.0, ("0123456789abcdef", "fedcba9876543210")
    old, young = (tmp_path / f".there.{each}.part" for each in hexes)
    others = [tmp_path / ".there.part", tmp_path / f".mine.{hexes[0]}.part", tmp_path / f".there.{hexes[0]}.old"]
    for folder in (old, young, *others):
        folder.mkdir()
        (folder / "a").write_text("x")
    for path in (*old.iterdir(), old, *others):
        os.utime(path, (time.time() - day, time.time() - day))
    export(tmp_path / "out", "trajectory", tmp_path / "there")
    assert not old.exists() and young.exists() and all(path.exists() for path in others)
