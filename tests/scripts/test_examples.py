"""The examples run on the first frames of the packaged sample."""

import ast
import contextlib
import io
import runpy
import shutil
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

import stream_recon as sr
from tests.app.media import quick_preset

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "app" / "sample" / "walkthrough.mp4"
FRAMES = 12


LINES = {
    "refined_poses": 4, "camera_loop": 8, "point_cloud": 4, "trajectory": 4, "own_camera": 5, "cancel": 6,
    "several_streams": 8,
}  # fmt: skip
"""Most lines of what people do most; all examples have 15 or fewer."""


def lines_of(tree: ast.Module) -> int:
    """Lines of a program with one statement each, without its first string and imports of other packages."""
    kept = [node for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.ExceptHandler)]
    others = [n for n in kept if isinstance(n, ast.Import | ast.ImportFrom) and "stream_recon" not in ast.unparse(n)]
    return len(kept) - len(others) - 1


@pytest.mark.parametrize("path", sorted((ROOT / "scripts" / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_imports_one_name(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert lines_of(tree) <= LINES.get(path.stem, 15)
    own = [ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert [line for line in own if "stream_recon" in line] == ["import stream_recon as sr"]


def example(name: str, *arguments: object, folder: Path | None = None) -> str:
    """What an example prints; it runs in this process, which has loaded torch and the weights' file already."""
    printed = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.chdir(folder or Path.cwd()),
    ):
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        runpy.run_path(str(ROOT / "scripts" / "examples" / f"{name}.py"), run_name="__main__")
    return printed.getvalue()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample's first frames at a quarter of their size, as a folder of images."""
    folder = tmp_path_factory.mktemp("images")
    capture = cv2.VideoCapture(str(SAMPLE))
    for index in range(FRAMES):
        cv2.imwrite(str(folder / f"{index:03d}.png"), cv2.pyrDown(cv2.pyrDown(capture.read()[1])))
    return folder


@pytest.fixture(scope="module")
def result(images: Path) -> Path:
    """A result of the images."""
    folder = images.with_name("result")
    sr.reconstruct(images, folder, preset=quick_preset(images.parent), mapping="off", mesh=False, device="cpu")
    return folder


def test_point_cloud(result: Path) -> None:
    points, _ = sr.open_result(result).cloud()
    assert example("point_cloud", result).startswith(f"({len(points)}, 3) ({len(points)}, 3)")


def test_trajectory(result: Path) -> None:
    path = np.array([line.split() for line in example("trajectory", result).splitlines()], float)
    assert np.allclose(path, sr.open_result(result).trajectory.positions[:, [0, 2]], atol=1e-3)


def test_depth_of_frames(result: Path) -> None:
    assert len(example("depth_of_frames", result).splitlines()) == FRAMES


def test_export_colmap(result: Path, tmp_path: Path) -> None:
    example("export_colmap", result, tmp_path / "colmap")
    assert len(list((tmp_path / "colmap" / "images").iterdir())) == FRAMES
    assert (tmp_path / "colmap" / "sparse" / "0").is_dir()


def test_metric_scale(result: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(result, tmp_path / "result")
    assert "in metres" in example("metric_scale", copy)
    positions = sr.open_result(copy).trajectory.positions
    assert np.isclose(np.linalg.norm(positions[-1] - positions[0]), 0.5)


@pytest.mark.slow
def test_refined_poses(images: Path, tmp_path: Path) -> None:
    assert "Verdict" in example("refined_poses", images, tmp_path / "out", folder=tmp_path)
    assert len((tmp_path / "trajectory.tum").read_text().splitlines()) == FRAMES


@pytest.mark.slow
def test_camera_loop(images: Path) -> None:
    printed = example("camera_loop", images / "%03d.png")
    assert [int(line.split()[0]) for line in printed.splitlines()[:-1] if line[0].isdigit()][:8] == list(range(8))
    assert f"{FRAMES} poses" in printed


@pytest.mark.slow
def test_several_streams(images: Path) -> None:
    first, second = example("several_streams", images / "%03d.png", images / "%03d.png").splitlines()
    assert first == second and f"{FRAMES} poses" in first


@pytest.mark.slow
def test_own_camera(images: Path, tmp_path: Path) -> None:
    printed = example("own_camera", images, tmp_path / "out", 125, 125, 48, 36)
    assert "fx=" in printed


@pytest.mark.slow
def test_cancel(images: Path, tmp_path: Path) -> None:
    assert "resume=True continues" in example("cancel", images, tmp_path / "out")


@pytest.mark.slow
def test_listener(images: Path, tmp_path: Path) -> None:
    lines = example("listener", images, tmp_path / "out").splitlines()
    assert sum(line[0].isdigit() and "[" in line for line in lines) == FRAMES


@pytest.mark.slow
def test_publish(images: Path, tmp_path: Path) -> None:
    pytest.importorskip("foxglove")
    assert "run.mcap" in example("publish", images, tmp_path / "out", "run.mcap", folder=tmp_path)
    assert (tmp_path / "run.mcap").read_bytes().startswith(b"\x89MCAP0\r\n")
