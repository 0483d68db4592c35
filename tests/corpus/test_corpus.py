"""Each file of the corpus gives its expected value; make_corpus.py writes the files."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_recon.app.datasets.find import find_scenes
from stream_recon.app.datasets.scene import CALIBRATED
from stream_recon.app.metric_scale.gps_alignment import scale_by_track
from stream_recon.app.metric_scale.scale_source import GpsTrack, parse_scale_source
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.sources.calibration import parse_camera
from stream_recon.app.sources.colour import tone_curve
from stream_recon.app.sources.containers import film
from stream_recon.app.sources.opening import without_password
from stream_recon.app.sources.source import Source, open_source
from stream_recon.app.sources.undistort import Undistorter
from stream_recon.configs.errors import StreamReconError
from tests.app.boxroom import room_result

CORPUS = Path(__file__).parent
CASES: list[dict[str, Any]] = json.loads((CORPUS / "expected.json").read_text())
LARGEST = 5_000_000
"""Bytes of the corpus."""


@pytest.mark.parametrize("case", CASES, ids=[f"{case['kind']}-{case['file']}" for case in CASES])
def test_each_file_gives_what_it_says(case: dict[str, Any]) -> None:
    if case["kind"] == "source" and case["file"].endswith(".bag"):
        pytest.importorskip("rosbags")
    if "refused" in case:
        with pytest.raises(StreamReconError, match=case["refused"]) as raised:
            CHECKS[case["kind"]](case)
        assert "\n" not in str(raised.value)
    else:
        CHECKS[case["kind"]](case)


def test_the_corpus_is_small_and_complete() -> None:
    files = [path for path in (CORPUS / "files").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < LARGEST
    named = {case["file"] for case in CASES}
    assert {path.relative_to(CORPUS / "files").parts[0] for path in files} <= named


def check_camera(case: dict[str, Any]) -> None:
    lens = Undistorter(parse_camera(str(CORPUS / "files" / case["file"])).for_size((384, 288)), (384, 288))
    for x, y, u, v in case["pixels"]:
        assert lens.to_source(np.array([[x, y]]))[0] == pytest.approx((u, v), abs=0.1)


def check_source(case: dict[str, Any]) -> None:
    with open_source(str(CORPUS / "files" / case["file"])) as source:
        check_frames(case, source)


def check_scene(case: dict[str, Any]) -> None:
    (scene,) = find_scenes(CORPUS / "files" / case["file"])
    camera = CALIBRATED if "focal" in case else None
    with replace(scene, camera=camera).open() as source:
        check_frames(case, source)
    if "poses" in case:
        truth = scene.truth()
        assert truth is not None and len(truth.poses) == case["poses"]


def check_film(case: dict[str, Any]) -> None:
    """What cannot be decoded is refused, or the film is read and what was done is told: it depends on OpenCV."""
    try:
        with open_source(str(CORPUS / "files" / case["file"])) as source:
            means = [float(frame.rgb.mean()) for frame in source]
            assert min(means) > 60 and max(means) < 200
            lines = source.warnings
    except StreamReconError as error:
        lines = [str(error)]
    assert any(re.search(case["told"], line) for line in lines), lines


def check_frames(case: dict[str, Any], source: Source) -> None:
    frames = list(source)
    assert len(frames) == case["frames"]
    if "size" in case:
        assert [frames[0].rgb.shape[1], frames[0].rgb.shape[0]] == case["size"]
    if "hint" in case:
        assert source.frame_hint == case["hint"]
    if "times" in case:
        assert [frame.timestamp for frame in frames] == pytest.approx(case["times"], abs=1e-4)
    if "focal" in case:
        assert source.intrinsics is not None and source.intrinsics.fx == pytest.approx(case["focal"], abs=0.01)
    if "damaged" in case:
        assert source.damaged == case["damaged"] and not source.warnings
    if "warning" in case:
        assert any(case["warning"] in line for line in source.warnings)
    if "quarters" in case:
        parts = np.array_split(frames[0].rgb.mean(axis=2), 4, axis=1)
        assert [float(part.mean()) for part in parts] == pytest.approx(case["quarters"], abs=5)
    if "transfer" in case:
        path = CORPUS / "files" / case["file"]
        assert film(path).tracks[0].transfer == {16: "PQ", 18: "HLG"}[case["transfer"]]
        assert tone_curve(path) is not None
    if "means" in case:
        assert [float(frame.rgb.mean()) for frame in frames] == pytest.approx(case["means"], abs=0.01)


def check_scenes(case: dict[str, Any]) -> None:
    assert [scene.name for scene in find_scenes(CORPUS / "files" / case["file"])] == case["names"]


def read_track(case: dict[str, Any]) -> GpsTrack:
    source, _ = parse_scale_source(f"track:{CORPUS / 'files' / case['file']}")
    assert isinstance(source, GpsTrack)
    return source


def check_track(case: dict[str, Any]) -> None:
    positions = read_track(case).positions
    # Positions on the earth are relative to the first of them.
    metres = positions.metres - positions.metres[0] + np.array(case["metres"][0])
    assert metres == pytest.approx(np.array(case["metres"]), abs=case.get("within", 2e-3))
    assert positions.times is not None
    assert positions.times - positions.times[0] == pytest.approx(np.array(case["times"]), abs=1e-3)


def check_clip(case: dict[str, Any]) -> None:
    blank, cameras = room_result(0), []
    for second, place in enumerate(case["path"]):
        T = np.eye(4)
        T[:3, 3] = place
        cameras.append(FrameCamera.from_result(replace(blank, index=second, timestamp=float(second), T_world_camera=T)))
    found = scale_by_track(cameras, np.array([0.0, 0, 1]), GpsTrack(read_track(case).positions), "track")
    assert found.T_metric_own.scale == pytest.approx(case["scale"], rel=0.01)
    assert float(found.how.split("begins ")[1].split(" s")[0]) == pytest.approx(case["begins"], abs=2)


def check_address(case: dict[str, Any]) -> None:
    assert without_password(case["file"]) == case["shown"]


CHECKS = {
    "film": check_film,
    "camera": check_camera,
    "source": check_source,
    "scene": check_scene,
    "scenes": check_scenes,
    "track": check_track,
    "clip": check_clip,
    "address": check_address,
}
