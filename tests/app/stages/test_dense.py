"""Dense depth of a refined result: files, record, stop, disk limit, and what readers see."""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.core.types import Certainty
from stream_recon.app.result.amend import rebuild_cloud
from stream_recon.app.result.dense import DENSE_FOLDER
from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import read_result, read_run, result_of
from stream_recon.app.result.run_record import DENSE, REFINEMENT, RUN_NAME
from stream_recon.app.run.listeners import RunObserver
from stream_recon.app.run.options import RunOptions
from stream_recon.app.sources.source import open_source
from stream_recon.app.stages.dense import DenseStage, why_not_dense, write_dense_depth
from stream_recon.app.stages.refinement import write_refinement
from stream_recon.app.stages.stage import StageContext
from stream_recon.configs.errors import ConfigError, InputError
from tests.app.slam.room import FOCAL, Video, drifting, picture, walk
from tests.app.stages.chains import run_stage

FRAMES = 8
OPTIONS = DenseStage(side=192, device="cpu")


class StopsAt(RunObserver):
    """Ends the work after so many keyframes."""

    def __init__(self, last: int) -> None:
        self.last = last

    def on_step(self, step: str, done: int, total: int, note: str = "") -> None:
        if done == self.last:
            raise Cancelled


@pytest.fixture(scope="module")
def refined(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of images and of their refined result."""
    base = tmp_path_factory.mktemp("refined")
    truth = walk(16)[:FRAMES]
    video = Video(truth, drifting(truth, turn_deg=0.8, move=0.1), focal=FOCAL)
    video.write_images(base / "images")
    video.write_result(base / "out", known_camera=True)
    write_refinement(StageContext(base / "out", partial(open_source, str(base / "images"))))
    return base / "images", base / "out"


@pytest.fixture(scope="module")
def dense(refined: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    images, out = refined
    folder = tmp_path_factory.mktemp("dense") / "out"
    shutil.copytree(out, folder)
    write_dense_depth(StageContext(folder, partial(open_source, str(images))), OPTIONS)
    return folder


@pytest.fixture
def folder(refined: tuple[Path, Path], tmp_path: Path) -> Path:
    shutil.copytree(refined[1], tmp_path / "out")
    return tmp_path / "out"


def test_maps_are_recorded_and_read_as_the_best_depth(dense: Path) -> None:
    result = read_result(dense)

    assert result.run[DENSE]["refinement"] == result.refinement_id
    assert result.run[DENSE]["keyframes"] == len(result.dense) >= 3
    for camera in result.surface_cameras:
        found = result.surface_of(camera)
        assert found.certainty is not None and max(found.depth.shape) == 192
        assert found.rgb.shape == (*found.depth.shape, 3)


def test_dense_depth_keeps_an_exact_prior(dense: Path) -> None:
    result = read_result(dense)
    errors = []
    for index, camera in enumerate(result.cameras):
        if camera.index not in result.dense:
            continue
        true = picture(walk(16)[index])[1]
        ratios = []
        for found in (result.surface_of(camera), result_of(dense, camera)):
            rows, columns = (
                ((np.arange(n) + 0.5) * m / n).astype(int) for n, m in zip(found.depth.shape, true.shape, strict=True)
            )
            ratio = found.depth / true[np.ix_(rows, columns)]
            ratios.append(np.mean(np.abs(ratio / np.median(ratio) - 1)[found.depth > 0]))
        errors.append(ratios)
    ours, network = np.mean(errors, axis=0)
    assert network < 0.002
    assert ours < 0.003


def test_the_cloud_is_made_of_dense_maps(dense: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(dense, folder)
    before = (folder / "points.ply").read_bytes()

    rebuild_cloud(read_result(folder))

    assert (folder / "points.ply").read_bytes() != before


@pytest.mark.slow
def test_a_stopped_run_leaves_the_result_unchanged(folder: Path, refined: tuple[Path, Path]) -> None:
    record = read_run(folder)

    with pytest.raises(Cancelled):
        write_dense_depth(StageContext(folder, partial(open_source, str(refined[0])), StopsAt(2)), OPTIONS)

    assert read_run(folder) == record
    assert not (folder / DENSE_FOLDER).exists()


@pytest.mark.slow
def test_a_stopped_second_run_leaves_the_first_maps(dense: Path, refined: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(dense, folder)
    before = {path.name: path.read_bytes() for path in (folder / DENSE_FOLDER).iterdir()}

    with pytest.raises(Cancelled):
        source = partial(open_source, str(refined[0]))
        write_dense_depth(StageContext(folder, source, StopsAt(3)), DenseStage(128, "cpu"))

    assert {path.name: path.read_bytes() for path in (folder / DENSE_FOLDER).iterdir()} == before
    result = read_result(folder)
    assert all(max(result.surface_of(camera).depth.shape) == 192 for camera in result.surface_cameras)


@pytest.mark.slow
def test_a_second_run_replaces_the_first_maps(dense: Path, refined: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(dense, folder)
    (folder / DENSE_FOLDER / "000000.npz.0123456789abcdef.part").write_bytes(b"half")

    write_dense_depth(StageContext(folder, partial(open_source, str(refined[0]))), DenseStage(128, "cpu"))

    result = read_result(folder)
    assert {path.name for path in (folder / DENSE_FOLDER).iterdir()} == {f"{i:06d}.npz" for i in result.dense}
    assert all(max(result.surface_of(camera).depth.shape) == 128 for camera in result.surface_cameras)


def test_maps_of_another_refinement_do_not_count(dense: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(dense, folder)
    record = read_run(folder)
    record[REFINEMENT]["id"] = "0123456789abcdef"
    replace_json(folder / RUN_NAME, record)

    result = read_result(folder)

    assert not result.dense
    assert all(result.surface_of(camera).certainty is None for camera in result.surface_cameras)


@pytest.mark.slow
def test_max_disk_leaves_dense_depth_out(folder: Path, refined: tuple[Path, Path]) -> None:
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    context = StageContext(folder, partial(open_source, str(refined[0])), max_bytes=used + 1000)
    with pytest.raises(InputError, match="--max-disk"):
        write_dense_depth(context, OPTIONS)

    assert not (folder / DENSE_FOLDER).exists()


def test_a_reason_is_given_where_there_is_nothing_to_compute_from(folder: Path) -> None:
    assert why_not_dense(read_result(folder), None) == "the source's images are gone"
    record = read_run(folder)
    del record[REFINEMENT]
    replace_json(folder / RUN_NAME, record)
    assert why_not_dense(read_result(folder), lambda: open_source("0")) == "the result is not refined"


def test_another_source_is_refused(folder: Path, refined: tuple[Path, Path], tmp_path: Path) -> None:
    import cv2

    other = tmp_path / "other"
    other.mkdir()
    for path in sorted(refined[0].iterdir()):
        cv2.imwrite(str(other / path.name), cv2.resize(cv2.imread(str(path)), (64, 48)))

    assert run_stage(folder, OPTIONS, partial(open_source, str(other))).is_complete

    assert DENSE not in read_run(folder)


@pytest.mark.parametrize("side", [0, 95, 4096])
def test_sizes_out_of_range_are_refused(side: int) -> None:
    with pytest.raises(ConfigError, match="--dense-side"):
        RunOptions(dense_side=side)


def test_certainty_is_counted(dense: Path) -> None:
    record = read_run(dense)[DENSE]
    result = read_result(dense)
    maps = [result.dense_map(index) for index in sorted(result.dense)]
    confirmed = np.mean([dense.certainty == Certainty.CONFIRMED for dense in maps])
    assert record["confirmed"] == pytest.approx(confirmed, abs=1e-3)
    assert 0 < record["confirmed"] < 1
