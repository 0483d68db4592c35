"""Runs from Python: what the command writes, cancelled, resumed, refined and looked at."""

from pathlib import Path

import numpy as np
import pytest

import stream_recon as sr
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from tests.app.media import quick_preset
from tests.app.program import exit_code

SAMPLE = Path(__file__).resolve().parents[3] / "app" / "sample" / "walkthrough.mp4"

IMAGE = np.zeros((48, 64, 3), np.uint8)


@pytest.mark.slow
def test_a_run_is_cancelled_and_resumed(tmp_path: Path) -> None:
    folder, cancel, steps = tmp_path / "out", sr.Cancel(), list[tuple[str, float | None]]()

    def on_progress(step: str, share: float | None) -> None:
        steps.append((step, share))
        cancel.request()

    preset = quick_preset(tmp_path)
    options = {"preset": preset, "stride": 3, "max_frames": 12, "mapping": "off", "mesh": False, "device": "cpu"}
    with pytest.raises(sr.Cancelled):
        sr.reconstruct(SAMPLE, folder, on_progress=on_progress, cancel=cancel, **options)  # type: ignore[arg-type]
    interrupted = sr.open_result(folder)
    assert interrupted.run["interrupted"] and 8 <= len(interrupted) < 12
    assert steps[0][0] == "frames" and 0 < (steps[0][1] or 0) < 1
    result = sr.reconstruct(str(SAMPLE), str(folder), resume=True, **options)  # type: ignore[arg-type]
    assert len(result) == 12 and not result.run["interrupted"] and result.verdict is not None
    assert "12 frames, doubtful, without metric scale" in repr(result)
    again = sr.reconstruct(SAMPLE, folder, resume=True, **options)  # type: ignore[arg-type]
    assert (again.trajectory.poses == result.trajectory.poses).all()
    with pytest.raises(sr.OutputError):
        sr.reconstruct(SAMPLE, folder, **options)  # type: ignore[arg-type]
    stopped, calls = sr.Cancel(), list[tuple[str, float | None]]()
    stopped.request()
    with pytest.raises(sr.Cancelled):
        result.export("colmap", tmp_path / "colmap", cancel=stopped)
    assert not (tmp_path / "colmap").exists()
    result.export("colmap", tmp_path / "colmap", on_progress=lambda step, share: calls.append((step, share)))
    assert calls[-1] == ("colmap", 1.0)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mapping": "ful"}, sr.ConfigError),
        ({"dense": True}, sr.ConfigError),
        ({"device": "gpu"}, sr.ConfigError),
        ({"stride": 0}, sr.ConfigError),
        ({"scale_from": "marker"}, sr.ConfigError),
        ({"source": "nothing-there.mp4"}, sr.InputError),
        ({"source": 1.5}, sr.InputError),
        ({"source": []}, sr.InputError),
        ({"source": [IMAGE.astype(np.float32)]}, sr.InputError),
        ({"source": [IMAGE], "topic": "/image"}, sr.ConfigError),
        ({"source": iter([IMAGE]), "resume": True}, sr.ConfigError),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    tmp_path: Path, options: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        sr.reconstruct(**{"source": SAMPLE, "output": tmp_path / "out", **options})  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_iterator_is_read_once_and_refined_as_a_camera_is(tmp_path: Path) -> None:
    with open_source(str(SAMPLE), FrameChoice(stride=4, max_frames=8)) as source:
        images = iter([frame.rgb for frame in source])
    result = sr.reconstruct(
        images, tmp_path / "out", preset=quick_preset(tmp_path), mesh=False, keep_map=False, device="cpu"
    )
    assert "small images" in result.run["refinement"]["warning"]
    assert "dense" not in result.run and next(images, None) is None


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(sr.OutputError):
        sr.open_result(tmp_path)


@pytest.mark.slow
def test_python_and_the_command_write_the_same_and_either_refines_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = quick_preset(tmp_path)
    options = {"preset": preset, "stride": 4, "max_frames": 10, "mapping": "stream", "mesh": False, "device": "cpu"}
    by_python = sr.reconstruct(SAMPLE, tmp_path / "python", **options)  # type: ignore[arg-type]
    arguments = ["--preset", preset, "--stride", "4", "--max-frames", "10", "--mapping", "stream"]
    arguments += ["--no-mesh", "--device", "cpu", "--no-viewer"]
    assert exit_code(monkeypatch, str(SAMPLE), "-o", str(tmp_path / "command"), *arguments) == 0
    names = ("trajectory.txt", "cameras.json", "points.ply")
    assert all((tmp_path / "python" / n).read_bytes() == (tmp_path / "command" / n).read_bytes() for n in names)
    assert by_python.run["options"] == sr.open_result(tmp_path / "command").run["options"]
    by_python.refine(mesh=False, dense="off", device="cpu")
    assert exit_code(monkeypatch, "refine", str(tmp_path / "command"), "--dense", "off", *arguments[-4:-1]) == 0
    assert "refinement" in by_python.run
    assert (by_python.trajectory.poses == sr.open_result(tmp_path / "command").trajectory.poses).all()
    points, colours = (frame := next(by_python.frames())).points(0.5)
    assert points.shape == colours.shape and len(points) and frame.confidence.max() <= 1
    with pytest.raises(sr.ConfigError):
        by_python.export("obj")
