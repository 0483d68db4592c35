"""The demo's comparison: the truth itself has no error, and another video's result is refused."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np

from stream_recon.app.core.types import FrameResult, ImageTransform, Intrinsics
from stream_recon.app.result.run_record import RunInfo, RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.configs.schema import load_preset

ROOT = Path(__file__).parents[2]


def write_truth(folder: Path, first_index: int = 0) -> None:
    """A result folder that holds the sample's truth, in another unit and world frame."""
    with np.load(ROOT / "app" / "sample" / "walkthrough.truth.npz") as truth:
        poses, intrinsics = truth["T_world_camera"], Intrinsics(*truth["intrinsics"])
        depth, frames, stride = truth["depth"], truth["depth_frames"].tolist(), int(truth["depth_stride"])
    writer = ResultWriter(folder, RunInfo("sample", load_preset("small"), "0" * 64, "cpu"))
    turn = np.eye(4)
    turn[:2, :2] = [[math.cos(0.3), -math.sin(0.3)], [math.sin(0.3), math.cos(0.3)]]
    height, width = depth.shape[1:]
    for index, pose in enumerate(poses):
        T = turn @ pose
        T[:3, 3] /= 2
        shown = depth[frames.index(index)] if index in frames else depth[0]
        writer.add(
            FrameResult(
                index=first_index + index,
                timestamp=index / 20,
                T_world_camera=T,
                intrinsics=intrinsics,
                depth=np.maximum(shown.astype(np.float32), 0.1) / 2,
                confidence=np.full((height, width), 2, np.float32),
                rgb=np.zeros((height, width, 3), np.uint8),
                transform=ImageTransform(
                    (width * stride, height * stride), (0, 0, width * stride, height * stride), (width, height)
                ),
                is_keyframe=True,
            )
        )
    writer.finish(RunSummary(interrupted=False))
    writer.close()


def compare(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "data" / "compare_sample.py"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_truth_has_no_error(tmp_path: Path) -> None:
    write_truth(tmp_path / "out")
    run = compare(tmp_path / "out")
    assert run.returncode == 0, run.stderr
    assert "0.0 cm RMSE" in run.stdout and "AbsRel 0.000" in run.stdout and "error of 0.0 degrees" in run.stdout


def test_another_result_and_no_result_are_refused_in_one_line(tmp_path: Path) -> None:
    write_truth(tmp_path / "out", first_index=500)
    for folder in ("out", "nothing"):
        run = compare(tmp_path / folder)
        assert run.returncode == 2 and len(run.stderr.strip().splitlines()) == 1
