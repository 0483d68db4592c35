"""Errors of a result of the sample: the truth itself has none, and another video's result is refused."""

import math
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.cli.demo import GROUND_TRUTH, print_errors
from stream_recon.app.core.types import FrameResult, ImageTransform, Intrinsics
from stream_recon.app.result.run_record import RunInfo, RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.configs.errors import StreamReconError
from stream_recon.configs.schema import load_preset


def write_truth(folder: Path, first_index: int = 0) -> None:
    """A result folder that holds the sample's truth, in another unit and world frame."""
    with np.load(GROUND_TRUTH) as truth:
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


def test_the_truth_has_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_truth(tmp_path / "out")
    print_errors(tmp_path / "out")
    shown = capsys.readouterr().out
    assert "0.0 cm RMSE" in shown and "AbsRel 0.000" in shown and "error of 0.0 degrees" in shown


def test_another_result_and_no_result_are_refused_in_one_line(tmp_path: Path) -> None:
    write_truth(tmp_path / "out", first_index=500)
    for folder in ("out", "nothing"):
        with pytest.raises(StreamReconError) as refusal:
            print_errors(tmp_path / folder)
        assert len(str(refusal.value).splitlines()) == 1
