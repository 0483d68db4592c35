from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.types import FrameRevision, Revision
from stream_recon.app.evaluation.gather import Evaluator
from stream_recon.app.evaluation.result import gather_result
from stream_recon.app.evaluation.scores import SequenceMetrics
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from tests.app.batch.fakes import room_scene, world_of
from tests.app.boxroom import room_result
from tests.app.fake_engine import run_info

FRAMES = 12


def test_a_result_folder_has_the_figures_of_its_run_first_and_last(tmp_path: Path) -> None:
    truth, noise, world = room_scene(tmp_path / "a", FRAMES).truth(), np.random.default_rng(2), world_of(5)
    heard, writer = Evaluator(truth), ResultWriter(tmp_path / "out", run_info())
    right = [room_result(index) for index in range(FRAMES)]
    for result in right:
        pose = result.T_world_camera.copy()
        pose[:3, 3] += 0.05 * noise.normal(size=3)
        wrong = replace(result, T_world_camera=pose, depth=result.depth * np.float32(1 + 0.2 * noise.random()))
        wrong = replace(wrong, intrinsics=replace(wrong.intrinsics, fx=1.1 * wrong.intrinsics.fx))
        for listener in (heard, writer):
            listener.add(wrong)
    # Most frames: the others stay as they were first given out.
    frames = [
        FrameRevision(result.index, world.move_pose(result.T_world_camera), world.scale, result.intrinsics)
        for result in right[:-2]
    ]
    for listener in (heard, writer):
        listener.revise(Revision(tuple(frames)))
    writer.finish(RunSummary(interrupted=False))
    writer.close()
    read = gather_result(read_result(tmp_path / "out"), truth)
    for first in (True, False):
        expected, found = SequenceMetrics.gathered(heard, first=first), SequenceMetrics.gathered(read, first=first)
        for name, value in vars(expected).items():
            rounding = 2e-4 if name in ("absrel", "delta1") else 1e-12
            assert getattr(found, name) == pytest.approx(value, abs=rounding), (name, first)
    assert SequenceMetrics.gathered(read) != SequenceMetrics.gathered(read, first=True)
    assert np.array_equal(read.poses(), heard.poses()) and np.array_equal(
        read.poses(first=True), heard.poses(first=True)
    )
    assert SequenceMetrics.gathered(read) != SequenceMetrics.gathered(read, first=True)
