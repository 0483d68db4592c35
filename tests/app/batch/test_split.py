from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from plyfile import PlyData
from scipy.spatial import cKDTree

from stream_recon.app.batch import stitched_files
from stream_recon.app.batch.chunks import MAX_OVERLAP, MIN_OVERLAP, AlignedChunks, chunk_jobs, open_job, plan_chunks
from stream_recon.app.batch.jobs import ChunkRange, Event, Job, JobResult
from stream_recon.app.batch.plan import Batch
from stream_recon.app.batch.runner import run_batch
from stream_recon.app.batch.stitch import SceneStitcher
from stream_recon.app.batch.stitched_files import StitchedFiles, stitched_health, stitched_segments
from stream_recon.app.batch.workers import SerialPool
from stream_recon.app.core.cancel import Cancel
from stream_recon.app.core.depth_points import transform_result
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.health import HealthMonitor, LowQualityInterval
from stream_recon.app.run.options import RunOptions
from stream_recon.app.sources import opening
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.image_files import Turns
from stream_recon.app.sources.readers import VideoReader
from stream_recon.configs.errors import InputError
from tests.app.batch.fakes import (
    SIZE,
    Listening,
    RoomLoader,
    RoomScene,
    batch_of,
    job_of,
    random_rotation,
    result_files,
    room_scene,
    run,
    states,
    world_of,
)
from tests.app.boxroom import room_result
from tests.app.fake_engine import run_info
from tests.app.media import write_video

FRAMES = 110


@pytest.mark.parametrize(("frames", "count"), [(100, 2), (2000, 4), (1001, 3), (97, 4), (30, 4), (5, 2)])
def test_chunks_cover_all_frames_and_overlap(frames: int, count: int) -> None:
    chunks = plan_chunks(frames, count)
    assert 1 <= len(chunks) <= count and chunks[0].first == 0 and chunks[-1].last is None
    lengths = [(chunk.last or frames) - chunk.first for chunk in chunks]
    assert max(lengths) - min(lengths) <= 1, "no worker waits for another"
    for before, after in pairwise(chunks):
        assert before.last is not None
        assert MIN_OVERLAP <= before.last - after.first <= MAX_OVERLAP
        assert after.first > before.first


def test_a_scene_of_unknown_length_cannot_be_split(tmp_path: Path) -> None:
    scene = room_scene(tmp_path / "a")
    with pytest.raises(InputError, match="no known number of frames"):
        chunk_jobs(job_of(RoomScene("a", scene.path, None), tmp_path), 2)


def test_chunks_have_the_folders_and_keys_of_version_0_2(tmp_path: Path) -> None:
    """So finished chunks of an interrupted split of version 0.2 count."""
    job = job_of(room_scene(tmp_path / "a", 60), tmp_path)
    first, second = chunk_jobs(job, 2)
    assert [first.name, second.name] == [".windows/a/0", ".windows/a/1"]
    assert first.key == {**job.key, "window": {"first": 0, "last": 36}}
    assert second.key["window"] == {"first": 24, "last": None}


@pytest.mark.parametrize("choice", [FrameChoice(), FrameChoice(stride=2), FrameChoice(stride=3, max_frames=18)])
def test_chunks_of_a_video_have_its_frames(tmp_path: Path, choice: FrameChoice) -> None:
    video = write_video(tmp_path / "a.mp4", 60)
    full = replace(job_of(RoomScene("a", video, 60), tmp_path), options=RunOptions(choice))
    expected = [frame.index for frame in open_job(full)]
    for chunk in (ChunkRange(0, 9), ChunkRange(7, 16), ChunkRange(14, None)):
        taken = [frame.index for frame in open_job(replace(full, chunk=chunk))]
        assert taken == expected[chunk.first : chunk.last]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One scene unsplit and split in 4, by an engine that gives each chunk its own coordinates and scale."""
    base = tmp_path_factory.mktemp("split")
    scenes = [room_scene(base / "data" / "a", FRAMES)]
    loader = RoomLoader(own_worlds=True)
    run(batch_of(base / "data", base / "unsplit", scenes), loader)
    summary = run(batch_of(base / "data", base / "split", scenes, split=4), loader)
    return base, summary["scenes"][0]


def test_the_stitched_result_equals_the_unsplit_one(both: tuple[Path, dict[str, Any]]) -> None:
    base, row = both
    unsplit, split = read_result(base / "unsplit" / "a"), read_result(base / "split" / "a")
    assert row["status"] == "done" and row["frames"] == FRAMES
    assert [camera.index for camera in split.cameras] == list(range(FRAMES))
    ours, true = (np.array([camera.T_world_camera for camera in r.cameras]) for r in (split, unsplit))
    np.testing.assert_allclose(ours, true, atol=2e-3)
    # Their first frames are not held against one before; the overlap's are.
    health, whole = ({**each.run["health"]} for each in (split, unsplit))
    # Pictures of two chunks count twice.
    assert health.pop("pictures")["judged"] > whole.pop("pictures")["judged"] == FRAMES
    assert health == whole
    for index in (0, 40, 80, FRAMES - 1):
        a, b = list(split)[index], list(unsplit)[index]
        np.testing.assert_allclose(a.depth, b.depth, rtol=3e-3)
        assert a.timestamp == b.timestamp and a.is_keyframe == b.is_keyframe
    clouds = [cloud(base / name / "a") for name in ("unsplit", "split")]
    assert 0.9 < len(clouds[1]) / len(clouds[0]) < 1.3, "the voxels of another chunk lie askew"
    assert np.quantile(cKDTree(clouds[0]).query(clouds[1])[0], 0.98) < 0.05
    assert row["figures"]["ate_m"] < 2e-3 and row["figures"]["absrel"] < 2e-3


def aligned_chunks(chunks: Sequence[ResultFolder]) -> AlignedChunks:
    aligned = AlignedChunks()
    for chunk in chunks:
        aligned = aligned.with_next(chunk)
    return aligned


def cloud(folder: Path) -> NDArray[np.float64]:
    vertices = PlyData.read(folder / "points.ply")["vertex"]
    return np.stack([vertices[axis] for axis in "xyz"], axis=1).astype(np.float64)


def test_a_stitched_result_is_published_completely(tmp_path: Path) -> None:
    """Its manifest, made from the chunks' manifests, matches every file, and depth files are linked only once."""
    batch = batch_of(
        tmp_path / "data", tmp_path / "out", [room_scene(tmp_path / "data" / "a", 60, known=False)], split=2
    )
    assert states(run(batch, RoomLoader(own_worlds=True))) == {"a": ("done", False)}
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "out" / "a" / "depth").iterdir())
    assert states(run(batch, RoomLoader(own_worlds=True))) == {"a": ("done", True)}


def test_a_stitched_result_has_the_segments_and_health_of_its_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut at 40 that the second chunk, which begins at 36, cannot know as one; weak frames over the overlap at 42."""
    monkeypatch.setattr(stitched_files, "recorded_files", lambda _: {})
    monkeypatch.setattr(stitched_files, "_link_depth", lambda index, *_: (str(index), None))
    (folder := tmp_path / "out").mkdir()
    chunks = []
    for number, (first, last, cut) in enumerate([(0, 48, 40), (36, 80, 0)]):
        writer = ResultWriter(tmp_path / str(number), run_info())
        for index in range(first, last):
            segment = int(0 < cut <= index)
            writer.add(replace(room_result(index), health=0.1 if 39 <= index < 45 else 0.8, segment=segment))
        weak = LowQualityInterval(39, min(last - 1, 44), 3.9, 4.4, 6, "the view changes too fast")
        segments = ({"index": cut, "timestamp": 4.0, "reason": "a cut"},) if cut else ()
        health = HealthMonitor([weak]).summary()
        writer.finish(RunSummary(interrupted=False, health=health, segments=segments))
        chunks.append(read_result(tmp_path / str(number)))
    aligned = aligned_chunks(chunks)
    with closing(StitchedFiles(folder, 0.05)) as files:
        for number in range(2):
            files.add_points(aligned, number)
            files.add_frames(aligned, number)
    assert [camera.segment for camera in files.cameras] == [int(index >= 40) for index in range(80)]
    assert [segment["index"] for segment in stitched_segments(aligned)] == [40]
    health = stitched_health(aligned)
    assert health["weak_frames"] == 6 and len(health["weak"]) == 1
    assert (health["weak"][0]["first"], health["weak"][0]["last"]) == (39, 44)


@pytest.mark.slow
def test_files_are_copied_where_they_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, _target: Path) -> None:
        raise PermissionError(path)

    scenes = [room_scene(tmp_path / "data" / "a", 60, known=False)]
    run(batch_of(tmp_path / "data", tmp_path / "linked", scenes, split=2))
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    run(batch_of(tmp_path / "data", tmp_path / "copied", scenes, split=2))
    assert result_files(tmp_path / "linked" / "a") == result_files(tmp_path / "copied" / "a")


def test_the_overlaps_are_reported(both: tuple[Path, dict[str, Any]]) -> None:
    base, row = both
    chunks = plan_chunks(FRAMES, 4)
    assert read_result(base / "split" / "a").run["options"]["overlaps"] == row["overlaps"]
    for overlap, before, after in zip(row["overlaps"], chunks, chunks[1:], strict=False):
        assert (overlap["first"], overlap["last"] + 1) == (after.first, before.last)
        expected = world_of(before.first).scale / world_of(after.first).scale
        assert overlap["scale"] == pytest.approx(expected, rel=2e-3)
        assert (
            overlap["position_error"] < 2e-3 and overlap["rotation_error_deg"] < 0.01 and overlap["scale_spread"] < 1e-3
        )
    assert len(row["chunk_seconds"]) == 4 and all(seconds > 0 for seconds in row["chunk_seconds"])
    assert len(row["chunk_phases"]) == 4 and all("publish" in phases for phases in row["chunk_phases"])
    assert row["seconds"] == pytest.approx(sum(row["chunk_seconds"]) + row["stitch_seconds"], abs=0.01)
    assert "overlap of frames" in (base / "split" / "index.html").read_text()
    assert not (base / "split" / ".windows").exists(), "the chunks' folders are gone"


def test_true_poses_in_chunks_are_stitched_to_numerical_precision(tmp_path: Path) -> None:
    with np.load(Path(__file__).parents[3] / "app" / "sample" / "walkthrough.truth.npz") as sample:
        truth = sample["T_world_camera"].astype(np.float64)
    noise = np.random.default_rng(1)
    chunks = []
    for number, chunk in enumerate(plan_chunks(len(truth), 4)):
        # Files hold depth as float16, which is exact about powers of two.
        world = Similarity(2.0 ** (-number), random_rotation(noise), noise.normal(size=3))
        writer = ResultWriter(tmp_path / str(number), run_info())
        for index in range(chunk.first, chunk.last or len(truth)):
            true = replace(room_result(0), index=index, timestamp=index / 10, T_world_camera=truth[index])
            writer.add(transform_result(true, world))
        writer.close()
        chunks.append(read_result(tmp_path / str(number)))
    aligned = aligned_chunks(chunks)
    results = [result for number in range(len(chunks)) for result in aligned.results_of(number)]
    stitched = np.array([result.T_world_camera for result in results])
    first_world = stitched[0] @ np.linalg.inv(truth[0])
    np.testing.assert_allclose(stitched[:, :3, :3], first_world[:3, :3] @ truth[:, :3, :3], atol=1e-6)
    errors = pose_errors(stitched, truth, np.ones(len(truth) - 1, bool))
    assert len(stitched) == len(truth) and errors.ate_over_path is not None
    assert errors.ate_over_path < 1e-6 and errors.rpe_rot_deg is not None and errors.rpe_rot_deg < 1e-3
    for overlap in aligned.overlaps:
        assert overlap.scale == 2.0 and overlap.scale_spread == 0
        assert overlap.position_error < 1e-6 and overlap.rotation_error_deg < 1e-3


def test_bad_depth_maps_do_not_change_the_alignment(tmp_path: Path) -> None:
    """A third of the overlap's frames have a depth of their own: the median of the ratios does not see them."""
    chunks = []
    for number, (first, last) in enumerate(((0, 30), (18, 48))):
        writer = ResultWriter(tmp_path / str(number), run_info())
        for index in range(first, last):
            result = transform_result(room_result(index), Similarity(2.0**number, np.eye(3), np.zeros(3)))
            wrong = number == 1 and index in (19, 23, 27, 29)
            writer.add(replace(result, depth=result.depth * np.float32(3 if wrong else 1)))
        writer.close()
        chunks.append(read_result(tmp_path / str(number)))
    (overlap,) = aligned_chunks(chunks).overlaps
    assert overlap.frames == 12 and overlap.scale == 0.5 and overlap.position_error < 1e-6


def test_finished_chunks_of_an_interrupted_split_are_kept(tmp_path: Path) -> None:
    scenes = [room_scene(tmp_path / "data" / "a", 60, known=False)]
    batch = batch_of(tmp_path / "data", tmp_path / "out", scenes, split=2)
    worlds = RoomLoader(own_worlds=True)

    class Once(SerialPool):
        """Does the first job alone."""

        def run(self, jobs: Sequence[Job], on_event: Callable[[Event], None], stop: Cancel) -> None:
            super().run(jobs[:1], on_event, stop)
            stop.requested = True

    summary = run_batch(batch, worlds, Once(worlds, batch.store), Listening())
    assert summary["interrupted"] and summary["scenes"][0]["status"] == "not run"
    kept = next(((tmp_path / "out") / ".windows" / "a").iterdir())
    stamp = (kept / "manifest.json").stat().st_mtime_ns
    counted: list[str] = []
    stale = (tmp_path / "out") / ".windows" / "a" / "7"
    stale.mkdir()
    (stale / "points.ply").write_bytes(b"of a split in more chunks")

    class Counting(SerialPool):
        def run(self, jobs: Sequence[Job], on_event: Callable[[Event], None], stop: Cancel) -> None:
            counted.extend(job.name for job in jobs)
            assert (kept / "manifest.json").stat().st_mtime_ns == stamp
            super().run(jobs, on_event, stop)

    summary = run_batch(batch, worlds, Counting(worlds, batch.store), Listening())
    assert len(counted) == 1 and summary["scenes"][0]["status"] == "done" and summary["scenes"][0]["frames"] == 60
    assert not ((tmp_path / "out") / ".windows").exists()


def reconstructed_chunks(batch: Batch, count: int) -> tuple[Job, list[Job]]:
    """The one scene of a batch and its chunks, all of which are finished and not stitched."""
    loader = RoomLoader(own_worlds=True)
    (job,) = batch.jobs(loader.describe())
    chunks = chunk_jobs(job, count)
    outcomes: list[Event] = []
    with batch.store.lock():
        SerialPool(loader, batch.store).run(chunks, outcomes.append, Cancel())
    assert [event.status for event in outcomes if isinstance(event, JobResult)] == ["done"] * count
    return job, chunks


def test_chunks_are_appended_as_they_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, whichever is finished first, and none after the last one but that one."""
    appended: list[str] = []
    add_points = StitchedFiles.add_points

    def note(files: StitchedFiles, current: AlignedChunks, number: int) -> None:
        appended.append(current.chunks[number].folder.name)
        add_points(files, current, number)

    monkeypatch.setattr(StitchedFiles, "add_points", note)
    batch = batch_of(
        tmp_path / "data", tmp_path / "out", [room_scene(tmp_path / "data" / "a", FRAMES, known=False)], split=4
    )
    job, chunks = reconstructed_chunks(batch, 4)
    with closing(SceneStitcher(job, chunks, batch.store, RoomLoader().describe())) as stitcher:
        progress = []
        for number in (1, 0, 3, 2):
            stitcher.add_chunk(chunks[number].name)
            progress.append(len(appended))
        assert progress == [0, 2, 2, 4] and appended == ["0", "1", "2", "3"]
        record = stitcher.finish()
    assert record["frames"] == FRAMES and record["stitch_seconds_after"] is None
    assert [camera.index for camera in read_result(tmp_path / "out" / "a").cameras] == list(range(FRAMES))


def test_a_scene_without_a_readable_chunk_is_an_error_by_its_name(tmp_path: Path) -> None:
    batch = batch_of(tmp_path / "data", tmp_path / "out", [room_scene(tmp_path / "data" / "a", 4)], split=2)
    (job,) = batch.jobs(RoomLoader().describe())
    with (
        closing(SceneStitcher(job, [], batch.store, RoomLoader().describe())) as stitcher,
        pytest.raises(InputError, match="not one frame of"),
    ):
        stitcher.finish()


def test_an_abandoned_stitching_leaves_only_the_chunks(tmp_path: Path) -> None:
    batch = batch_of(
        tmp_path / "data", tmp_path / "out", [room_scene(tmp_path / "data" / "a", 60, known=False)], split=2
    )
    job, chunks = reconstructed_chunks(batch, 2)
    before = result_files(tmp_path / "out")
    with closing(SceneStitcher(job, chunks, batch.store, RoomLoader().describe())) as stitcher:
        stitcher.add_chunk(chunks[0].name)
    assert result_files(tmp_path / "out") == before


@pytest.mark.slow
def test_a_chunk_entered_at_the_wrong_frame_is_decoded_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a video does of which some packets cannot be decoded."""
    right = VideoReader.seek

    def early(reader: VideoReader, index: int) -> bool:
        assert right(reader, index - 2) and reader._first is not None
        reader._index, reader._first = index, (index, reader._first[1])
        return True

    (tmp_path / "data").mkdir()
    scene = RoomScene("a", write_video(tmp_path / "data" / "a.mp4", 60, size=SIZE), 60, known=False)
    run(batch_of(tmp_path / "data", tmp_path / "seek", [scene], split=3))
    assert not caplog.messages
    monkeypatch.setattr(VideoReader, "seek", early)
    summary = run(batch_of(tmp_path / "data", tmp_path / "wrong", [scene], split=3))
    assert states(summary) == {"a": ("done", False)}
    assert "number frames differently" in caplog.messages[0]
    sought, repeated = (read_result(tmp_path / out / "a").cameras for out in ("seek", "wrong"))
    assert [camera.index for camera in sought] == list(range(60))
    assert [(c.index, c.timestamp) for c in sought] == [(c.index, c.timestamp) for c in repeated]
    monkeypatch.setattr(VideoReader, "seek", lambda *_: False)
    run(batch_of(tmp_path / "data", tmp_path / "through", [scene], split=3))
    assert [c.timestamp for c in sought] == [c.timestamp for c in read_result(tmp_path / "through" / "a").cameras]


def test_a_failed_chunk_fails_its_scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As where the image changes while the scene is read.
    monkeypatch.setattr(opening, "turns_to_one_size", lambda images: Turns())
    scene = room_scene(tmp_path / "data" / "a", 60, known=False)
    (scene.path / "50.jpg").write_bytes((room_scene(tmp_path / "small", 1, size=(64, 48)).path / "0.jpg").read_bytes())
    summary = run(batch_of(tmp_path / "data", tmp_path / "out", [scene], split=2), RoomLoader())
    row = summary["scenes"][0]
    assert row["status"] == "failed" and row["reason"].startswith("chunk 2: ")


def test_a_truncated_video_keeps_the_chunks_before(tmp_path: Path) -> None:
    scene = room_scene(tmp_path / "data" / "a", 60, known=False)
    for number in range(35, 60):
        (scene.path / f"{number}.jpg").write_bytes(b"")
    row = run(batch_of(tmp_path / "data", tmp_path / "out", [scene], split=2))["scenes"][0]
    assert row["status"] == "done" and row["frames"] == 35 and row["damaged"] == 25
    for number in range(60):
        (scene.path / f"{number}.jpg").write_bytes(b"" if number >= 20 else (scene.path / "0.jpg").read_bytes())
    row = run(batch_of(tmp_path / "data", tmp_path / "out2", [scene], split=2))["scenes"][0]
    assert row["status"] == "done" and row["frames"] == 20 and "ends in chunk 1 of 2" in row["warnings"][-1]
