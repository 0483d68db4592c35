import dataclasses

import numpy as np
import pytest
import torch

from stream_recon.models.odometry.keyframe_matcher import Matches
from stream_recon.models.prediction import Prediction
from tests.scripts.training.planes import plane_clips
from tests.scripts.training.test_targets import scaled
from training.losses import Criterion, LossWeights, draw_pairs, match_terms, matching_term
from training.model import TrainingOutput
from training.synthetic import ClipBatch
from training.synthetic.people import MOVING
from training.targets import MatchTargets, Targets, build_targets, neighbours

FRAMES = 4
PATCHES = 2 * 3
CONFIDENCE_FREE = LossWeights(confidence=0.0, matching=0.0)
"""No prediction makes these two cost nothing."""


def perfect(batch: ClipBatch, targets: Targets, iterations: int = 2) -> tuple[Prediction, torch.Tensor]:
    fov = targets.fov.expand(-1, FRAMES, -1)
    pose = torch.cat([targets.translation, targets.quaternion, fov], dim=-1).repeat(iterations, 1, 1, 1)
    log_depth = (batch.depth / targets.scale[:, None, None, None]).log()
    dense = torch.stack([log_depth, torch.full_like(log_depth, -20)], dim=2)
    first = torch.zeros_like(targets.flow[:, :1])
    auxiliary = torch.cat([torch.cat([first, targets.flow], dim=1), targets.points], dim=-1)
    prediction = Prediction(pose, dense, pose[-1], log_depth)
    return prediction, auxiliary


def evaluate(
    batch: ClipBatch, prediction: Prediction, auxiliary: torch.Tensor, weights: LossWeights = CONFIDENCE_FREE
) -> dict[str, float]:
    pairs = draw_pairs(np.random.default_rng(0), FRAMES)
    output = TrainingOutput(prediction, auxiliary, torch.ones(len(batch.depth), FRAMES, PATCHES, 1))
    losses = Criterion(weights)(output, batch, build_targets(batch, 2, 14, pairs), pairs)
    return {name: float(value) for name, value in losses.parts.items()} | {"total": float(losses.total)}


@pytest.fixture
def batch() -> ClipBatch:
    return plane_clips(0, 3, FRAMES, 28, 42)


def test_perfect_predictions_cost_nothing(batch: ClipBatch) -> None:
    parts = evaluate(batch, *perfect(batch, build_targets(batch, 2, 14)))
    assert all(abs(value) < 2e-3 for value in parts.values()), parts


@pytest.mark.parametrize("factor", [0.1, 30.0])
def test_the_unit_of_length_does_not_matter(batch: ClipBatch, factor: float) -> None:
    prediction, auxiliary = perfect(batch, build_targets(batch, 2, 14))
    off = dataclasses.replace(prediction, head_pose=prediction.head_pose + 0.1, head_maps=prediction.head_maps + 0.1)
    here, there = evaluate(batch, off, auxiliary + 0.1), evaluate(scaled(batch, factor), off, auxiliary + 0.1)
    assert here == pytest.approx(there, rel=1e-3, abs=1e-4)
    assert here["total"] > 0.5


@pytest.mark.parametrize(
    ("channels", "terms"),
    [
        (slice(0, 3), {"translation", "relative_translation", "direction"}),
        (slice(3, 7), {"rotation", "relative_rotation"}),
        (slice(7, 9), {"fov", "clip_fov"}),
    ],
)
def test_each_part_of_the_pose_has_its_terms(batch: ClipBatch, channels: slice, terms: set[str]) -> None:
    prediction, auxiliary = perfect(batch, build_targets(batch, 2, 14))
    exact = evaluate(batch, prediction, auxiliary)
    pose = prediction.head_pose.clone()
    pose[..., channels] += (
        torch.linspace(0, 0.3, FRAMES)[:, None] * torch.tensor([1.0, -1, 1, -1])[: channels.stop - channels.start]
    )
    parts = evaluate(batch, dataclasses.replace(prediction, head_pose=pose), auxiliary)
    assert {name for name in terms if parts[name] > exact[name] + 0.01} == terms


def test_fields_of_view_that_are_wrong_together_cost_more_than_ones_that_scatter(batch: ClipBatch) -> None:
    prediction, auxiliary = perfect(batch, build_targets(batch, 2, 14))
    cost = []
    for errors in ([0.1, 0.1, 0.1, 0.1], [0.1, -0.1, 0.1, -0.1]):
        pose = prediction.head_pose.clone()
        pose[..., 7:9] += torch.tensor(errors)[:, None]
        cost.append(evaluate(batch, dataclasses.replace(prediction, head_pose=pose), auxiliary))
    assert cost[0]["fov"] == pytest.approx(cost[1]["fov"], rel=1e-3)
    assert cost[0]["clip_fov"] == pytest.approx(0.2, rel=1e-3) and cost[1]["clip_fov"] < 1e-3


def test_direction_is_judged_even_when_the_step_is_short() -> None:
    batch = plane_clips(1, 3, FRAMES, 28, 42, motion=0.02)
    prediction, auxiliary = perfect(batch, build_targets(batch, 2, 14))
    still = prediction.head_pose.clone()
    still[..., :3] = 0
    backward = prediction.head_pose.clone()
    backward[..., :3] *= -1
    exact, resting, wrong = (
        evaluate(batch, dataclasses.replace(prediction, head_pose=pose), auxiliary)["direction"]
        for pose in (prediction.head_pose, still, backward)
    )
    assert exact < 0.01 < resting < wrong


def test_late_iterations_weigh_more(batch: ClipBatch) -> None:
    prediction, auxiliary = perfect(batch, build_targets(batch, 2, 14), iterations=3)
    costs = []
    for iteration in range(3):
        pose = prediction.head_pose.clone()
        pose[iteration, ..., 0] += 0.2
        costs.append(evaluate(batch, dataclasses.replace(prediction, head_pose=pose), auxiliary)["translation"])
    assert costs[0] < costs[1] < costs[2]


def test_a_quaternions_sign_and_length_do_not_change_the_rotation(batch: ClipBatch) -> None:
    prediction, auxiliary = perfect(batch, build_targets(batch, 2, 14))
    pose = prediction.head_pose.clone()
    pose[..., 3:7] *= -2
    parts = evaluate(batch, dataclasses.replace(prediction, head_pose=pose), auxiliary)
    assert parts["rotation"] < 2e-3 and parts["relative_rotation"] < 2e-3


def test_confidence_pays_where_depth_is_right_and_costs_where_it_is_wrong(batch: ClipBatch) -> None:
    prediction, auxiliary = perfect(batch, build_targets(batch, 2, 14))
    weights = LossWeights(confidence=0.2)

    def depth_cost(error: float, raw: float) -> float:
        dense = torch.stack([prediction.head_maps[:, :, 0] + error, torch.full_like(batch.depth, raw)], dim=2)
        return evaluate(batch, dataclasses.replace(prediction, head_maps=dense), auxiliary, weights)["depth"]

    assert depth_cost(0.0, 2.0) < depth_cost(0.0, -2.0)
    assert depth_cost(1.0, 2.0) > depth_cost(1.0, -2.0)


def test_sky_has_no_say_in_depth_and_is_to_be_far_and_unsure(batch: ClipBatch) -> None:
    batch.depth[:, :, :14] = 0
    prediction, auxiliary = perfect(batch, build_targets(batch, 2, 14))

    def parts(log_depth: float, raw: float) -> dict[str, float]:
        dense = prediction.head_maps.clone()
        dense[:, :, 0, :14], dense[:, :, 1, :14] = log_depth, raw
        return evaluate(batch, dataclasses.replace(prediction, head_maps=dense), auxiliary)

    far, near, sure = parts(9.0, -20.0), parts(0.0, -20.0), parts(9.0, 2.0)
    assert all(p["depth"] < 1e-4 and p["depth_gradient"] < 1e-4 for p in (far, near, sure))
    assert far["sky"] < 1e-3 < sure["sky"] < near["sky"]


def test_of_what_moves_nothing_is_asked(batch: ClipBatch) -> None:
    batch.depth[:, :, :14] = MOVING
    prediction, auxiliary = perfect(batch, build_targets(batch, 2, 14))

    def parts(log_depth: float, raw: float) -> dict[str, float]:
        dense = prediction.head_maps.clone()
        dense[:, :, 0, :14], dense[:, :, 1, :14] = log_depth, raw
        return evaluate(batch, dataclasses.replace(prediction, head_maps=dense), auxiliary)

    assert parts(9.0, -20.0) == parts(0.0, 2.0)


def test_gradients_are_finite_at_perfection_and_at_rest(batch: ClipBatch) -> None:
    pairs = draw_pairs(np.random.default_rng(0), FRAMES)
    targets = build_targets(batch, 2, 14, pairs)
    prediction, auxiliary = perfect(batch, targets)
    resting = torch.zeros_like(prediction.head_pose)
    resting[..., 6] = 1
    for pose in (prediction.head_pose, resting):
        pose = pose.clone().requires_grad_()
        dense = prediction.head_maps.clone().requires_grad_()
        descriptors = torch.zeros(3, FRAMES, PATCHES, 8).requires_grad_()
        output = TrainingOutput(
            dataclasses.replace(prediction, head_pose=pose, head_maps=dense), auxiliary, descriptors
        )
        losses = Criterion(LossWeights())(output, batch, targets, pairs)
        losses.total.backward()
        assert pose.grad is not None and torch.isfinite(pose.grad).all()
        assert dense.grad is not None and torch.isfinite(dense.grad).all()
        assert descriptors.grad is not None and torch.isfinite(descriptors.grad).all()


def test_matching_is_free_where_descriptors_tell_all_patches_apart_and_costs_the_logarithm_where_none() -> None:
    still = plane_clips(0, 3, FRAMES, 28, 42, motion=0.0)
    pairs = neighbours(FRAMES)
    targets = build_targets(still, 2, 14, pairs)
    telling = 10 * torch.eye(PATCHES).expand(3, FRAMES, -1, -1)
    assert float(matching_term(telling, pairs, targets.matches)) < 1e-4
    assert float(matching_term(telling.flip(-1) * 0, pairs, targets.matches)) == pytest.approx(np.log(PATCHES))
    shifted = torch.stack([telling[:, i].roll(i, dims=-1) for i in range(FRAMES)], dim=1)
    assert float(matching_term(shifted, pairs, targets.matches)) > 50


@pytest.mark.parametrize("frames", [2, 3, 16])
def test_pairs_are_of_different_frames_and_hold_all_neighbours(frames: int) -> None:
    other, frame = draw_pairs(np.random.default_rng(1), frames)
    assert (other != frame).all()
    assert {(i, i + 1) for i in range(frames - 1)} <= set(zip(other.tolist(), frame.tolist(), strict=True))
    assert int(min(other.min(), frame.min())) >= 0 and int(max(other.max(), frame.max())) < frames


def test_weights_scale_their_terms(batch: ClipBatch) -> None:
    prediction, auxiliary = perfect(batch, build_targets(batch, 2, 14))
    off = dataclasses.replace(prediction, head_pose=prediction.head_pose + 0.1, head_maps=prediction.head_maps + 0.1)
    base = evaluate(batch, off, auxiliary + 0.1)
    for field in dataclasses.fields(LossWeights):
        if field.name not in ("confidence", "matching") and not field.name.startswith(("step_", "match_")):
            doubled = dataclasses.replace(CONFIDENCE_FREE, **{field.name: 2 * getattr(CONFIDENCE_FREE, field.name)})
            parts = evaluate(batch, off, auxiliary + 0.1, doubled)
            assert parts[field.name] == pytest.approx(2 * base[field.name], rel=1e-4), field.name


def looked(off: float, log_precision: float, *, shown: bool = True, factor: float = 1.0) -> dict[str, float]:
    """Terms of matches that scatter by so many pixels (none in the first round), all shown or all hidden."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(4, 1, 24, 32, 2, generator=generator) * 100
    places = truth[None, :, 0, None] + off * torch.randn(3, 4, 1, 24, 32, 2, generator=generator)
    seen = torch.ones(4, 1, 24, 32, dtype=torch.bool)
    matches = Matches(places, torch.full((4, 1, 24, 32), log_precision), seen)
    targets = MatchTargets(torch.eye(3, 4).repeat(4, 1, 1, 1), truth, seen & shown, seen)
    usual = LossWeights()
    weights = LossWeights(match_pixels=factor * usual.match_pixels, match_precision=factor * usual.match_precision)
    return {name: float(value) for name, value in match_terms(matches, targets, weights).items()}


def test_matches_cost_how_far_they_are_off() -> None:
    assert looked(0.0, 0.0)["match_pixels"] == 0
    assert looked(1.0, 0.0)["match_pixels"] == pytest.approx(2 * looked(0.5, 0.0)["match_pixels"], rel=0.05)


def test_a_precision_that_says_how_far_matches_are_off_costs_least() -> None:
    nats = {value: looked(0.5, value)["match_precision"] for value in (-1.0, 0.0, 1.0, 1.6, 3.0, 5.0)}
    # Of a normal distribution with a deviation of a half, as Student's: a bit above the logarithm of 4.
    assert min(nats, key=lambda value: nats[value]) == 1.6


@pytest.mark.parametrize("name", ["match_pixels", "match_precision"])
def test_weights_scale_the_terms_of_matches(name: str) -> None:
    assert looked(1.0, 0.0, factor=2.0)[name] == pytest.approx(2 * looked(1.0, 0.0)[name])


def test_matches_of_what_is_hidden_are_to_be_doubted() -> None:
    assert looked(0.5, -8.0, shown=False)["match_precision"] < looked(0.5, 0.0, shown=False)["match_precision"]
    assert looked(5.0, 0.0, shown=False)["match_pixels"] == 0
