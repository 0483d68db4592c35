"""Files of the user and of the result beside the target of an export."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportOptions
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


def test_what_killed_exports_left_is_named_and_removed_after_a_day(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_room(tmp_path / "out", 3)
    day, hexes = 90_000.0, ("0123456789abcdef", "fedcba9876543210")
    old, young = (tmp_path / f".there.{each}.part" for each in hexes)
    others = [tmp_path / ".there.part", tmp_path / f".mine.{hexes[0]}.part"]
    for folder in (old, young, *others):
        folder.mkdir()
        (folder / "a").write_text("x")
    for path in (*old.iterdir(), old, *others):
        os.utime(path, (time.time() - day, time.time() - day))
    with caplog.at_level("WARNING"):
        export(tmp_path / "out", "trajectory", tmp_path / "there")
    assert f"{young} is of an export that was killed or goes on; it is removed after a day" in caplog.messages
    assert not old.exists() and young.exists() and all(path.exists() for path in others)


def _content(target: Path) -> dict[str, bytes]:
    """Of the files of an export, with that of a README.txt next to it."""
    paths = [*target.parent.glob(f"{target.name}*"), *target.rglob("*")]
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def _killed_at(number: int, action: Callable[[], object]) -> bool:
    """Whether a fork was killed at its so many-th system call that changes names."""
    process = os.fork()
    if not process:
        left = iter(range(number))

        def counted(*arguments: Any, real: Any, **options: Any) -> Any:
            if (real is not really_open or arguments[1] & os.O_CREAT) and next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        really_open = os.open
        for name in ("open", "mkdir", "replace", "rename", "link", "unlink", "rmdir"):
            setattr(os, name, partial(counted, real=getattr(os, name)))
        action()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize(("form", "name"), [("trajectory", "there"), ("glb", "there.glb")])
def test_a_kill_leaves_the_old_export_or_the_new_one(tmp_path: Path, form: str, name: str) -> None:
    write_room(tmp_path / "out", 3)
    target, states = tmp_path / name, list[dict[str, bytes]]()
    exports = [
        partial(export, tmp_path / "out", form, target, ExportOptions(frames, points), overwrite=True)
        for frames, points in (("all", 10), ("2", 1000))
    ]
    for action in reversed(exports):
        action()
        states.append(_content(target))
    readme, ends = f"{name}.README.txt", set[int]()
    for number in count():
        was_killed = _killed_at(number, exports[1])
        check_target(target, True, is_file=form == "glb")
        left = _content(target)
        # A file may be without its text, but never with that of another one.
        bare = [{name: text for name, text in state.items() if name != readme} for state in states]
        ends.add(states.index(left) if left in states else bare.index(left))
        if not was_killed:
            break
        exports[0]()
    assert ends == {0, 1} and number > 5
