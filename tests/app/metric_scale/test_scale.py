"""Results brought to metres: every file, every export and the page follow, and what goes on from there does, too."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import plyfile
import pytest

from stream_recon.app.cli.console import result_consoles
from stream_recon.app.cli.progress import TerminalObserver
from stream_recon.app.cli.view import show_result
from stream_recon.app.core.cancel import Cancel, Cancelled
from stream_recon.app.core.types import FrameResult
from stream_recon.app.export.formats import export
from stream_recon.app.metric_scale import apply, measure
from stream_recon.app.metric_scale.scale_source import parse_scale_source
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.folder import read_result, result_of
from stream_recon.app.result.resume import read_partial_result
from stream_recon.app.result.run_record import RUN_NAME, RunSummary
from stream_recon.app.result.tracks import SparseTracks, read_tracks
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.stages.place import ScaleStage
from tests.app.boxroom import HALF, room_result
from tests.app.export.rooms import SIZE, room_frames, write_room
from tests.app.fake_engine import run_info
from tests.app.metric_scale.printed import corners, pasted
from tests.app.page import Page
from tests.app.program import exit_code
from tests.app.result_files import write_tracks
from tests.app.stages.chains import run_stage

FACTOR = 1.85
SIDE = 0.8


def distance(frames: list[FrameResult], first: int, second: int) -> float:
    return float(np.linalg.norm(frames[second].T_world_camera[:3, 3] - frames[first].T_world_camera[:3, 3]))


def points(folder: Path) -> np.ndarray:
    vertices = plyfile.PlyData.read(str(folder / POINTS_NAME))["vertex"]
    return np.stack([vertices[axis] for axis in "xyz"], axis=1)


@pytest.fixture
def room(tmp_path: Path) -> Path:
    write_room(tmp_path / "out", 20)
    tracks = SparseTracks(
        points=np.array([[0.0, 0, 4], [1, 1, 4]]),
        errors=np.zeros(2, np.float32),
        frame=np.array([0, 4, 0, 4], np.int32),
        point=np.array([0, 0, 1, 1], np.int32),
        pixel=np.zeros((4, 2), np.float32),
        lens=np.array([2 * 0.8 * SIZE[0], SIZE[0], SIZE[1], 0.0]),
        source_size=np.array([2 * SIZE[0], 2 * SIZE[1]], np.int32),
        loops=np.zeros((0, 2), np.int32),
    )
    write_tracks(tmp_path / "out", tracks)
    return tmp_path / "out"


def scaled(monkeypatch: pytest.MonkeyPatch, room: Path, factor: float = FACTOR) -> None:
    frames = room_frames(20)
    assert exit_code(monkeypatch, "scale", str(room), f"frames:2,19,{factor * distance(frames, 2, 19)}") == 0


def test_all_files_are_in_metres_and_say_so(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, cloud = read_result(room), points(room)
    scaled(monkeypatch, room)
    result = read_result(room)
    for new, old in zip(result.cameras, before.cameras, strict=True):
        assert new.T_world_camera[:3, 3] == pytest.approx(FACTOR * old.T_world_camera[:3, 3])
        assert np.allclose(new.T_world_camera[:3, :3], old.T_world_camera[:3, :3])
        assert new.depth_scale == pytest.approx(FACTOR) and new.intrinsics == old.intrinsics
        assert np.allclose(new.T_world_camera_causal, old.T_world_camera_causal)
    # Voxels grow along: as many points, on the walls of the larger room.
    assert len(points(room)) == pytest.approx(len(cloud), rel=0.1)
    assert np.abs(np.abs(points(room)) - FACTOR * HALF).min(axis=1).max() < 0.06
    tracks = read_tracks(room)
    assert tracks is not None and tracks.points == pytest.approx(FACTOR * np.array([[0, 0, 4], [1, 1, 4]]))
    unit = json.loads((room / RUN_NAME).read_text())["metric_scale"]
    assert unit["name"] == "metre" and unit["scale"] == pytest.approx(FACTOR) and unit["error"] is None
    assert unit["from"].startswith("frames:2,19,") and unit["world"] == "first camera"
    assert len(set(json.loads((room / RUN_NAME).read_text())["revisions"].values())) == 1
    tum = np.loadtxt(room / "trajectory.txt")
    assert tum[:, 1:4] == pytest.approx(np.array([c.T_world_camera[:3, 3] for c in result.cameras]), abs=1e-6)
    target, _ = export(room, "depth", room.parent / "depth")
    text = " ".join((target / "README.txt").read_text().split())
    assert "Unit: metres, by frames:2,19" in text and "reconstruction's own" not in text
    stored = cv2.imread(str(target / "depth/frame_000003.png"), cv2.IMREAD_UNCHANGED)
    assert stored / 1000 == pytest.approx(FACTOR * room_frames(4)[3].depth, abs=0.01)


def test_given_again_it_follows_the_last(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scaled(monkeypatch, room, 3.0)
    scaled(monkeypatch, room)
    metres = read_result(room).metric_scale
    assert metres is not None and metres.T_metric_own.scale == pytest.approx(FACTOR)
    assert read_result(room).cameras[7].depth_scale == pytest.approx(FACTOR)


@pytest.mark.slow
def test_a_marker_in_the_source_and_the_height_above_the_ground(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    square = corners(np.array([0.8, 0.0, HALF[2]]), np.array([1.0, 0, 0]), np.array([0, 1.0, 0]), SIDE)
    source = room.with_name("out-source")
    for path, frame in zip(sorted(source.iterdir()), room_frames(20), strict=True):
        rgb = np.ascontiguousarray(cv2.imread(str(path))[..., ::-1])
        # As it hangs on the wall that the cameras see, in another unit.
        rgb = pasted(rgb, frame.T_world_camera, frame.intrinsics.fx, square)
        assert cv2.imwrite(str(path), rgb[..., ::-1])
    assert exit_code(monkeypatch, "scale", str(room), f"marker:{FACTOR * SIDE}") == 0
    metres = read_result(room).metric_scale
    assert metres is not None and metres.T_metric_own.scale == pytest.approx(FACTOR, rel=0.01)
    # Seen over a short way, halves of which say little: it is stated with care.
    assert metres.error is not None and abs(np.log(metres.T_metric_own.scale / FACTOR)) < metres.error < 0.05
    assert "6X6_250 number 7" in metres.how
    height = HALF[1] - np.median([frame.T_world_camera[1, 3] for frame in room_frames(20)])
    assert exit_code(monkeypatch, "scale", str(room), f"height:{1.2 * height}") == 0
    metres = read_result(room).metric_scale
    assert metres is not None and metres.T_metric_own.scale == pytest.approx(1.2, rel=0.01)


def test_a_track_gives_its_axes_and_exports_say_where_they_are(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turned = np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]])
    lines = [
        f"{f.timestamp} {' '.join(str(v) for v in 2 * turned @ f.T_world_camera[:3, 3] + (1e5, 2e6, 0))}"
        for f in room_frames(20)
    ]
    track = room.with_name("track.txt")
    track.write_text("\n".join(lines))
    assert exit_code(monkeypatch, "scale", str(room), f"track:{track}") == 0
    result = read_result(room)
    assert result.metric_scale is not None and result.metric_scale.T_metric_own.scale == pytest.approx(2.0, rel=1e-3)
    # The floor and the ceiling are now level in z.
    assert np.ptp(points(room)[:, 2]) == pytest.approx(4 * HALF[1], abs=0.15)
    target, _ = export(room, "trajectory", room.parent / "path")
    text = " ".join((target / "README.txt").read_text().split())
    assert "axes of the track file" in text and "Origin: (1000" in text
    # What gives no axes has those of the first camera again.
    scaled(monkeypatch, room)
    result = read_result(room)
    assert result.metric_scale is not None and result.metric_scale.world == "first camera"
    assert result.metric_scale.origin is None
    for camera, frame in zip(result.cameras, room_frames(20), strict=True):
        assert np.allclose(camera.T_world_camera[:3, :3], frame.T_world_camera[:3, :3], atol=1e-6)
        assert np.allclose(camera.T_world_camera[:3, 3], FACTOR * frame.T_world_camera[:3, 3], atol=1e-5)


def test_the_page_is_told_the_unit(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = Page()
    with TerminalObserver(*result_consoles(), page) as observer:
        assert run_stage(room, ScaleStage("frames:2,19,1.5"), observer=observer, view=page).is_complete
    assert page.said[-1].startswith("in metres: ") and page.said[-1] == capsys.readouterr().out.splitlines()[0]
    assert page.revisions and not page.added


def test_the_page_shows_it_as_it_is_and_as_it_was_in_one_unit(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scaled(monkeypatch, room)

    page = Page()
    monkeypatch.setattr(
        "stream_recon.app.viewer.viewer.show_results", lambda viewer, results: [viewer.add(r) for r in results]
    )
    show_result(page, read_result(room), lambda error: None)  # type: ignore[arg-type]
    assert page.added[3].depth == pytest.approx(FACTOR * room_frames(4)[3].depth, rel=0.01)
    (revision,) = page.revisions
    assert all(frame.depth_scale == pytest.approx(1) for frame in revision.frames)
    assert revision.frames[5].T_world_camera == pytest.approx(page.added[5].T_world_camera)


def test_what_was_cut_off_goes_on_in_its_own_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = tmp_path / "out"
    writer = ResultWriter(room, run_info())
    for frame in room_frames(20):
        writer.add(frame)
    writer.close()
    scaled(monkeypatch, room)
    left = read_partial_result(room)
    assert left is not None
    for camera, frame in zip(left.cameras, room_frames(20), strict=True):
        assert np.allclose(camera.T_world_camera, frame.T_world_camera, atol=1e-6)
        assert camera.depth_scale == pytest.approx(1)
    writer = ResultWriter(room, replace(run_info(), options=left.record["options"]), resume=left)
    writer.add(room_result(20, size=SIZE))
    writer.finish(RunSummary(interrupted=False))
    result = read_result(room)
    assert result.metric_scale is None and len(result.cameras) == 21
    assert result.cameras[3].T_world_camera == pytest.approx(room_frames(4)[3].T_world_camera)


def test_bad_input_is_one_line_and_leaves_the_result(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in room.rglob("*") if path.is_file()}
    for what in ("marker:0.2", "exif", "frames:1,99,2", "height:0", "track:nowhere.gpx", "yard:3"):
        assert exit_code(monkeypatch, "scale", str(room), what) == 2
        lines = [line for line in capsys.readouterr().err.splitlines() if line.strip() and "\u2501" not in line]
        assert len(lines) == 1 and lines[0].startswith("stream-recon: error: --scale-from")
    assert exit_code(monkeypatch, "scale", str(room / "none"), "height:1") == 2
    assert exit_code(monkeypatch, str(room), "--scale-from", "yard:3") == 2
    assert {path: path.read_bytes() for path in room.rglob("*") if path.is_file()} == before


def test_ctrl_c_leaves_the_result_as_it_was(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, text = parse_scale_source("frames:2,19,5")
    result = read_result(room)
    metres = measure.measure_scale(result, given, text)
    before = {path: path.read_bytes() for path in room.rglob("*") if path.is_file()}
    cancel = Cancel()
    cancel.request()
    with pytest.raises(Cancelled):
        apply.apply_metric_scale(result, metres, cancel.checked(lambda done, total: None))
    assert {path: path.read_bytes() for path in room.rglob("*") if path.is_file()} == before

    def stop(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(apply, "read_tracks", stop)
    assert exit_code(monkeypatch, "scale", str(room), "frames:2,19,5") in (2, 130)


def test_depth_of_a_frame_is_its_points(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scaled(monkeypatch, room)
    result = read_result(room)
    frame = result_of(room, result.cameras[6])
    world = frame.camera_points.reshape(-1, 3) @ frame.T_world_camera[:3, :3].T + frame.T_world_camera[:3, 3]
    assert np.quantile(np.abs(np.abs(world) - FACTOR * HALF).min(axis=1), 0.99) < 0.03
