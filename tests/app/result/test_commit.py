"""Several files that change together: on a full disk, after a kill at each step, and beside links of others."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stream_recon.app.core.transforms import Similarity
from stream_recon.app.metric_scale.apply import apply_metric_scale
from stream_recon.app.result import commit, files
from stream_recon.app.result.commit import JOURNAL, FolderChange, complete_change, is_changing
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.metric_scale import MetricScale
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.configs.errors import OutputError
from tests.app.boxroom import room_result
from tests.app.fake_engine import run_info

METRES = MetricScale(Similarity.of_scale(2.5), 0.01, "height:1.6", "a test")


class KilledError(BaseException):
    """Stands for a kill: nothing after it runs."""


@pytest.fixture
def result(tmp_path: Path) -> Path:
    writer = ResultWriter(tmp_path / "out", run_info())
    for index in range(4):
        writer.add(room_result(index))
    writer.finish(RunSummary(interrupted=False))
    return tmp_path / "out"


def state(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def unit(folder: Path) -> tuple[float, float, float]:
    """Scale by run.json, by the cameras and by the cloud: one number where the folder is consistent."""
    found = read_result(folder)
    scale = 1.0 if found.metric_scale is None else found.metric_scale.T_metric_own.scale
    points = (folder / "points.ply").read_bytes()
    last = [float(word) for word in (folder / "trajectory.txt").read_text().splitlines()[-1].split()]
    return scale, found.cameras[-1].depth_scale, len(points) * 0 + last[1] / found.cameras[-1].T_world_camera[0, 3]


def test_all_files_change_or_none(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("old")
    with FolderChange(tmp_path) as change:
        change.replace("a", lambda file: file.write(b"new"))
        change.replace("b", lambda file: file.write(b"new"))
        change.remove("c")
        assert (tmp_path / "a").read_text() == "old"
        change.commit()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "new", "b": "new"}
    with pytest.raises(OutputError), FolderChange(tmp_path) as change:
        change.replace("a", lambda file: file.write(b"newest"))
        raise OutputError("the disk is full")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "new", "b": "new"}


def full_after(count: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From the ``count``-th new file on, the disk is full."""
    made = [0]
    real = files.open_new

    def limited(path: Path) -> int:
        made[0] += 1
        if made[0] > count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path)

    monkeypatch.setattr(files, "open_new", limited)
    return made


@pytest.mark.parametrize("count", range(8))
def test_a_full_disk_leaves_one_unit(result: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    before = state(result)
    full_after(count, monkeypatch)
    try:
        apply_metric_scale(read_result(result), METRES)
    except OutputError:
        assert state(result) == before
    else:
        assert read_result(result).metric_scale is not None
    assert unit(result)[0] == pytest.approx(unit(result)[1])
    assert not [path for path in result.rglob("*.part")]


@pytest.mark.parametrize("step", range(14))
def test_a_kill_at_each_step_leaves_one_unit(result: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A killed process runs no clean-up; the next reader or writer finds the old or the new result."""
    left = step
    real_replace, real_unlink = Path.replace, Path.unlink

    def counted(real: Any) -> Any:
        def call(self: Path, *args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left <= 0:
                raise KilledError
            left -= 1
            return real(self, *args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", counted(real_replace))
        patched.setattr(Path, "unlink", counted(real_unlink))
        with suppress(KilledError):
            apply_metric_scale(read_result(result), METRES)
    scale, depth, path = unit(result)
    assert scale in (1.0, 2.5) and depth == pytest.approx(scale) and path == pytest.approx(1.0, rel=1e-6)
    assert len(set(read_result(result).run["revisions"].values())) == 1
    with FolderLock(result):
        pass
    assert not is_changing(result) and not list(result.rglob("*.part"))


def test_a_result_of_two_revisions_is_not_believed(result: Path) -> None:
    run = json.loads((result / "run.json").read_text())
    run["revisions"] = {"cameras": 2, "trajectory": 1, "points": 1}
    (result / "run.json").write_text(json.dumps(run))
    with pytest.raises(OutputError, match="half changed"):
        read_result(result)
    # A run in progress is like this for a moment.
    (result / "run.json").write_text(json.dumps({**run, "interrupted": True}))
    assert len(read_result(result).cameras) == 4


@pytest.mark.parametrize("content", [b"", b"{", b'{"renames": {"run.json": "../x"}, "removed": []}'])
def test_a_damaged_or_foreign_journal_does_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/run.json").write_text("mine")
    (tmp_path / "out" / JOURNAL).write_bytes(content)
    complete_change(tmp_path / "out")
    assert (tmp_path / "out/run.json").read_text() == "mine" and not (tmp_path / "x").exists()
    assert not is_changing(tmp_path / "out")


@pytest.mark.parametrize("name", ["run.json", "cameras.json", "trajectory.txt", "points.ply", "tracks.npz"])
def test_links_at_temporary_names_are_not_followed(result: Path, tmp_path: Path, name: str) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("keep")
    (result / f"{name}.part").symlink_to(mine)
    apply_metric_scale(read_result(result), METRES)
    writer = ResultWriter(result, run_info(), overwrite=True)
    writer.add(room_result(0))
    writer.finish(RunSummary(interrupted=False))
    assert mine.read_text() == "keep"


def test_a_link_with_the_temporary_name_itself_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("keep")
    monkeypatch.setattr(files, "temporary_name", lambda path: path.with_name("guessed.part"))
    (tmp_path / "guessed.part").symlink_to(mine)
    with pytest.raises(OutputError):
        files.replace_file(tmp_path / "a", lambda file: file.write(b"x"))
    assert mine.read_text() == "keep"


def test_only_temporary_files_of_this_program_are_removed(result: Path) -> None:
    kept = [result / "depth/mine.npz.part", result / "notes.part", result / "run.json.0123.part"]
    for path in kept:
        path.write_text("mine")
    gone = files.temporary_name(result / "depth/000001.npz")
    gone.write_text("half")
    writer = ResultWriter(result, run_info(), overwrite=True)
    writer.add(replace(room_result(0), index=0))
    writer.finish(RunSummary(interrupted=False))
    assert all(path.read_text() == "mine" for path in kept) and not gone.exists()


def entries(folder: Path) -> Iterator[str]:
    return (path.name for path in folder.iterdir())


def test_temporary_names_differ(tmp_path: Path) -> None:
    names = {files.temporary_name(tmp_path / "a").name for _ in range(100)}
    assert len(names) == 100 and all(map(files.is_temporary, names))
    assert not files.is_temporary("a.part") and commit.JOURNAL.startswith(".")
