from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.types import FrameRevision, Revision
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.stages.evaluate import evaluate_result
from tests.app.batch.fakes import room_scene, world_of
from tests.app.boxroom import room_result
from tests.app.fake_engine import run_info

FRAMES = 12


def test_a_result_folder_has_the_causal_and_final_metrics_of_its_run(tmp_path: Path) -> None:
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
    # The last two frames stay causal.
    frames = [
        FrameRevision(result.index, world.move_pose(result.T_world_camera), world.scale, result.intrinsics)
        for result in right[:-2]
    ]
    for listener in (heard, writer):
        listener.revise(Revision(tuple(frames)))
    writer.finish(RunSummary(interrupted=False))
    writer.close()
    read = evaluate_result(read_result(tmp_path / "out"), truth)
    for causal in (True, False):
        expected, found = heard.metrics(causal=causal), read.metrics(causal=causal)
        for name, value in vars(expected).items():
            of_depth = name in ("absrel", "delta1", "one_scale_ratio", "scale_jump")
            rounding = 2e-4 * max(value or 0.0, 1.0) if of_depth else 1e-12
            assert getattr(found, name) == pytest.approx(value, abs=rounding), (name, causal)
        assert np.array_equal(read.poses(causal=causal), heard.poses(causal=causal))
    assert read.metrics() != read.metrics(causal=True)
