from pathlib import Path

import pytest

from stream_recon.app.batch.ray_workers import RayPool
from stream_recon.app.batch.runner import run_batch
from stream_recon.app.batch.store import LocalStore
from stream_recon.app.batch.workers import SerialPool
from stream_recon.app.core.cancel import Cancel
from stream_recon.configs.errors import ResourceError, WeightsError
from tests.app.batch.fakes import Listening, RoomLoader, batch_of, result_files, room_scene

pytest.importorskip("ray")


def test_a_cluster_gives_the_same_files_though_an_actor_is_lost(tmp_path: Path) -> None:
    root, marker = tmp_path / "data", tmp_path / "killed"
    scenes = [room_scene(root / name, frames) for name, frames in (("a", 12), ("b", 9))]
    plain, loader = batch_of(root, tmp_path / "plain", scenes), RoomLoader()
    run_batch(plain, loader, SerialPool(loader, plain.store), Listening())
    batch, loader = batch_of(root, tmp_path / "out", scenes), RoomLoader(seconds=0.1, die_once=marker)
    listening = Listening()
    summary = run_batch(batch, loader, RayPool(loader, batch.store, "local", 1), listening)
    assert marker.exists() and [scene["status"] for scene in summary["scenes"]] == ["done", "done"]
    assert listening.frames == 21 and len(listening.rows) == 2
    assert listening.progress_events > 2, "frames were counted while scenes were under way"
    for name in ("a", "b"):
        assert result_files(tmp_path / "out" / name) == result_files(tmp_path / "plain" / name)
    unusable = RoomLoader(unusable=True)
    other = batch_of(root, tmp_path / "other", scenes)
    with pytest.raises(WeightsError, match="another family"):
        run_batch(other, unusable, RayPool(unusable, other.store, "local", 1), Listening())


def test_an_actor_that_crashes_while_it_loads_is_one_line(tmp_path: Path) -> None:
    loader = RoomLoader(crashing=True)
    batch = batch_of(tmp_path, tmp_path / "out", [room_scene(tmp_path / "data" / "a")])
    with pytest.raises(ResourceError) as raised:
        run_batch(batch, loader, RayPool(loader, batch.store, "local", 1), Listening())
    assert str(raised.value) == "a Ray actor cannot load the model: of the GPU"


def test_without_a_cluster_auto_says_so(tmp_path: Path) -> None:
    pool = RayPool(RoomLoader(), LocalStore(tmp_path), "auto", None)
    with pytest.raises(ResourceError, match="no Ray cluster at auto"):
        pool.run([], lambda event: None, Cancel())
