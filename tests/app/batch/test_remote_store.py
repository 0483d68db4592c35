import json
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stream_recon.app.batch.remote_store import RemoteStore, open_store, remote_lock
from stream_recon.app.batch.store import LOCK_NAME, LocalStore
from stream_recon.app.core.remote_files import RemoteFiles
from stream_recon.configs.errors import ConfigError, OutputError, ResourceError
from tests.app.batch.fakes import RoomLoader, batch_of, result_files, room_scene, run, states

fsspec = pytest.importorskip("fsspec")


def store_at(address: str) -> RemoteStore:
    return RemoteStore(address, heartbeat_s=0.1)


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> str:
    """Address in this process's memory, which is empty and, like a bucket, has keys and no folders."""
    memory = type(fsspec.filesystem("memory"))
    monkeypatch.setattr(memory, "store", {})
    monkeypatch.setattr(memory, "pseudo_dirs", [""])
    return "memory://bucket/my results"


@pytest.fixture
def files(address: str) -> RemoteFiles:
    return RemoteFiles(address)


def downloaded(files: RemoteFiles, name: str, target: Path) -> dict[str, bytes]:
    files.download(name, list(files.sizes(name)), target)
    return result_files(target)


def test_results_at_an_address_are_those_in_a_folder(tmp_path: Path, address: str, files: RemoteFiles) -> None:
    root = tmp_path / "data"
    scenes = [room_scene(root / "straße [1] *"), room_scene(root / "two", 2)]
    plain = run(batch_of(root, tmp_path / "plain", scenes))
    summary = run(batch_of(root, store_at(address), scenes))
    assert states(summary) == states(plain)
    for scene in plain["scenes"]:
        name = scene["name"]
        assert downloaded(files, name, tmp_path / "got" / name) == result_files(tmp_path / "plain" / name)
    assert {name for name in files.sizes("") if "/" not in name} == {"summary.json", "summary.csv", "index.html"}
    assert json.loads(files.read("summary.json") or b"") == summary
    assert (files.read("index.html") or b"").count(b"data:image/jpeg;base64,") == 2


@pytest.mark.slow
def test_finished_results_at_an_address_are_kept_and_others_redone(
    tmp_path: Path, address: str, files: RemoteFiles
) -> None:
    root = tmp_path / "data"
    scenes = [room_scene(root / name) for name in ("kept", "cut", "gone", "unfinished")]
    run(batch_of(root, store_at(address), scenes))
    run_of_kept = files.read("kept/run.json")
    ply = files.read("cut/points.ply") or b""
    files.write("cut/points.ply", ply[:-1] + b"x")
    files.remove(["gone/depth/000003.npz", "unfinished/manifest.json"])
    files.write("unfinished/notes.txt", b"mine")
    summary = run(batch_of(root, store_at(address), scenes))
    assert [state for _, state in states(summary).values()] == [True, False, False, False]
    assert files.read("kept/run.json") == run_of_kept and files.read("cut/points.ply") == ply
    assert files.read("unfinished/notes.txt") == b"mine"
    run(batch_of(root, store_at(address), scenes, max_frames=2))
    assert sorted(files.sizes("kept/depth")) == ["000000.npz", "000001.npz"], "nothing of the longer one is left"


def test_the_manifest_comes_last(
    tmp_path: Path, address: str, files: RemoteFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    real = RemoteFiles.upload

    def breaks(self: RemoteFiles, source: Path, folder: str, names: list[str]) -> None:
        if "points.ply" in names:
            real(self, source, folder, ["cameras.json"])
            raise OutputError("the network is gone")
        real(self, source, folder, names)

    monkeypatch.setattr(RemoteFiles, "upload", breaks)
    scenes = [room_scene(root / "a")]
    summary = run(batch_of(root, store_at(address), scenes))
    assert summary["scenes"][0]["reason"] == "the network is gone"
    assert set(files.sizes("a")) == {"run.json", "cameras.json"}
    monkeypatch.undo()
    assert states(run(batch_of(root, store_at(address), scenes))) == {"a": ("done", False)}


def test_files_of_others_there_are_left_alone(tmp_path: Path, address: str, files: RemoteFiles) -> None:
    files.write("a/points.ply", b"somebody's")
    summary = run(batch_of(tmp_path, store_at(address), [room_scene(tmp_path / "data" / "a")]))
    assert "holds other files" in summary["scenes"][0]["reason"]
    assert files.read("a/points.ply") == b"somebody's" and list(files.sizes("a")) == ["points.ply"]


@pytest.mark.slow
def test_a_split_video_is_stitched_there(tmp_path: Path, address: str, files: RemoteFiles) -> None:
    root = tmp_path / "data"
    scenes, loader = [room_scene(root / "a", 60)], RoomLoader(own_worlds=True)
    plain = run(batch_of(root, tmp_path / "plain", scenes, split=2), loader)
    summary = run(batch_of(root, store_at(address), scenes, split=2), loader)
    assert summary["scenes"][0]["overlaps"] == plain["scenes"][0]["overlaps"]
    assert downloaded(files, "a", tmp_path / "got") == result_files(tmp_path / "plain" / "a")
    assert not [name for name in files.sizes("") if name.startswith(".windows")]


@pytest.mark.slow
def test_a_worker_killed_in_mid_scene_changes_nothing_at_an_address(tmp_path: Path) -> None:
    root, marker = tmp_path / "data", tmp_path / "killed"
    scenes = [room_scene(root / name, frames) for name, frames in (("a", 12), ("b", 9))]
    run(batch_of(root, tmp_path / "plain", scenes))
    # A folder, through fsspec: other processes must see it.
    store = store_at(f"file://{tmp_path}/out")
    summary = run(batch_of(root, store, scenes), RoomLoader(die_once=marker), 2)
    assert marker.exists() and [scene["status"] for scene in summary["scenes"]] == ["done", "done"]
    for name in ("a", "b"):
        assert result_files(tmp_path / "out" / name) == result_files(tmp_path / "plain" / name)


def test_a_second_batch_on_the_same_address_refuses(tmp_path: Path, address: str, files: RemoteFiles) -> None:
    batch = batch_of(tmp_path, store_at(address), [room_scene(tmp_path / "data" / "a")])
    with (
        remote_lock(files, 0.1),
        pytest.raises(OutputError, match=r"another batch is writing to memory://.*process \d+ on"),
    ):
        run(batch)
    assert states(run(batch)) == {"a": ("done", False)}, "the lock ends with its holder"
    assert files.read(LOCK_NAME) is None


def test_the_lock_of_a_killed_batch_is_taken_over(files: RemoteFiles, caplog: pytest.LogCaptureFixture) -> None:
    files.make_folder()
    files.write(LOCK_NAME, b'{"holder": "process 1 on a machine that is off"}')
    with remote_lock(files, 0.1):
        assert b"machine that is off" not in (files.read(LOCK_NAME) or b"")
    assert "watching for" in caplog.text and files.read(LOCK_NAME) is None


@pytest.mark.parametrize("beats", [1, 2])
def test_a_lock_that_is_renewed_once_is_alive(files: RemoteFiles, monkeypatch: pytest.MonkeyPatch, beats: int) -> None:
    """Its batch may be slow, as where its network is."""
    contents = iter([*[b'{"holder": "a slow one"}'] * beats, b'{"holder": "a slow one", "at": 2}'])
    read = files.read
    monkeypatch.setattr(files, "read", lambda name: next(contents, None) or read(name))
    with pytest.raises(OutputError, match=r"another batch is writing to .* \(a slow one\)"), remote_lock(files, 0.02):
        pass


def test_of_batches_that_begin_together_at_most_one_is_admitted(files: RemoteFiles) -> None:
    files.make_folder()
    inside, most = [], []
    together = threading.Barrier(4)

    def begin() -> None:
        together.wait()
        try:
            with remote_lock(files, 0.2):
                inside.append(1)
                most.append(len(inside))
                threading.Event().wait(0.5)
                inside.pop()
        except OutputError as error:
            assert "another batch" in str(error)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most, default=0) <= 1


def test_a_lost_lock_is_neither_renewed_nor_removed(files: RemoteFiles, caplog: pytest.LogCaptureFixture) -> None:
    with remote_lock(files, 0.05):
        files.write(LOCK_NAME, b"another's")
        threading.Event().wait(0.3)
    assert files.read(LOCK_NAME) == b"another's" and "took" in caplog.text


def test_the_connection_is_not_pickled(address: str) -> None:
    store = store_at(address)
    store.read("anything")
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store and copy.__getstate__() == {"address": address, "heartbeat_s": 0.1}


@pytest.mark.parametrize("place", ["some/folder", "file://{}/some/folder", "local://{}/some/folder"])
def test_folders_are_folders_also_as_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store(place.format(tmp_path)) == LocalStore(tmp_path / "some" / "folder")


def test_an_address_that_cannot_be_used_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="nonsense://a is no address that fsspec knows"):
        open_store("nonsense://a")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ResourceError, match="s3://bucket/a needs s3fs: pip install s3fs"):
        open_store("s3://bucket/a")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ResourceError, match="pip install fsspec"):
        open_store("s3://bucket/a")


def raises(error: Exception) -> Callable[..., None]:
    def call(*_: object, **__: object) -> None:
        raise error

    return call


def test_an_error_of_any_store_is_one_line(files: RemoteFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        type(fsspec.filesystem("memory")), "find", raises(RuntimeError("Unable to locate\n credentials"))
    )
    with pytest.raises(OutputError) as raised:
        files.sizes("")
    assert str(raised.value) == f"cannot read {files.address}: RuntimeError: Unable to locate credentials"


def test_an_error_shows_no_credentials(files: RemoteFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries quote what they signed, and what a store refused."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden/hidden+")
    said = "403 for https://me:word@host/my file?X-Amz-Signature=abc with hidden/hidden+"
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "find", raises(PermissionError(said)))
    with pytest.raises(OutputError) as raised:
        files.sizes("")
    assert str(raised.value).endswith("PermissionError: 403 for https://***@host/my file?*** with ***")
    with pytest.raises(ConfigError, match=r"nonsense://\*\*\*@bucket is no address") as refused:
        open_store("nonsense://key:word@bucket")
    assert "word" not in str(refused.value)
