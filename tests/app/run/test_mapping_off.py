"""Without geometry a user gets what the network gives, bit for bit."""

from pathlib import Path

import cv2
import pytest

from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunInfo, RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.pipeline import RunSetup, reconstruct
from stream_recon.app.slam.mode import make_back_end
from stream_recon.app.sources.source import open_source
from tests.app.media import quick_preset
from tests.app.program import exit_code
from tests.app.slam.room import picture, walk

FRAMES = 10


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("walk")
    for index, T in enumerate(walk(FRAMES)):
        cv2.imwrite(str(folder / f"{index:03}.png"), picture(T)[0])
    return folder


def written(folder: Path) -> dict[str, bytes]:
    """All that is written but the record of the run, which has times in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "run.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow
def test_mapping_off_is_the_network_bit_for_bit(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = quick_preset(tmp_path)
    choice = ("--preset", preset, "--no-viewer", "--mapping", "off", "--no-mesh")
    arguments = (str(images), *choice, "-o", str(tmp_path / "off"))
    assert exit_code(monkeypatch, *arguments) == 0
    engine = ModelChoice(preset).load()
    writer = ResultWriter(tmp_path / "plain", RunInfo.from_engine(engine, "", {}))
    with open_source(str(images)) as source:
        results = [result for frame in source for result in engine.push(engine.prepare(frame))]
    results += engine.finish()
    for result in results:
        writer.add(result)
    writer.finish(RunSummary())
    writer.close()
    off, plain = written(tmp_path / "off"), written(tmp_path / "plain")
    assert off.keys() == plain.keys() and len(off) > FRAMES
    for camera, result in zip(read_result(tmp_path / "off").cameras, results, strict=True):
        assert (camera.T_world_camera == result.T_world_camera).all()
        assert camera.intrinsics == result.intrinsics and camera.depth_scale == 1
    # Cameras hold the pipeline's word on their health, too.
    assert [name for name in off if off[name] != plain[name]] == ["cameras.json"]
    assert read_result(tmp_path / "off").run["online_mapping"] is None


@pytest.mark.slow
def test_geometry_keeps_its_figures_in_the_record(images: Path, tmp_path: Path) -> None:
    engine = ModelChoice(quick_preset(tmp_path)).load()
    writer = ResultWriter(tmp_path / "out", RunInfo.from_engine(engine, "", {}))
    with open_source(str(images)) as source:
        back_end = make_back_end("stream", engine.preset.stream.scale_frames)
        reconstruct(source, engine, writer, setup=RunSetup(back_end))
    figures = read_result(tmp_path / "out").run["online_mapping"]
    assert figures["keyframes"] > 1 and figures["tracks"] > 50 and 0 < figures["reprojection_px"] < 3
    assert figures["loops"] == figures["adjustments_skipped"] == 0
