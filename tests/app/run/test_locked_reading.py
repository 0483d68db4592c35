"""What is written back was read under the folder's lock."""

from dataclasses import replace
from pathlib import Path

import pytest

from stream_recon.app.result.folder import read_result
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.stages import chain
from stream_recon.app.stages.place import ScaleStage
from stream_recon.configs.errors import InputError, OutputError
from tests.app.boxroom import room_result
from tests.app.fake_engine import run_info
from tests.app.stages.chains import run_stage


def write(folder: Path, frames: int) -> None:
    writer = ResultWriter(folder, run_info(), overwrite=True)
    for index in range(frames):
        writer.add(room_result(index))
    writer.finish(RunSummary(interrupted=False))


def test_frames_that_a_run_adds_before_the_lock_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run ends between the start of the command and its lock."""
    write(tmp_path / "out", 3)

    class Late(FolderLock):
        def __init__(self, folder: Path) -> None:
            write(folder, 8)
            super().__init__(folder)

    monkeypatch.setattr(chain, "FolderLock", Late)
    run_stage(tmp_path / "out", ScaleStage("frames:0,2,1.5"))
    result = read_result(tmp_path / "out")
    assert len(result.cameras) == 8 and result.metric_scale is not None


def test_beside_a_run_nothing_is_changed(tmp_path: Path) -> None:
    write(tmp_path / "out", 3)
    with FolderLock(tmp_path / "out"), pytest.raises(OutputError, match="another"):
        run_stage(tmp_path / "out", ScaleStage("frames:0,2,1.5"))


@pytest.mark.parametrize("metres", [1e-9, 9.9e4])
def test_a_unit_out_of_range_is_refused_and_the_result_stays(tmp_path: Path, metres: float) -> None:
    write(tmp_path / "out", 3)
    end = run_stage(tmp_path / "out", ScaleStage(f"frames:0,2,{metres}"))
    with pytest.raises(InputError, match="cannot be"):
        end.check()
    assert read_result(tmp_path / "out").metric_scale is None


def test_a_resumed_run_drops_what_belongs_to_other_poses(tmp_path: Path) -> None:
    from stream_recon.app.result.resume import read_partial_result

    write(tmp_path / "out", 6)
    run = (tmp_path / "out/run.json").read_text().replace('"interrupted": false', '"interrupted": true')
    (tmp_path / "out/run.json").write_text(run)
    (tmp_path / "out/tracks.npz").write_bytes(b"of an earlier refinement")
    (tmp_path / "out/depth/000004.npz").write_bytes(b"torn")
    partial = read_partial_result(tmp_path / "out")
    assert partial is not None and partial.last.index == 3
    writer = ResultWriter(tmp_path / "out", run_info(), resume=partial)
    for index in (4, 5):
        writer.add(replace(room_result(index)))
    writer.finish(RunSummary(interrupted=False))
    assert len(read_result(tmp_path / "out").cameras) == 6 and not (tmp_path / "out/tracks.npz").exists()
    (tmp_path / "out/cameras.json").unlink()
    (tmp_path / "out/run.json").write_text(run)
    assert read_partial_result(tmp_path / "out") is None
