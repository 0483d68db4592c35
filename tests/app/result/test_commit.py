"""Several files that change together: on a full disk, after a kill at each step, and beside links of others."""

import errno
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stream_recon.app.core import output_file
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
    real = output_file.open_new

    def limited(path: Path, permissions: int = 0o644) -> int:
        made[0] += 1
        if made[0] > count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, permissions)

    monkeypatch.setattr(output_file, "open_new", limited)
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


def lines_of(work: Callable[[], object], interrupted: int | None) -> int:
    """Number of lines that a commit runs; Ctrl-C comes before line ``interrupted``."""
    places = {commit.__file__, output_file.__file__}
    count = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in places:
            return None
        if event == "line":
            count += 1
            if count - 1 == interrupted:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            work()
    finally:
        sys.settrace(None)
    return count


def test_ctrl_c_at_each_line_of_a_change_leaves_all_old_or_all_new_files(tmp_path: Path) -> None:
    names = ("run.json", "points.ply")

    def changed(folder: Path) -> None:
        with FolderLock(folder), FolderChange(folder) as change:
            change.part(names[1]).write_text("new")  # a file that is written beside and adopted
            change.replace(names[0], lambda file: file.write(b"new"))
            change.remove("tracks.npz")
            change.commit()

    def fresh(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for each in (*names, "tracks.npz"):
            (folder / each).write_text("old")
        return folder

    total = lines_of(partial(changed, fresh("whole")), None)
    assert total > 60
    seen = set()
    for line in range(total):
        folder = fresh(str(line))
        lines_of(partial(changed, folder), line)
        with FolderLock(folder):  # as the next process does
            pass
        left = {path.name: path.read_text() for path in folder.iterdir()}
        assert left in ({**dict.fromkeys(names, "old"), "tracks.npz": "old"}, dict.fromkeys(names, "new")), line
        seen.add(left["run.json"])
    assert seen == {"old", "new"}


def test_each_step_of_a_change_is_on_the_disk_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system calls, as they were made: contents, their names, the journal, its name, the renames, their names."""
    calls: list[str] = []
    fsync, rename, unlink = os.fsync, os.replace, os.unlink

    def synced(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        calls.append("sync folder" if path == tmp_path else f"sync {path.name.rsplit('.', 2)[0]}")
        fsync(file)

    def renamed(source: Path, target: Path) -> None:
        calls.append(f"rename {target.name}")
        rename(source, target)

    def removed(path: Path) -> None:
        calls.append(f"remove {path.name}")
        unlink(path)

    for name in ("a", "b"):
        (tmp_path / name).write_text("old")
    with monkeypatch.context() as patched, FolderChange(tmp_path) as change:
        change.replace("a", lambda file: file.write(b"new"))
        change.part("c").write_text("adopted")
        change.remove("b")
        for name, call in (("fsync", synced), ("replace", renamed), ("unlink", removed)):
            patched.setattr(os, name, call)
        change.commit()
        done = calls.copy()
    assert done == [
        *("sync a", "sync c", "sync folder"),
        *(f"sync {JOURNAL}", f"rename {JOURNAL}", "sync folder"),
        *("rename a", "rename c", "remove b", "sync folder", f"remove {JOURNAL}"),
    ]


def test_a_second_change_completes_one_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("old")
    with suppress(OutputError), monkeypatch.context() as patched, FolderChange(tmp_path) as change:
        change.replace("a", lambda file: file.write(b"new"))
        real = os.replace

        def failing(source: Path, target: Path) -> None:
            if Path(target).name == "a":
                raise OSError(errno.EIO, "an error of the disk")
            real(source, target)

        patched.setattr(os, "replace", failing)
        change.commit()
    assert is_changing(tmp_path) and (tmp_path / "a").read_text() == "old"
    with FolderChange(tmp_path) as change:
        change.replace("a", lambda file: file.write(b"newest"))
        change.replace("b", lambda file: file.write(b"newest"))
        change.commit()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "newest", "b": "newest"}


@pytest.mark.parametrize(
    "journal",
    [
        {"renames": {"notes.txt.0123456789abcdef.part": "notes.txt"}, "removed": []},
        {"renames": {}, "removed": ["notes.txt"]},
        {"renames": {"points.ply.0123456789abcdef.part": "notes.txt"}, "removed": []},
        {"renames": {"notes.txt.0123456789abcdef.part": "run.json"}, "removed": []},
        {"renames": {}, "removed": [".."]},
        {"renames": {}, "removed": ["depth/000000.npz"]},
    ],
)
def test_a_journal_names_the_programs_own_files_alone(tmp_path: Path, journal: dict[str, object]) -> None:
    mine = {"notes.txt": "mine", "notes.txt.0123456789abcdef.part": "theirs", "points.ply.0123456789abcdef.part": "x"}
    for name, content in mine.items():
        (tmp_path / name).write_text(content)
    (tmp_path / JOURNAL).write_text(json.dumps(journal))
    complete_change(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == mine


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
    monkeypatch.setattr(output_file, "temporary_name", lambda path: path.with_name("guessed.part"))
    (tmp_path / "guessed.part").symlink_to(mine)
    with pytest.raises(OutputError):
        files.replace_file(tmp_path / "a", lambda file: file.write(b"x"))
    assert mine.read_text() == "keep"


def test_only_temporary_files_of_this_program_are_removed(result: Path) -> None:
    kept = [result / "depth/mine.npz.part", result / "notes.part", result / "run.json.0123.part"]
    for path in kept:
        path.write_text("mine")
    gone = output_file.temporary_name(result / "depth/000001.npz")
    gone.write_text("half")
    writer = ResultWriter(result, run_info(), overwrite=True)
    writer.add(replace(room_result(0), index=0))
    writer.finish(RunSummary(interrupted=False))
    assert all(path.read_text() == "mine" for path in kept) and not gone.exists()


def test_temporary_names_differ(tmp_path: Path) -> None:
    names = {output_file.temporary_name(tmp_path / "a").name for _ in range(100)}
    assert len(names) == 100 and all(map(output_file.is_temporary, names))
    assert not output_file.is_temporary("a.part") and commit.JOURNAL.startswith(".")
