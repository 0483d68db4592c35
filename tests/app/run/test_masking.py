"""Masks: what is black has no depth, no points, no tracks, and is black in exports, too."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import plyfile
import pytest

from stream_recon.app.core.depth_points import frame_points
from stream_recon.app.core.types import Frame, FrameResult, ImageTransform
from stream_recon.app.export.formats import export
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunInfo
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.masking import Masking, small_mask, unsure_sky
from stream_recon.app.run.pipeline import reconstruct
from stream_recon.app.slam.frame_data import DepthReader, Scale
from stream_recon.app.slam.matching.features import detect
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.masks import MaskFolder
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import InputError
from tests.app.boxroom import room_result
from tests.app.export.rooms import SIZE, write_source
from tests.app.fake_engine import FakeEngine, fake_preset
from tests.app.program import exit_code

FULL = 2 * SIZE[0], 2 * SIZE[1]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "images", 6)


@pytest.fixture
def masks(tmp_path: Path, source: Path) -> Path:
    """The left third of all frames but one is black."""
    folder = tmp_path / "masks"
    folder.mkdir()
    picture = np.full((FULL[1], FULL[0]), 255, np.uint8)
    picture[:, : FULL[0] // 3] = 0
    for path in sorted(source.iterdir())[1:]:
        cv2.imwrite(str(folder / f"{path.stem}.png"), picture)
    return folder


def run(source: Path, masks: Path | None, out: Path, camera: str | None = None) -> None:
    options = {"source": str(source), "stride": 1, "masks": str(masks), "camera": camera}
    engine = FakeEngine(scale_frames=2)
    with open_source(str(source), FrameChoice(masks=None if masks is None else str(masks), camera=camera)) as frames:
        writer = ResultWriter(out, RunInfo.from_engine(engine, frames.name, options))
        reconstruct(frames, engine, writer)


def test_masked_pixels_have_no_depth_in_any_file(source: Path, masks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(source, masks, out)
    results = list(read_result(out))
    assert (results[0].depth > 0).all() and not results[0].masked.any()
    for result in results[1:]:
        width = result.depth.shape[1]
        assert (result.depth[:, : width // 3] == 0).all() and (result.depth[:, width // 3 + 1 :] > 0).all()
        assert result.masked[:, : width // 3].all()
        points = frame_points(result, fake_preset().points)
        assert (points.xyz[:, 0] / points.xyz[:, 2]).min() > -0.35  # of -0.5 to 0.5
    for name in ("transforms", "colmap"):
        target, told = export(out, name, tmp_path / name)
        assert "black pixels are excluded" in " ".join(told.notes)
        for path in sorted((target / "masks").iterdir()):
            mask = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
            image = cv2.imread(str(target / "images" / f"{path.stem}.jpg"))
            assert mask.shape == image.shape[:2]
            black = 0 if path.stem.endswith("000") else FULL[0] // 3 * FULL[1]
            assert (mask == 0).sum() == pytest.approx(black, rel=0.01)
    meta = json.loads((tmp_path / "transforms" / "transforms.json").read_text())
    assert all((tmp_path / "transforms" / frame["mask_path"]).is_file() for frame in meta["frames"])
    units = cv2.imread(str(tmp_path / "transforms" / meta["frames"][1]["depth_file_path"]), cv2.IMREAD_UNCHANGED)
    assert (units[:, : units.shape[1] // 3 - 2] == 0).all()
    vertices = plyfile.PlyData.read(str(out / "points.ply"))["vertex"]
    assert len(vertices) > 100


def test_a_known_camera_bends_masks_with_its_images(source: Path, masks: Path) -> None:
    fx = 0.8 * FULL[0]
    camera = f"{fx},{fx},{FULL[0] / 2 - 30},{FULL[1] / 2},-0.05,0,0,0"
    from stream_recon.app.sources.calibration import parse_camera

    with open_source(str(source), FrameChoice(masks=str(masks), camera=parse_camera(camera).text())) as frames:
        masked = [frame.mask for frame in frames]
    assert masked[0] is None and masked[2] is not None
    # The axis is moved to the middle by 30 pixels and more by the crop.
    share = masked[2].mean()
    assert 0.3 < share < 0.6 and masked[2][:, : FULL[0] // 3].all()


def test_masks_are_found_by_names_or_numbers(source: Path, masks: Path, tmp_path: Path) -> None:
    folder = MaskFolder(masks)
    assert folder.read("001.png", 1, FULL) is not None and folder.read("000.png", 0, FULL) is None
    assert folder.read(None, 3, FULL) is not None
    double = tmp_path / "double"
    double.mkdir()
    (double / "walk_07.jpg.png").write_bytes((masks / "001.png").read_bytes())
    assert MaskFolder(double).read("walk_07.JPG", 0, FULL) is not None
    assert MaskFolder(double).read("walk_08.jpg", 7, FULL) is None
    half = MaskFolder(masks).read("001.png", 1, (FULL[0] // 2, FULL[1] // 2))
    assert half is not None and half.shape == (FULL[1] // 2, FULL[0] // 2)


def test_masks_that_do_not_belong_are_told_before_anything_is_written(
    source: Path, masks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other, empty = tmp_path / "other", tmp_path / "empty"
    for folder in (other, empty):
        folder.mkdir()
    cv2.imwrite(str(other / "cat.png"), np.zeros((8, 8), np.uint8))
    out = tmp_path / "out"
    for folder in (other, empty, tmp_path / "none"):
        assert exit_code(monkeypatch, str(source), "-o", str(out), "--no-viewer", "--masks", str(folder)) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1 and "--masks" in lines[0]
    assert not out.exists()
    cv2.imwrite(str(masks / "002.png"), np.zeros((100, 20), np.uint8))
    with pytest.raises(InputError, match="aspect ratios differ"):
        MaskFolder(masks).read("002.png", 2, FULL)
    (masks / "003.png").write_bytes(b"junk")
    with pytest.raises(InputError, match="not a readable image"):
        MaskFolder(masks).read("003.png", 3, FULL)


def test_no_track_begins_where_a_mask_is() -> None:
    result = room_result(3, size=SIZE)
    mask = np.zeros((FULL[1], FULL[0]), bool)
    mask[:, FULL[0] // 2 :] = True
    masking = Masking(sky=False)
    masking.note(Frame(3, 0.3, np.zeros((FULL[1], FULL[0], 3), np.uint8), mask=mask), result.transform)
    out = masking.apply(result)
    assert out.masked[:, SIZE[0] // 2 :].all() and not out.masked[:, : SIZE[0] // 2].any()
    scale = Scale.from_source_size(FULL)
    grey = scale.grey(room_result(3, size=FULL).rgb)
    free = detect(grey, DepthReader.from_result(result, scale))
    found = detect(grey, DepthReader.from_result(out, scale))
    assert (free.uv[:, 0] > FULL[0] / 2).sum() > 20
    assert len(found) > 20 and (found.uv[:, 0] < FULL[0] / 2).all()


def test_only_large_unsure_pieces_at_the_border_are_sky() -> None:
    confidence = np.ones((60, 80), np.float32)
    confidence[:20] = 0.01
    confidence[18:20, 30:50] = 1
    confidence[40:50, 40:50] = 0.01
    confidence[59, 3] = 0.0
    sky = unsure_sky(confidence)
    assert sky[:17].all() and not sky[25:].any()
    assert not unsure_sky(np.ones((60, 80), np.float32)).any()


def test_masks_of_frames_that_were_left_out_are_forgotten() -> None:
    masking = Masking(sky=False)
    for index in range(5):
        masking.note(Frame(index, 0.0, np.zeros((8, 8, 3), np.uint8), mask=np.ones((8, 8), bool)), _transform())
    assert not masking.apply(room_result(9)).masked.any()
    assert not masking.apply(room_result(3)).masked.any(), "the mask of an earlier frame is gone"
    small = small_mask(np.eye(8, dtype=bool), _transform())
    assert small.shape == (4, 4) and small.trace() == 4


def _transform():  # type: ignore[no-untyped-def]
    result: FrameResult = room_result(0, size=(4, 4))
    return result.transform


def test_masks_meet_the_results_of_their_frames_and_are_let_go() -> None:
    """Frames come first and some have no mask or no result; the sky is checked in `unsure_sky`'s tests."""
    random = np.random.default_rng(3)
    masking, masks = Masking(sky=False), {}
    result = room_result(0)
    height, width = result.depth.shape
    tracemalloc.start()
    for index in range(600):
        mask = random.random((height, width)) < 0.2 if index % 3 else None
        transform = ImageTransform((width, height), (0, 0, width, height), (width, height))
        masking.note(Frame(index, 0.0, np.zeros((height, width, 3), np.uint8), mask=mask), transform)
        masks[index] = mask
        if index % 7 != 6:
            continue
        for late in range(index - 6, index + 1, 2):
            given = replace(result, index=late)
            got, expected = masking.apply(given), masks[late]
            if expected is None:
                assert got is given
            else:
                np.testing.assert_array_equal(got.depth, np.where(expected, 0, result.depth))
                np.testing.assert_array_equal(got.confidence, np.where(expected, 0, result.confidence))
        masks.clear()
    assert tracemalloc.get_traced_memory()[0] < 100 * height * width, "masks without a result are kept"
    tracemalloc.stop()
