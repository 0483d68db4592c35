import json
from pathlib import Path

import pytest

from stream_recon.app.batch.manifest import (
    ALWAYS_RECORDED,
    MANIFEST_NAME,
    Checksum,
    check_manifest,
    check_target,
    file_digest,
    publish,
    recorded_files,
    remove_result,
)
from stream_recon.app.result.writer import ResultWriter
from stream_recon.configs.errors import OutputError
from tests.app.batch.fakes import result_files
from tests.app.boxroom import room_result
from tests.app.fake_engine import run_info

KEY = {"scene": {"path": "a"}, "options": {"stride": 1}, "weights": "ab"}
RESULT = dict.fromkeys(ALWAYS_RECORDED) | {
    "frames": 3, "keyframes": 1, "damaged": 0, "seconds": 0.5, "device": "cpu", "warnings": [], "plot": {},
}  # fmt: skip


def written(folder: Path, frames: int = 3) -> Path:
    writer = ResultWriter(folder, run_info())
    for index in range(frames):
        writer.add(room_result(index))
    writer.close()
    return folder


@pytest.fixture
def done(tmp_path: Path) -> Path:
    publish(written(tmp_path / "work"), tmp_path / "a", KEY, RESULT)
    return tmp_path / "a"


def test_a_published_result_is_complete_and_moved(done: Path, tmp_path: Path) -> None:
    assert check_manifest(done, KEY).result == RESULT
    assert not result_files(tmp_path / "work"), "moved, not copied"
    files = json.loads((done / MANIFEST_NAME).read_text())["files"]
    assert set(files) == {*result_files(done), "run.json"} and len(files) == 7
    assert files["points.ply"][0] == (done / "points.ply").stat().st_size


@pytest.mark.parametrize("name", ["points.ply", "depth/000001.npz", "run.json", "trajectory.txt"])
def test_a_changed_shortened_or_missing_file_is_noticed(done: Path, name: str) -> None:
    data = (done / name).read_bytes()
    for changed in (data[:-1], data[:-1] + bytes([data[-1] ^ 1])):
        (done / name).write_bytes(changed)
        check = check_manifest(done, KEY)
        assert check.result is None and check.reason == f"{name} is missing or changed"
    (done / name).unlink()
    assert check_manifest(done, KEY).result is None


@pytest.mark.parametrize("part", ["scene", "options", "weights"])
def test_a_result_with_another_key_does_not_count(done: Path, part: str) -> None:
    check = check_manifest(done, {**KEY, part: "other"})
    assert check.result is None and check.reason == f"made with other {part}"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"files": 3}', b'{"files": {}, "key": 1, "result": {}}'])
def test_a_damaged_manifest_does_not_count(done: Path, content: bytes) -> None:
    (done / MANIFEST_NAME).write_bytes(content)
    assert check_manifest(done, KEY).result is None


def test_a_folder_without_manifest_is_unfinished(tmp_path: Path) -> None:
    assert check_manifest(tmp_path / "none", KEY).reason == "not there"
    assert check_manifest(written(tmp_path / "half"), KEY).reason == "unfinished"


def test_a_new_result_replaces_the_old_one_and_nothing_else(done: Path, tmp_path: Path) -> None:
    (done / "depth" / "mine.npz").write_text("mine")
    (done / "notes.txt").write_text("mine")
    publish(written(tmp_path / "work2", 1), done, {**KEY, "weights": "cd"}, {**RESULT, "frames": 1})
    assert check_manifest(done, {**KEY, "weights": "cd"}).result == {**RESULT, "frames": 1}
    assert sorted(path.name for path in (done / "depth").iterdir()) == ["000000.npz", "mine.npz"]
    remove_result(done)
    left = {path.relative_to(done).as_posix() for path in done.rglob("*") if path.is_file()}
    assert left == {"depth/mine.npz", "notes.txt"}


def test_no_dense_map_and_no_half_written_file_of_an_earlier_result_stays(done: Path, tmp_path: Path) -> None:
    left = ["dense/000001.npz", "splats.ply", f"cameras.json.{'0a' * 8}.part", f"depth/000009.npz.{'0a' * 8}.part"]
    for name in left:
        (done / name).parent.mkdir(exist_ok=True)
        (done / name).write_bytes(b"earlier")
    publish(written(tmp_path / "work2"), done, KEY, RESULT)
    assert not any((done / name).exists() for name in left)
    for name in left:
        (done / name).parent.mkdir(exist_ok=True)
        (done / name).write_bytes(b"earlier")
    remove_result(done)
    assert not done.exists()


def file_checksum(path: Path) -> Checksum:
    return path.stat().st_size, file_digest(path)


def test_files_with_known_checksums_are_not_read_again(tmp_path: Path) -> None:
    work = written(tmp_path / "work")
    known = {"points.ply": file_checksum(work / "points.ply"), "depth/000001.npz": (1, "known")}
    publish(work, tmp_path / "a", KEY, RESULT, known)
    recorded = recorded_files(tmp_path / "a")
    assert recorded.items() >= known.items() and len(recorded) == 7
    assert check_manifest(tmp_path / "a", KEY).reason == "depth/000001.npz is missing or changed"
    with pytest.raises(OutputError, match="is missing or damaged"):
        recorded_files(tmp_path)


def test_a_removed_result_leaves_no_folder(done: Path) -> None:
    remove_result(done)
    assert not done.exists()


def test_a_folder_of_others_is_no_target(tmp_path: Path) -> None:
    check_target(tmp_path / "none")
    (tmp_path / "a").mkdir()
    check_target(tmp_path / "a")
    (tmp_path / "a" / "run.json").write_text('{"program": "another"}')
    with pytest.raises(OutputError, match="holds other files"):
        check_target(tmp_path / "a")
    with pytest.raises(OutputError, match="is a file"):
        check_target(tmp_path / "a" / "run.json")
