import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stream_recon.app.batch.jobs import Event, JobProgress, ModelIdentity, longest_first
from stream_recon.app.batch.runner import run_batch
from stream_recon.app.batch.store import LocalStore
from stream_recon.app.batch.workers import ProcessPool
from stream_recon.app.core.cancel import Cancel
from stream_recon.configs.errors import WeightsError
from tests.app.batch.fakes import (
    WEIGHTS,
    Listening,
    RoomLoader,
    RoomScene,
    assert_same_result,
    batch_of,
    job_of,
    room_scene,
    run,
    states,
)


@pytest.mark.slow
def test_a_killed_worker_does_not_change_the_results(tmp_path: Path) -> None:
    root, marker = tmp_path / "data", tmp_path / "killed"
    scenes = [room_scene(root / name, frames) for name, frames in (("a", 12), ("b", 9), ("c", 10))]
    run(batch_of(root, tmp_path / "plain", scenes), RoomLoader())
    summary = run(batch_of(root, tmp_path / "out", scenes), RoomLoader(die_once=marker), 2)
    assert marker.exists(), "a worker was killed at frame 6 of a scene"
    assert [scene["status"] for scene in summary["scenes"]] == ["done"] * 3
    for name in ("a", "b", "c"):
        assert_same_result(tmp_path / "out" / name, tmp_path / "plain" / name)
    assert not (tmp_path / "out" / ".work").exists(), "what the killed one left is gone"


@pytest.mark.slow
def test_a_batch_killed_in_mid_scene_takes_its_workers_along_and_is_resumed(tmp_path: Path) -> None:
    root, out = tmp_path / "data", tmp_path / "out"
    scenes = [room_scene(root / name, frames) for name, frames in (("a", 12), ("b", 40), ("c", 3))]
    program = (
        "import sys; from pathlib import Path; from tests.app.batch.fakes import *\n"
        "root, out = map(Path, sys.argv[1:])\n"
        "scenes = [RoomScene(name, root / name, n) for name, n in (('a', 12), ('b', 40), ('c', 3))]\n"
        "run(batch_of(root, out, scenes), RoomLoader(seconds=0.1), 2)\n"
    )
    arguments = [sys.executable, "-c", program, str(root), str(out)]
    with subprocess.Popen(arguments, cwd=Path(__file__).parents[3]) as process:
        work = out / ".work"
        while (
            not ((out / "a" / "manifest.json").exists() and any(work.glob("*/depth/*.npz"))) and process.poll() is None
        ):
            time.sleep(0.05)
        process.kill()
    time.sleep(1.0)  # a worker may be in the middle of a frame, and the machine may be busy
    before = sum(1 for _ in work.rglob("*"))
    time.sleep(0.5)
    assert before > 1 and sum(1 for _ in work.rglob("*")) == before, "nobody writes on"
    run(batch_of(root, tmp_path / "plain", scenes))
    assert states(run(batch_of(root, out, scenes)))["a"] == ("done", True)
    for name in ("a", "b", "c"):
        assert_same_result(out / name, tmp_path / "plain" / name)
    assert len(json.loads((out / "b" / "run.json").read_text())["resumed"]) == 1, "what was done of it was kept"
    assert not work.exists()


@pytest.mark.slow
def test_a_scene_that_kills_every_worker_is_given_up(tmp_path: Path) -> None:
    root = tmp_path / "data"
    scenes = [room_scene(root / "deadly", 9), room_scene(root / "harmless", 5)]
    summary = run(batch_of(root, tmp_path / "out", scenes), RoomLoader(die_always=True), 1)
    deadly, harmless = summary["scenes"]
    assert deadly["status"] == "failed" and "killed by signal 9, 3 times" in deadly["reason"]
    assert harmless["status"] == "done"


def test_a_model_that_no_worker_can_load_ends_the_batch(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with pytest.raises(WeightsError, match="another family"):
        run(batch_of(root, tmp_path / "out", [room_scene(root / "a")]), RoomLoader(unusable=True), 2)


@pytest.mark.slow
def test_workers_stop_within_a_scene_on_request(tmp_path: Path) -> None:
    root, out = tmp_path / "data", tmp_path / "out"
    out.mkdir()
    scene = room_scene(root / "a", 30)
    stop = Cancel()
    events: list[Event] = []

    def on_event(event: Event) -> None:
        events.append(event)
        stop.requested = True

    ProcessPool(RoomLoader(seconds=0.2), LocalStore(out), 1).run([job_of(scene, root)], on_event, stop)
    (event,) = events
    assert isinstance(event, JobProgress) and event.frames < 30
    assert not (out / "a").exists()


def test_the_longest_come_first_and_unknown_lengths_before_them(tmp_path: Path) -> None:
    scenes = [room_scene(tmp_path / name, frames) for name, frames in (("short", 2), ("long", 9), ("middle", 5))]
    jobs = [job_of(scene, tmp_path) for scene in [*scenes, RoomScene("live", tmp_path / "short", None)]]
    assert [job.scene.name for job in longest_first(jobs)] == ["live", "long", "middle", "short"]


@pytest.mark.slow
def test_workers_share_out_gpus_and_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    notes = tmp_path / "notes"
    notes.mkdir()
    scenes = [room_scene(tmp_path / "data" / name, 12) for name in "abc"]
    loader = RoomLoader(seconds=0.05, named_gpus=("4", "GPU-9"), notes=notes)
    run(batch_of(tmp_path / "data", tmp_path / "out", scenes), loader, 3)
    given = [note.read_text().split() for note in notes.iterdir()]
    assert sorted(gpu for gpu, _ in given) == ["4", "4", "GPU-9"]
    cores = len(os.sched_getaffinity(0))
    assert {int(threads) for _, threads in given} == {max(1, cores // 3)}
    records = [json.loads((tmp_path / "out" / name / "run.json").read_text()) for name in "abc"]
    assert [record["weights_sha256"] for record in records] == [WEIGHTS] * 3, "hashed while workers loaded them"


@pytest.mark.slow
def test_workers_begin_before_the_weights_are_hashed_and_end_where_nothing_is_to_do(tmp_path: Path) -> None:
    scenes = [room_scene(tmp_path / "data" / name, 4) for name in "ab"]
    batch = batch_of(tmp_path / "data", tmp_path / "out", scenes)
    run(batch, workers=2)

    begun: list[int] = []

    class Watched(RoomLoader):
        def describe(self) -> ModelIdentity:
            # Called in parallel to the start of workers, which does not wait for it.
            deadline = time.monotonic() + 20
            while len(multiprocessing.active_children()) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            begun.append(len(multiprocessing.active_children()))
            return super().describe()

    loader = Watched()
    summary = run_batch(batch, loader, ProcessPool(RoomLoader(), batch.store, 4), Listening())
    assert begun == [2], "no more workers than scenes"
    assert all(resumed for _, resumed in states(summary).values())
    assert not multiprocessing.active_children()
