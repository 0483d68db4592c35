import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.depth_points import transform_result
from stream_recon.app.core.ground_truth import DepthMap, GroundTruth, MatchedPixels
from stream_recon.app.core.types import FrameResult, FrameRevision, Revision
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.evaluation.metrics import Metrics, pose_errors
from stream_recon.app.evaluation.pixel_sample import PixelSample
from tests.app.batch.fakes import damaged_depth, room_scene, world_of
from tests.app.boxroom import room_result, walk_pose

FRAMES = 12


@pytest.fixture
def truth(tmp_path: Path) -> GroundTruth:
    known = room_scene(tmp_path / "a", FRAMES).truth()
    assert known is not None
    return known


def gathered(truth: GroundTruth | None, results: list[FrameResult]) -> Evaluator:
    evaluator = Evaluator(truth)
    for result in results:
        evaluator.add(result)
    return evaluator


def room(world: int = 0) -> list[FrameResult]:
    return [transform_result(room_result(index), world_of(world)) for index in range(FRAMES)]


def test_the_room_in_another_world_and_unit_has_no_errors(truth: GroundTruth) -> None:
    metrics = gathered(truth, room(world=5)).scene_metrics()
    assert metrics is not None
    for name in ("ate_m", "rpe_trans_m", "absrel", "fov_error_deg"):
        assert getattr(metrics, name) == pytest.approx(0, abs=1e-5), name
    for name in ("auc_3", "auc_30", "delta1", "f1"):
        assert getattr(metrics, name) == pytest.approx(1, abs=1e-4), name
    assert metrics.accuracy_m is not None and metrics.accuracy_m < 0.005


def test_pose_metrics_are_those_of_pose_errors(truth: GroundTruth) -> None:
    noise = np.random.default_rng(0)
    results = room()
    for result in results:
        result.T_world_camera[:3, 3] += noise.normal(size=3) * 0.01
    metrics = gathered(truth, results).scene_metrics()
    ours = np.stack([result.T_world_camera for result in results])
    true = np.stack([walk_pose(index / 10) for index in range(FRAMES)])
    expected = pose_errors(ours, true, np.ones(FRAMES - 1, bool))
    assert metrics is not None and metrics.ate_m == expected.ate_m and metrics.trans_dir_deg == expected.trans_dir_deg
    assert metrics.auc_3 is not None and metrics.auc_30 is not None and metrics.auc_3 < metrics.auc_30


def test_frames_without_a_true_pose_are_left_out(truth: GroundTruth) -> None:
    some = replace(truth, poses={index: pose for index, pose in truth.poses.items() if index not in (3, 4)})
    results = room()
    results[3].T_world_camera[:3, 3] += 50
    metrics = gathered(some, results).scene_metrics()
    assert metrics is not None and metrics.ate_m == pytest.approx(0, abs=1e-6)
    assert metrics.rpe_trans_m == pytest.approx(0, abs=1e-6), "from frame 2 to 5 is no step"


def test_a_revised_pose_is_the_one_that_counts(truth: GroundTruth) -> None:
    results = room()
    right = results[5].T_world_camera.copy()
    results[5].T_world_camera[:3, 3] += 1
    evaluator = gathered(truth, results)
    before = evaluator.scene_metrics()
    evaluator.revise(Revision((FrameRevision(5, right),)))
    after = evaluator.scene_metrics()
    assert before is not None and after is not None and before.ate_m is not None and before.ate_m > 0.05
    assert after.ate_m == pytest.approx(0, abs=1e-6)
    assert evaluator.pose_errors(causal=True).ate_m == before.ate_m, "what was first given out can still be told"


def test_a_revised_world_of_another_scale_has_the_same_metrics(truth: GroundTruth) -> None:
    """Poses and depths change together, as after a loop correction with another scale."""
    evaluator, world = gathered(truth, room()), world_of(5)
    before = evaluator.scene_metrics()
    revised = [FrameRevision(r.index, world.move_pose(r.T_world_camera), world.scale) for r in room()]
    evaluator.revise(Revision(tuple(revised)))
    after = evaluator.scene_metrics()
    assert before is not None and after is not None
    for name, value in vars(before).items():
        assert getattr(after, name) == pytest.approx(value, abs=2e-3), name
    assert after.f1 is not None and after.f1 > 0.999


def test_the_latest_revision_of_depth_and_camera_counts(truth: GroundTruth) -> None:
    results = [replace(r, depth=r.depth * np.float32(1 + 0.1 * (r.index % 3))) for r in room()]
    results = [replace(r, intrinsics=replace(r.intrinsics, fx=r.intrinsics.fx * 1.3)) for r in results]
    evaluator = gathered(truth, results)
    assert evaluator.fov_error_deg() == evaluator.fov_error_deg(causal=True) == pytest.approx(12.657, abs=0.001)
    wrong = evaluator.depth_errors()
    assert wrong.absrel is not None and wrong.absrel > 0.05
    right = truth.intrinsics
    evaluator.revise(Revision(tuple(FrameRevision(r.index, r.T_world_camera, 7.0, right) for r in results)))
    assert evaluator.depth_errors().absrel == pytest.approx(wrong.absrel), "one scale for all frames is none"
    scales = [1 / (1 + 0.1 * (r.index % 3)) for r in results]
    frames = [FrameRevision(r.index, r.T_world_camera, s) for r, s in zip(results, scales, strict=True)]
    evaluator.revise(Revision(tuple(frames)))
    assert evaluator.depth_errors().absrel == pytest.approx(0, abs=1e-5), "scales are against the first depth"
    assert evaluator.fov_error_deg() == pytest.approx(0, abs=1e-9), "a camera that is not named stays as revised"
    assert evaluator.depth_errors(causal=True) == wrong
    metrics = evaluator.scene_metrics()
    assert metrics is not None and metrics.f1 is not None and metrics.f1 > 0.999


def test_without_ground_truth_there_are_no_metrics_but_a_plot(truth: GroundTruth) -> None:
    evaluator = gathered(None, room())
    assert evaluator.scene_metrics() is None
    assert len(evaluator.plot().estimate) == FRAMES and evaluator.plot().ground_truth == []
    nothing = replace(truth, poses={}, intrinsics=None, read_depth=lambda index: None)
    assert gathered(nothing, room()).scene_metrics() is None


def test_points_are_measured_in_metres_or_not_at_all(truth: GroundTruth) -> None:
    metrics = gathered(replace(truth, metric=False), room()).scene_metrics()
    assert metrics is not None and metrics.f1 is None and metrics.absrel == pytest.approx(0, abs=1e-5)
    metrics = gathered(replace(truth, intrinsics=None), room()).scene_metrics()
    assert metrics is not None and metrics.f1 is None and metrics.fov_error_deg is None


def test_a_damaged_ground_truth_file_ends_depth_metrics_only(truth: GroundTruth) -> None:
    evaluator = gathered(replace(truth, read_depth=damaged_depth), room())
    metrics = evaluator.scene_metrics()
    assert evaluator.truth_error is not None and "000005.png" in evaluator.truth_error
    assert metrics is not None and metrics.ate_m is not None and metrics.absrel is not None


def test_the_plot_of_a_long_run_takes_no_more_memory_than_its_points() -> None:
    evaluator = Evaluator(None)
    for index in range(3000):
        evaluator.add_pose(index, walk_pose(index / 10))
    tracemalloc.start()
    evaluator.plot()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6


def test_the_plot_aligns_the_estimate_to_ground_truth(truth: GroundTruth) -> None:
    plot = gathered(truth, room(world=7)).plot()
    np.testing.assert_allclose(plot.estimate, plot.ground_truth, atol=1e-3)
    lengths = [np.linalg.norm(np.diff(np.array(points), axis=0), axis=1).sum() for points in (plot.estimate,)]
    path = sum(np.linalg.norm(walk_pose((i + 1) / 10)[:3, 3] - walk_pose(i / 10)[:3, 3]) for i in range(FRAMES - 1))
    assert 0.8 * path < lengths[0] <= path * 1.001, "the plane of the walk, seen from above"


def test_the_sample_keeps_a_fair_share_of_each_frame_within_its_budget() -> None:
    sample = PixelSample(budget=5000)
    result = room_result(0)
    pixels = DepthMap(result.depth).at_network(result.transform)
    for index in range(20):
        sample.add(replace(result, index=index), MatchedPixels(pixels.z + 100 * index, pixels.rows, pixels.columns))
    depths = sample.depths(lambda _, kept: kept.depth)
    assert depths is not None and 2000 < len(depths[1]) <= 5000
    counts = np.bincount((depths[1] // 100).astype(int), minlength=20)
    assert counts.min() > 0 and counts.max() <= 1.05 * counts.min() + 1
    assert float(np.median(depths[0])) == pytest.approx(float(np.median(result.depth)), rel=0.05)


def test_while_all_pixels_fit_they_are_kept_exactly_and_in_order() -> None:
    sample, result = PixelSample(), room_result(0)
    truth = MatchedPixels(np.array([1 / 3, 2 / 3, 1e-9]), np.array([3, 0, 41]), np.array([2, 55, 0]))
    for index in (4, 2):
        sample.add(replace(result, index=index), truth)
    depths = sample.depths(lambda _, kept: kept.depth)
    assert depths is not None
    np.testing.assert_array_equal(depths[1], np.tile(truth.z, 2))
    np.testing.assert_array_equal(depths[0], np.tile(result.depth[truth.rows, truth.columns], 2))


def test_metrics_are_plain_numbers(truth: GroundTruth) -> None:
    metrics = gathered(truth, room()).scene_metrics()
    assert isinstance(metrics, Metrics) and all(isinstance(value, float) for value in vars(metrics).values())
