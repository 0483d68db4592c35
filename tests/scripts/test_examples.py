"""The examples run on the packaged sample."""

import os
import re
import subprocess
import sys
from pathlib import Path

import cv2
import pytest

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "app" / "sample" / "walkthrough.mp4"
FRAMES = 12


def example(name: str, *arguments: object) -> str:
    command = [sys.executable, str(ROOT / "scripts" / "examples" / f"{name}.py"), *map(str, arguments)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Result folder that the listener example writes, and what it prints."""
    folder = tmp_path_factory.mktemp("listener") / "out"
    return folder, example("listener", SAMPLE, folder, FRAMES)


@pytest.mark.slow
def test_images_to_poses(tmp_path: Path) -> None:
    capture = cv2.VideoCapture(str(SAMPLE))
    for index in range(FRAMES):
        cv2.imwrite(str(tmp_path / f"{index:03d}.png"), capture.read()[1])
    assert [int(line.split()[0]) for line in example("images_to_poses", tmp_path).splitlines()] == list(range(FRAMES))


@pytest.mark.slow
def test_camera_loop_plays_a_video_as_if_live() -> None:
    printed = example("camera_loop", SAMPLE, "--max-frames", 30)
    indices = [int(index) for index in re.findall(r"^frame (\d+): x", printed, re.MULTILINE)]
    assert indices == sorted(set(indices)) and indices[-1] == 29
    assert f"{len(indices)} results in" in printed


@pytest.mark.slow
def test_back_end_by_hand_prints_revisions() -> None:
    printed = example("back_end_by_hand", SAMPLE, 2 * FRAMES)
    assert "revision of " in printed
    assert f"{2 * FRAMES} poses; " in printed


@pytest.mark.slow
def test_listener(result: tuple[Path, str]) -> None:
    _, printed = result
    assert re.search(rf"^{FRAMES} frames at [\d.]+ frames/s, path length 0\.\d+", printed, re.MULTILINE)
    assert len(re.findall(r"^frame \d+: path length", printed, re.MULTILINE)) == FRAMES


def test_read_result_folder(result: tuple[Path, str]) -> None:
    printed = example("read_result_folder", result[0])
    assert f"walkthrough.mp4: {FRAMES} frames, path length" in printed
    assert printed.count("depth 224x168, median") == FRAMES
