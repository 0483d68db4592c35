"""Files of the user and of the result beside the target of an export."""

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
