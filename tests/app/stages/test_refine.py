"""Refinement of result folders: what is written, what stays, and what a cancelled one leaves."""

import dataclasses
import hashlib
import json
import shutil
import sys
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.cancel import Cancel, Cancelled
from stream_recon.app.core.depth_correction import GRID, depth_factors, validated_field
from stream_recon.app.core.ground_truth import DepthMap, GroundTruth
from stream_recon.app.core.types import FrameResult, NetworkEstimate, Revision
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.result.cameras import change_cameras, revision_since_causal
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.commit import FolderChange
from stream_recon.app.result.depth import write_depth
from stream_recon.app.result.folder import read_result, result_of
from stream_recon.app.result.run_record import RUN_NAME, RunSummary
from stream_recon.app.result.tracks import TRACKS_NAME, SparseTracks, read_tracks
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.listeners import RunObserver
from stream_recon.app.run.options import RunOptions
from stream_recon.app.slam.matching.learned import MODULE
from stream_recon.app.slam.offline.report import RefinementReport
from stream_recon.app.sources.source import open_source
from stream_recon.app.stages.again import plan_refinement
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.evaluate import evaluate_result
from stream_recon.app.stages.refinement import write_refinement
from stream_recon.app.stages.refinement_input import STORED_IMAGES
from stream_recon.app.stages.refinement_output import parallax_deg
from stream_recon.app.stages.stage import StageContext
from tests.app.datasets.test_known_poses import write_tum
from tests.app.fake_engine import run_info
from tests.app.page import Page
from tests.app.slam.room import FOCAL, Video, drifting, picture, walk

FRAMES = 8


@pytest.fixture(scope="module")
def video() -> Video:
    truth = walk(16)[:FRAMES]
    return Video(truth, drifting(truth, turn_deg=0.8, move=0.1))


@pytest.fixture
def images(video: Video, tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    video.write_images(folder)
    return folder


@pytest.fixture
def folder(video: Video, tmp_path: Path) -> Path:
    """A result of a known camera, from the same images."""
    folder = tmp_path / "out"
    known = Video(video.truth, drifting(video.truth, turn_deg=0.8, move=0.1), focal=FOCAL)
    known.write_result(folder, known_camera=True)
    return folder


class Listener:
    def __init__(self) -> None:
        self.revisions: list[Revision] = []

    def add(self, result: object) -> None:
        raise AssertionError("nothing new")

    def revise(self, revision: Revision) -> None:
        self.revisions.append(revision)


def contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def ate(folder: Path, video: Video) -> float:
    poses = np.array([camera.T_world_camera for camera in read_result(folder).cameras])
    error = pose_errors(poses, video.truth, np.ones(FRAMES - 1, bool)).ate_m
    assert error is not None
    return error


@dataclasses.dataclass
class Refined:
    """A refined result, which tests leave as it is, and what was told meanwhile."""

    folder: Path
    images: Path
    error: float
    """Before it, as `ate` gives it."""
    points: bytes
    """Before it."""
    report: RefinementReport
    listener: Listener
    page: Page
    shown: list[float]


@pytest.fixture(scope="module")
def refined(video: Video, tmp_path_factory: pytest.TempPathFactory) -> Refined:
    base = tmp_path_factory.mktemp("refined")
    folder, images = base / "out", base / "images"
    video.write_images(images)
    video.write_result(folder)
    error, points = ate(folder, video), (folder / POINTS_NAME).read_bytes()
    listener, page, shown = Listener(), Page(), list[float]()

    class Watching(RunObserver):
        def on_share(self, step: str, share: float, note: str = "") -> None:
            shown.append(share)

    report = write_refinement(StageContext(folder, partial(open_source, str(images)), Watching(), [listener], page))
    return Refined(folder, images, error, points, report, listener, page, shown)


def test_files_tell_the_refined_story_and_keep_the_first(refined: Refined, video: Video) -> None:
    folder = refined.folder
    assert ate(folder, video) < 0.3 * refined.error
    assert (folder / POINTS_NAME).read_bytes() != refined.points
    for camera, result in zip(read_result(folder).cameras, video.results, strict=True):
        assert np.allclose(camera.T_world_camera_causal, result.T_world_camera)
        assert camera.intrinsics_causal == result.intrinsics
        assert camera.depth_scale != 1
    run = json.loads((folder / RUN_NAME).read_text())
    assert run["refinement"]["pairs_accepted"] == refined.report.pairs_accepted > 0
    assert run["refinement"]["warning"] is None and run["interrupted"] is False
    assert set(run["revisions"].values()) == {1}
    shown = refined.shown
    assert shown == sorted(shown) and shown[0] >= 0 and shown[-1] <= 1
    (revision,) = refined.listener.revisions
    assert [frame.index for frame in revision.frames] == list(range(FRAMES))
    assert not list(folder.glob("*.part"))


def test_learned_matches_that_do_not_work_are_told_in_one_line(
    video: Video, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = copy(video)
    bare.blank()
    bare.write_result(tmp_path / "out")
    (tmp_path / f"{MODULE}.py").write_text("raise ImportError('kornia is missing')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    told: list[tuple[str, bool]] = []

    class Watching(RunObserver):
        def on_message(self, line: str, *, warning: bool = False) -> None:
            told.append((line, warning))

    report = write_refinement(StageContext(tmp_path / "out", observer=Watching()))
    assert report.learned_matches is False
    ((line, is_warning),) = [each for each in told if "learned" in each[0]]
    assert is_warning and "kornia is missing" in line and "pip install" in line and "\n" not in line


@pytest.mark.slow
def test_it_begins_from_what_the_network_said(refined: Refined, video: Video, tmp_path: Path) -> None:
    streamed = tmp_path / "streamed"
    writer = ResultWriter(streamed, run_info())
    for result in video.results:
        said = NetworkEstimate(result.T_world_camera, result.intrinsics, 0.5)
        moved = replace(result, T_world_camera=video.truth[0], depth=2 * result.depth, network=said)
        writer.add(moved)
    writer.finish(RunSummary(interrupted=False))
    write_refinement(StageContext(streamed, partial(open_source, str(refined.images))))
    plain, other = read_result(refined.folder).cameras, read_result(streamed).cameras
    for a, b in zip(plain, other, strict=True):
        assert np.allclose(a.T_world_camera, b.T_world_camera) and a.intrinsics == b.intrinsics
        assert b.depth_scale == pytest.approx(a.depth_scale / 2)


@pytest.mark.slow
def test_wrong_depth_is_corrected_alike_for_all_who_listen(tmp_path: Path) -> None:
    truth = walk(16)
    video = Video(truth, drifting(truth, turn_deg=0.3, move=0.05), focal=FOCAL)
    field = validated_field(0.15 * np.sin(3 * np.linspace(-1, 1, GRID))[None] * np.linspace(-1, 1, GRID)[:, None])
    exact = {r.index: r.depth for r in Video(truth, truth, scale_noise=0.0).results}
    folder, size = tmp_path / "out", video.results[0].transform.source_size
    known = GroundTruth(size, dict(enumerate(truth)), None, True, True, lambda index: DepthMap(exact[index]))
    info = replace(run_info(), options={"camera": video.camera_option})
    evaluator, writer = Evaluator(known), ResultWriter(folder, info)
    for result in video.results:
        wrong = result.depth * depth_factors(field, (result.depth.shape[0], result.depth.shape[1]))
        for listener in (evaluator, writer):
            listener.add(replace(result, depth=wrong.astype(np.float16).astype(np.float32)))
    writer.finish(RunSummary(interrupted=False))
    depth_files = contents(folder / "depth")
    write_refinement(StageContext(folder, listeners=[evaluator]))
    assert read_result(folder).run["refinement"]["warning"] == STORED_IMAGES
    assert contents(folder / "depth") == depth_files, "what the network said stays"
    cameras = read_result(folder).cameras
    assert sum(camera.depth_field is not None for camera in cameras) > 12
    plain = revision_since_causal([replace(camera, depth_field=None) for camera in cameras])
    heard, read = evaluator.depth_errors().absrel, evaluate_result(read_result(folder), known).depth_errors().absrel
    evaluator.revise(plain)
    without = evaluator.depth_errors().absrel
    assert heard is not None and read is not None and without is not None
    assert heard == pytest.approx(read, rel=1e-4) and heard < 0.7 * without


def test_tracks_lie_where_cameras_say(refined: Refined) -> None:
    folder = refined.folder
    tracks = read_tracks(folder)
    assert tracks is not None and len(tracks.points) > 100
    cameras = {camera.index: camera for camera in read_result(folder).cameras}
    focal, cx, cy, k1 = tracks.lens
    off = []
    for frame, point, pixel in zip(tracks.frame[:500], tracks.point[:500], tracks.pixel[:500], strict=True):
        T = np.linalg.inv(cameras[int(frame)].T_world_camera)
        x, y, z = T[:3, :3] @ tracks.points[point] + T[:3, 3]
        bent = 1 + k1 * ((x / z) ** 2 + (y / z) ** 2)
        off.append(np.hypot(focal * bent * x / z + cx - pixel[0], focal * bent * y / z + cy - pixel[1]))
    assert np.median(off) < 0.5 and max(off) < 5
    assert (np.diff(tracks.point) >= 0).all()
    assert cameras[0].intrinsics.fx == pytest.approx(focal)


@pytest.mark.slow
def test_again_gives_the_same(refined: Refined, tmp_path: Path) -> None:
    folder = shutil.copytree(refined.folder, tmp_path / "out")
    write_refinement(StageContext(folder, partial(open_source, str(refined.images))))
    once, twice = ([c.T_world_camera for c in read_result(each).cameras] for each in (refined.folder, folder))
    assert np.allclose(once, twice, atol=1e-9)
    assert json.loads((folder / RUN_NAME).read_text())["revisions"]["cameras"] == 2


@pytest.mark.slow
def test_stored_images_serve_where_the_source_is_another_one(folder: Path, images: Path, video: Video) -> None:
    for path in images.iterdir():
        cv2.imwrite(str(path), np.zeros((60, 80, 3), np.uint8))
    before = ate(folder, video)
    write_refinement(StageContext(folder, partial(open_source, str(images))))
    assert json.loads((folder / RUN_NAME).read_text())["refinement"]["warning"] == STORED_IMAGES
    assert ate(folder, video) < 0.6 * before


@pytest.mark.parametrize("calls", [0, 3, 40])
def test_a_cancelled_refinement_changes_nothing(folder: Path, images: Path, calls: int) -> None:
    before = contents(folder)

    class Late(Cancel):
        asked = 0

        def check(self) -> None:
            self.asked += 1
            self.requested = self.asked > calls
            super().check()

    with pytest.raises(Cancelled):
        write_refinement(StageContext(folder, partial(open_source, str(images)), cancel=Late()))
    assert contents(folder) == before


@pytest.mark.slow
def test_cancelled_while_points_are_put_in_place(folder: Path, images: Path) -> None:
    before = contents(folder)

    class Watching(RunObserver):
        def on_step(self, step: str, done: int, total: int, note: str = "") -> None:
            context.cancel.requested = done == 2

    context = StageContext(folder, partial(open_source, str(images)), Watching())
    with pytest.raises(Cancelled):
        write_refinement(context)
    assert contents(folder) == before


def test_a_new_run_removes_the_tracks_of_the_one_before(refined: Refined, video: Video, tmp_path: Path) -> None:
    folder = shutil.copytree(refined.folder, tmp_path / "out")
    assert (folder / TRACKS_NAME).is_file()
    writer = ResultWriter(folder, run_info(), overwrite=True)
    writer.add(video.results[0])
    writer.finish(RunSummary(interrupted=False))
    assert not (folder / TRACKS_NAME).exists()


def test_a_page_is_shown_how_it_comes_along(refined: Refined) -> None:
    page = refined.page
    assert len(page.revisions) == len(page.maps) == 3 and not page.added
    tracks, cameras = read_tracks(refined.folder), read_result(refined.folder).cameras
    assert tracks is not None and page.maps[-1] == (len(tracks.points), len(tracks.loops))
    for frame, camera in zip(page.revisions[-1].frames, cameras, strict=True):
        assert np.allclose(frame.T_world_camera, camera.T_world_camera)
        assert frame.depth_scale == pytest.approx(camera.depth_scale)


@pytest.mark.slow
def test_a_page_goes_back_to_what_is_kept_where_it_is_cancelled(folder: Path, images: Path) -> None:
    class Cancelling(Page):
        def show_map(self, points: NDArray[np.floating], edges: NDArray[np.integer]) -> None:
            super().show_map(points, edges)
            context.cancel.request()

    page = Cancelling()
    context = StageContext(folder, partial(open_source, str(images)), view=page)
    with pytest.raises(Cancelled):
        write_refinement(context)
    assert page.maps[0][0] > 0 and page.maps[-1] == (0, 0) and not page.added
    for frame, camera in zip(page.revisions[-1].frames, read_result(folder).cameras, strict=True):
        assert (frame.T_world_camera == camera.T_world_camera_causal).all() and frame.depth_scale == 1


@pytest.mark.slow
def test_what_is_kept_of_joined_windows_is_their_unit(folder: Path, images: Path, video: Video) -> None:
    """The second half as if it came from a window whose unit is half of the first one's."""
    result = read_result(folder)
    units = [1.0 if number < FRAMES // 2 else 2.0 for number in range(FRAMES)]
    joined = [
        dataclasses.replace(camera, depth_scale=unit, depth_scale_causal=unit)
        for camera, unit in zip(result.cameras, units, strict=True)
    ]
    for camera, unit in zip(result.cameras, units, strict=True):
        given = result_of(folder, camera)
        write_depth(folder, dataclasses.replace(given, depth=given.depth / np.float32(unit)))
    with FolderChange(folder) as change:
        change_cameras(change, joined, 0)
        change.commit()
    listener = Listener()
    before = ate(folder, video)
    for _ in range(2):
        write_refinement(StageContext(folder, partial(open_source, str(images)), listeners=[listener]))
        assert ate(folder, video) < 0.4 * before
        scales = np.array([camera.depth_scale for camera in read_result(folder).cameras])
        assert np.abs(np.log(scales / units)).max() < 0.3
    told = np.array([[frame.depth_scale for frame in revision.frames] for revision in listener.revisions])
    assert told == pytest.approx(np.array([scales / units] * 2), rel=1e-3), "against what was given out"


@pytest.mark.slow
def test_results_of_the_full_size_network_are_refined_alike(tmp_path: Path) -> None:
    """518 pixels wide, patches of 14: nothing may count on the embedded preset's sizes."""
    truth = walk(16)[:FRAMES]
    video = Video(truth, drifting(truth, turn_deg=0.8, move=0.1), focal=FOCAL)
    video.results = [full_size(result) for result in video.results]
    video.write_images(tmp_path / "images")
    video.write_result(tmp_path / "out", known_camera=True)
    before = ate(tmp_path / "out", video)
    report = write_refinement(StageContext(tmp_path / "out", partial(open_source, str(tmp_path / "images"))))
    assert ate(tmp_path / "out", video) < 0.4 * before
    assert report.start == "network" and not report.fallback_segments


def full_size(result: FrameResult) -> FrameResult:
    width = 518
    height = round(width * result.depth.shape[0] / result.depth.shape[1] / 14) * 14
    depth, confidence, rgb = (
        np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR))
        for image in (result.depth, result.confidence, result.rgb)
    )
    transform = dataclasses.replace(result.transform, network_size=(width, height))
    # Its confidence begins at 1.
    return dataclasses.replace(result, depth=depth, confidence=1 + confidence, rgb=rgb, transform=transform)


@pytest.mark.slow
def test_frames_without_depth_files_are_taken_along(folder: Path, images: Path, video: Video) -> None:
    for index in (2, 5):
        (folder / "depth" / f"{index:06d}.npz").unlink()
    run = json.loads((folder / RUN_NAME).read_text())
    run["frames"]["without_depth"] = 2
    (folder / RUN_NAME).write_text(json.dumps(run))
    before, page = ate(folder, video), Page()
    write_refinement(StageContext(folder, partial(open_source, str(images)), view=page))
    assert len(read_result(folder).cameras) == FRAMES == len(page.revisions[-1].frames)
    assert ate(folder, video) < 0.9 * before, "two of eight are only carried along"
    assert (folder / POINTS_NAME).stat().st_size > 1000


def test_the_parallax_is_the_angle_under_which_points_are_seen() -> None:
    poses = np.tile(np.eye(4), (3, 1, 1))
    poses[:, 0, 3] = -0.1, 0.0, 0.1
    tracks = SparseTracks(
        points=np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0], [0.0, 0.0, 4.0]]),
        errors=np.zeros(3, np.float32),
        frame=np.array([4, 8, 4, 6, 8, 4, 8], np.int32),
        point=np.array([0, 0, 1, 1, 1, 2, 2], np.int32),
        pixel=np.zeros((7, 2), np.float32),
        lens=np.array([100.0, 50.0, 50.0, 0.0]),
        source_size=np.array([100, 100], np.int32),
        loops=np.zeros((0, 2), np.int32),
    )
    assert parallax_deg(tracks, poses, [4, 6, 8]) == pytest.approx(2 * np.degrees(np.arctan(0.05)), abs=1e-3)
    turning = np.tile(np.eye(4), (3, 1, 1))
    assert parallax_deg(tracks, turning, [4, 6, 8]) == 0.0


def test_fixed_poses_stay_in_their_world_and_depth_follows_them(
    video: Video, images: Path, folder: Path, tmp_path: Path
) -> None:
    options = RunOptions(poses=f"fixed:{write_tum(tmp_path / 'poses.txt', video.truth)}", mesh=False, dense_side=None)
    again = partial(open_source, str(images))
    assert run_stages(RunPlan.of(options), StageContext(folder, again)).is_complete
    result = read_result(folder)
    assert np.allclose([camera.T_world_camera for camera in result.cameras], video.truth, atol=1e-6)
    for camera, T, own in zip(result.cameras, video.truth, video.results, strict=True):
        ratio = camera.depth_scale * np.median(own.depth) / np.median(picture(T)[1])
        assert ratio == pytest.approx(1, abs=0.04), "metres of the poses"
    assert result.run["poses"]["use"] == "fixed" and result.metric_scale is not None
    assert not result.run["refinement"]["fallback_segments"]
    plan, _ = plan_refinement(folder, RunOptions(mesh=False, dense_side=None))
    assert plan.stages[0] == RunPlan.of(dataclasses.replace(options, poses=result.run["poses"]["from"])).stages[0]
