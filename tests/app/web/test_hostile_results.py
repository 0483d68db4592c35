"""Result folders of strangers in the data folder: none takes the list of the others down, or holds up the server."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stream_recon.app.result.cameras import TRAJECTORY_NAME
from stream_recon.app.result.run_record import RUN_NAME
from stream_recon.app.web import library, routes
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.library import Library
from tests.app.result.test_writer import write_run
from tests.app.web.serving import served

QUICK_SECONDS = 3.0


def record(folder: Path, **values: object) -> None:
    """A ``run.json`` with some values that no run writes."""
    write_run(folder)
    path = folder / RUN_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def text(content: str | bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / RUN_NAME).write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def pipe(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / RUN_NAME)


def linked(to: str) -> Callable[[Path], None]:
    def link(folder: Path) -> None:
        folder.mkdir()
        (folder / RUN_NAME).symlink_to(to)

    return link


def huge(folder: Path) -> None:
    folder.mkdir()
    with (folder / RUN_NAME).open("wb") as file:
        file.truncate(5 << 30)


def piped_trajectory(folder: Path) -> None:
    write_run(folder)
    (folder / TRAJECTORY_NAME).unlink()
    os.mkfifo(folder / TRAJECTORY_NAME)


def trajectory(content: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_run(folder)
        (folder / TRAJECTORY_NAME).write_text(content)

    return write


def recorded(**values: object) -> Callable[[Path], None]:
    return lambda folder: record(folder, **values)


def unreadable_name(folder: Path) -> None:
    write_run(Path(os.fsdecode(os.fsencode(folder) + b"-\xff")))


FOLDERS: dict[str, Callable[[Path], None]] = {
    "pipe": pipe,
    "device": linked("/dev/zero"),
    "loop": linked(RUN_NAME),
    "endless": huge,
    "deep": text("[" * 200_000),
    "deep source": text('{"program": "stream-recon", "source": ' + "[" * 900 + "]" * 900 + "}"),
    "no text": text(b"\xff\xfe\x00"),
    "no object": text("[]"),
    "not a number": recorded(frames={"reconstructed": float("nan")}),
    "infinite": recorded(frames={"reconstructed": float("inf")}, source=float("-inf")),
    "endless number": text('{"program": "stream-recon", "frames": {"reconstructed": ' + "9" * 5000 + "}}"),
    "huge number": recorded(frames={"reconstructed": 10**300}),
    "wrong types": recorded(frames=[], verdict=5, source={}, refinement="x", options=None),
    "half a character": recorded(source="\ud800", verdict={"level": "\udfff", "reason": [1]}),
    "nan path": trajectory("nan 0 0 0 0 0 0 1\nnan 0 0 0 0 0 0 1\n"),
    "endless path": trajectory("0 0 0 0 0 0 0 1\n1e999 0 0 0 0 0 0 1\n"),
    "piped path": piped_trajectory,
    "name": unreadable_name,
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_one_bad_folder_leaves_the_page_to_the_others(tmp_path: Path, kind: str) -> None:
    data = DataFolder(tmp_path / "data")
    data.make()
    write_run(data.path / "hall")
    FOLDERS[kind](data.path / "bad")
    with served(data.path, jobs=0) as client:
        began = time.monotonic()
        answer = client.get("/api/state")
        assert answer.status_code == 200 and "hall" in [entry["name"] for entry in answer.json()["results"]]
        assert client.get("/api/results/bad/picture").status_code in (200, 400, 404)
        assert client.get("/").status_code == 200
        assert time.monotonic() - began < QUICK_SECONDS


def test_a_picture_is_read_through_the_door(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "data")
    data.make()
    write_run(data.path / "hall")
    for path in (data.path / "hall" / "depth").iterdir():
        path.unlink()
        os.mkfifo(path)
    with served(data.path, jobs=0) as client:
        began = time.monotonic()
        assert client.get("/api/results/hall/picture").status_code == 400
        assert time.monotonic() - began < QUICK_SECONDS


def test_a_drive_that_does_not_answer_holds_up_neither_the_page_nor_more_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataFolder(tmp_path / "data")
    data.make()
    write_run(data.path / "hall")
    goes_on, reads = threading.Event(), list[int]()

    def hung(self: Library) -> list[library.ResultListing]:
        reads.append(1)
        goes_on.wait(60)
        return whole(self)

    with served(data.path, jobs=0) as client:
        (known,) = client.get("/api/state").json()["results"]
        whole = Library.entries
        monkeypatch.setattr(Library, "entries", hung)
        monkeypatch.setattr(routes, "LIST_SECONDS", 0.5)
        began = time.monotonic()
        for _ in range(2):
            assert client.get("/api/state").json()["results"] == [known]
            assert client.get("/").status_code == 200
        assert len(reads) == 1 and time.monotonic() - began < 10
        goes_on.set()
        assert client.get("/api/state").json()["results"] == [known]


def test_bad_folders_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataFolder(tmp_path / "data")
    data.make()
    text("[" * 200_000)(data.path / "bad")
    read, real = list[Path](), library.read_file

    def counted(path: Path, limit: int, timeout_s: float) -> bytes:
        read.append(path)
        return real(path, limit, timeout_s)

    monkeypatch.setattr(library, "read_file", counted)
    listed = Library(data)
    assert listed.entries() == listed.entries() == []
    assert len(read) == 1
