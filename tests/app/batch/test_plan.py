import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from stream_recon.app.result.depth import depth_path, read_depth
from stream_recon.app.result.folder import read_result
from stream_recon.app.stages.mesh import MeshStage
from tests.app.batch.conftest import Run
from tests.app.batch.fakes import SIZE, room_scene
from tests.app.boxroom import walk_pose
from tests.app.media import write_video

OFF = ("--mapping", "off")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        room_scene(tmp_path / "data" / name)
    return tmp_path / "data"


def scenes_of(out: Path) -> dict[str, Any]:
    return {scene["name"]: scene for scene in json.loads((out / "summary.json").read_text())["scenes"]}


def write_track(path: Path, scale: float) -> None:
    path.parent.mkdir(exist_ok=True)
    positions = [scale * walk_pose(index / 10)[:3, 3] for index in range(12)]
    path.write_text("frame,x,y,z\n" + "".join(f"{n},{x},{y},{z}\n" for n, (x, y, z) in enumerate(positions)))


def write_masks(folder: Path, suffix: str = "jpg") -> None:
    """The left half of each frame."""
    folder.mkdir(parents=True)
    mask = np.full((SIZE[1], SIZE[0]), 255, np.uint8)
    mask[:, : SIZE[0] // 2] = 0
    for number in range(12):
        cv2.imwrite(str(folder / f"{number}.{suffix}"), mask)


def masked_share(folder: Path) -> float:
    """Masked share of the third frame's depth."""
    return float((read_depth(depth_path(folder, 2)).depth == 0).mean())


@pytest.mark.parametrize("split", [1, 2])
def test_each_scene_has_a_track_of_its_own(
    run: Run, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], split: int
) -> None:
    write_track(tmp_path / "tracks" / "one.csv", 3.0)
    write_track(tmp_path / "tracks" / "one.txt", 7.0)  # names are tried in order
    options = ["--scale-from", "track:tracks", "--split", str(split), *OFF]
    assert run("batch", str(data), "-o", "out", *options) == 0
    printed = capfd.readouterr().out
    assert "note: without a track: not converted to metres: two" in printed
    scenes = scenes_of(tmp_path / "out")
    assert scenes["one"]["metric_scale"]["scale"] == pytest.approx(3, rel=1e-3) and "metric_scale" not in scenes["two"]
    one, two = (read_result(tmp_path / "out" / name) for name in ("one", "two"))
    assert one.run["metric_scale"]["name"] == "metre" and "metric_scale" not in two.run
    ours, own = (
        np.linalg.norm(r.cameras[9].T_world_camera[:3, 3] - r.cameras[0].T_world_camera[:3, 3]) for r in (one, two)
    )
    assert ours == pytest.approx(3 * own, rel=1e-3)
    # Finished with this scale, and done again without it.
    assert run("batch", str(data), "-o", "out", *options) == 0
    assert "2 of them earlier" in capfd.readouterr().out
    if split == 1:
        assert run("batch", str(data), "-o", "out", *OFF) == 0
        assert "1 of them earlier" in capfd.readouterr().out


def test_a_track_within_a_scene_is_found_by_name(run: Run, data: Path, tmp_path: Path) -> None:
    write_track(data / "two" / "gps.csv", 2.0)
    assert run("batch", str(data), "-o", "out", "--scale-from", "track:gps.csv", *OFF) == 0
    assert scenes_of(tmp_path / "out")["two"]["metric_scale"]["scale"] == pytest.approx(2, rel=1e-3)


def test_a_scene_that_shows_no_marker_stays_in_its_own_unit(
    run: Run, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("batch", str(data), "-o", "out", "--scale-from", "marker:0.1", *OFF) == 0
    assert "not in metres: one: --scale-from marker:0.1: no ArUco or AprilTag marker" in capfd.readouterr().out
    assert "metric_scale" not in read_result(tmp_path / "out" / "one").run
    assert "no ArUco" in scenes_of(tmp_path / "out")["one"]["metric_scale"]["reason"]


def test_masks_by_the_names_of_scenes_and_within_them(
    run: Run, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_video(data / "walk.mp4", 12, size=SIZE)
    write_masks(tmp_path / "black" / "walk")
    write_masks(data / "one" / "black", "png")
    assert run("batch", str(data), "-o", "out", "--masks", "black", *OFF) == 0
    assert "note: without masks: all pixels are used: two" in capfd.readouterr().out
    shares = {name: masked_share(tmp_path / "out" / name) for name in scenes_of(tmp_path / "out")}
    assert len(shares) == 3 and shares.pop("two") == 0
    assert all(0.4 < share < 0.6 for share in shares.values()), shares
    options = read_result(tmp_path / "out" / "one").run["options"]
    assert options["masks"] == str(data / "one" / "black")


def test_masks_among_the_scenes_are_no_scenes(run: Run, data: Path, tmp_path: Path) -> None:
    write_masks(data / "black" / "two")
    assert run("batch", str(data), "-o", "out", "--masks", str(data / "black"), "--mask-sky", *OFF) == 0
    assert set(scenes_of(tmp_path / "out")) == {"one", "two"}
    assert read_result(tmp_path / "out" / "two").run["options"]["mask_sky"] is True


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--scale-from", "frames:1,5,2"], "frames of which scene"),
        (["--scale-from", "track:walk.csv"], "one track for 2 scenes"),
        (["--scale-from", "track:nothing"], "no scene has a track there"),
        (["--scale-from", "track:bad"], "cannot be read"),
        (["--scale-from", "yards"], "use marker:METRES"),
        (["--masks", "nothing"], "no scene has masks there"),
        (["--masks", "empty"], "no images in it"),
    ],
)
def test_a_missing_sidecar_is_one_line(
    run: Run, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str], printed: str
) -> None:
    write_track(tmp_path / "walk.csv", 1.0)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "two.gpx").write_text("<gpx>")
    (tmp_path / "empty" / "one").mkdir(parents=True)
    assert run("batch", str(data), "-o", "out", *options, *OFF) == 2
    captured = capfd.readouterr()
    assert printed in captured.err and len(captured.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_each_scene_gets_a_mesh_unless_it_is_not_wanted(
    run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(MeshStage, "run", lambda stage, context: made.append(context.folder) or [])
    assert run("batch", str(data), "-o", "without", "--no-mesh", *OFF) == 0
    assert not made
    assert run("batch", str(data), "-o", "out", *OFF) == 0
    assert len(made) == 2
    # Results without a mesh stay valid.
    assert run("batch", str(data), "-o", "without", *OFF) == 0
    assert len(made) == 2
