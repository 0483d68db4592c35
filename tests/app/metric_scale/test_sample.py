"""The sample with a rendered marker: reconstructed, refined and converted to metres."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.core.transforms import align
from stream_recon.app.result.folder import read_result
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from tests.app.media import SAMPLE_CAMERA
from tests.app.metric_scale.printed import corners, pasted
from tests.app.program import exit_code

SAMPLE = Path(__file__).resolve().parents[3] / "app" / "sample"
EVERY, SIDE = 10, 0.3


@pytest.mark.slow
def test_a_marker_in_the_sample_gives_metres_within_a_percent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load(SAMPLE / "walkthrough.truth.npz") as content:
        truth, focal = content["T_world_camera"], float(content["intrinsics"][0])
    middle = truth[60]
    place = middle[:3, 3] + middle[:3, :3] @ (0.1, 0.25, 2.0)
    square = corners(place, middle[:3, 0], middle[:3, 1], SIDE)
    source, out = tmp_path / "marked", tmp_path / "out"
    source.mkdir()
    with open_source(str(SAMPLE / "walkthrough.mp4"), FrameChoice(stride=EVERY)) as frames:
        for frame in frames:
            rgb = pasted(frame.rgb, truth[frame.index], focal, square)
            assert cv2.imwrite(str(source / f"{frame.index:03d}.png"), rgb[..., ::-1])
    alone = ["--no-mesh", "--dense", "off"]
    arguments = [str(source), "-o", str(out), "--no-viewer", "--scale-from", f"marker:{SIDE}"]
    arguments += ["--intrinsics", SAMPLE_CAMERA]
    assert exit_code(monkeypatch, *arguments, *alone) == 0
    assert "in metres" in capsys.readouterr().out
    cameras = read_result(out).cameras
    path = np.array([camera.T_world_camera[:3, 3] for camera in cameras])
    left = align(path, truth[::EVERY][[camera.index for camera in cameras], :3, 3])
    assert left.scale == pytest.approx(1, abs=0.01)
    run = json.loads((out / "run.json").read_text())
    assert (
        run["refinement"]
        and abs(np.log(left.scale)) < 4 * run["metric_scale"]["error"] < 0.05
        and "6X6_250 number 7" in run["metric_scale"]["how"]
    )
    # Refined again, it is in metres again.
    assert exit_code(monkeypatch, "refine", str(out), *alone) == 0
    again = json.loads((out / "run.json").read_text())["metric_scale"]
    assert again["scale"] == pytest.approx(run["metric_scale"]["scale"], rel=0.01)
