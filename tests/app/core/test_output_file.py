"""The door for files that are written: new ones alone, and no file of the program opens one for writing beside it."""

import ast
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_recon.app.core.output_file import give_name, is_disk_full, new_file, open_again, replacing, write_new
from stream_recon.configs.errors import OutputError

TREE = Path(__file__).parents[3]
DOOR = "app/core/output_file.py"
OTHERS = {
    "app/result/lock.py": "the lock of a folder is a file that others may have made; it is opened without links",
    "app/sources/scan_folder.py": "lines for the server, in a folder that it has just made for this user alone",
    "app/cli/console.py": "the null device",
    "app/core/platform.py": "/proc/self/autogroup",
}
"""Files that open others for writing themselves, with the reason."""
WRITING = re.compile(r"(?=.*[wax+])[rwaxbt+]{1,3}")
WRITERS = {"write_text", "write_bytes", "touch", "imwrite", "mkstemp", "NamedTemporaryFile", "savetxt", "tofile"}
OF_SHUTIL = {"copy", "copy2", "copyfile", "copytree", "move", "make_archive"}


def opened_for_writing(tree: ast.AST) -> Iterator[int]:
    """Lines of a program at which a file is opened or made under a name."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        of = owner.id if isinstance(owner, ast.Name) else ""
        inside = [node for each in (*call.args, *(word.value for word in call.keywords)) for node in ast.walk(each)]
        words = {node.value for node in inside if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        flags = {node.attr for node in inside if isinstance(node, ast.Attribute)}
        is_text_file = name == "savetxt" and isinstance(call.args[0], ast.Name)  # given an open file
        if (
            (name in ("open", "FileIO") and of != "os" and any(map(WRITING.fullmatch, words)))
            or (of == "os" and name == "open" and flags & {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"})
            or (name in WRITERS and not is_text_file)
            or (of == "shutil" and name in OF_SHUTIL)
        ):
            yield call.lineno


@pytest.mark.parametrize(
    "line, found",
    [
        ("open(path, 'w')", True),
        ("path.open('ab')", True),
        ("path.open(mode='x')", True),
        ("path.open('w' if overwrite else 'x')", True),
        ("gzip.open(path, 'wt')", True),
        ("os.open(path, os.O_WRONLY | os.O_CREAT)", True),
        ("path.write_text(text)", True),
        ("shutil.copyfile(a, b)", True),
        ("cv2.imwrite(str(path), image)", True),
        ("open(path)", False),
        ("path.open('rb')", False),
        ("os.open(path, os.O_RDONLY)", False),
        ("zipfile.ZipFile(file, 'w')", False),
        ("values.copy()", False),
        ("new_file(path)", False),
    ],
)
def test_the_search_finds_ways_to_write(line: str, found: bool) -> None:
    assert bool(list(opened_for_writing(ast.parse(line)))) == found


def test_files_are_written_through_one_door() -> None:
    places = {}
    for folder in ("app", "models", "cache", "configs"):
        for path in sorted((TREE / folder).rglob("*.py")):
            name = path.relative_to(TREE).as_posix()
            lines = list(opened_for_writing(ast.parse(path.read_text(encoding="utf-8"))))
            if lines and name != DOOR:
                places[name] = lines
    assert not {name: lines for name, lines in places.items() if name not in OTHERS}
    assert set(OTHERS) == set(places), "a file of the list opens none any more"


def test_no_name_that_is_taken_is_written_to(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("keep")
    (tmp_path / "link").symlink_to(mine)
    (tmp_path / "to nothing").symlink_to(tmp_path / "made")
    os.mkfifo(tmp_path / "pipe")
    for name in ("mine.txt", "link", "to nothing", "pipe"):
        with pytest.raises(FileExistsError):
            write_new(tmp_path / name, b"x")
    for name in ("link", "to nothing", "pipe", "missing"):
        with pytest.raises(OSError):
            open_again(tmp_path / name)
    assert mine.read_text() == "keep" and not (tmp_path / "made").exists()
    with replacing(tmp_path / "link") as file:  # the link is replaced, not followed
        file.write(b"x")
    assert mine.read_text() == "keep" and not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("links", [True, False])
def test_a_name_that_was_taken_meanwhile_is_not_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:

        def none(*_: object) -> None:
            raise OSError(errno.EPERM, "no hard links here")

        monkeypatch.setattr(os, "link", none)
    part, target = tmp_path / "part", tmp_path / "target"
    write_new(part, "mine")
    write_new(target, "theirs")
    with pytest.raises(FileExistsError):
        give_name(part, target, overwrite=False)
    assert (part.read_text(), target.read_text()) == ("mine", "theirs")
    target.unlink()
    give_name(part, target, overwrite=False)
    assert target.read_text() == "mine" and not part.exists()
    write_new(part, "newer")
    give_name(part, target, overwrite=True)
    assert target.read_text() == "newer"


def test_content_is_on_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system calls of a durable write, as they were made."""
    calls: list[str] = []
    fsync, rename = os.fsync, os.replace

    def synced(file: int) -> None:
        calls.append("sync folder" if os.path.isdir(f"/proc/self/fd/{file}") else "sync file")  # noqa: PTH112
        fsync(file)

    def renamed(source: str, target: str) -> None:
        calls.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    with replacing(tmp_path / "a", durable=True) as file:
        file.write(b"x")
    assert calls == ["sync file", "rename", "sync folder"]


def test_what_raises_leaves_the_old_file(tmp_path: Path) -> None:
    write_new(tmp_path / "a", "old")
    for error in (OSError(errno.ENOSPC, "full"), KeyboardInterrupt()):
        with pytest.raises(type(error)), replacing(tmp_path / "a") as file:
            file.write(b"half")
            raise error
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "old"


def test_permissions_hold_from_the_first_moment(tmp_path: Path) -> None:
    with new_file(tmp_path / "key", 0o600):
        assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_is_known_by_its_cause() -> None:
    try:
        try:
            raise OSError(errno.ENOSPC, "full")
        except OSError as error:
            raise OutputError("cannot write") from error
    except OutputError as error:
        assert is_disk_full(error)
    assert not is_disk_full(OutputError("cannot write")) and not is_disk_full(OSError(errno.EACCES, "no"))
