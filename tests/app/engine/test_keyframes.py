import math

import pytest
import torch

from stream_recon.app.engine.keyframes import FlowKeyframes, IntervalKeyframes, keyframe_policy, mean_flow
from stream_recon.configs.schema import KeyframeMode
from tests.networks import tiny_preset

HEIGHT, WIDTH, FOV = 48, 64, 1.0


def pose(x: float = 0.0, yaw: float = 0.0) -> torch.Tensor:
    return torch.tensor([x, 0, 0, 0, math.sin(yaw / 2), 0, math.cos(yaw / 2), 0.8, FOV])


def flow(view: torch.Tensor, reference: torch.Tensor, depth: float = 2.0) -> float:
    return float(mean_flow(view, torch.full((HEIGHT, WIDTH), depth), reference))


def test_a_sideways_step_moves_a_plane_by_focal_length_times_step_over_depth() -> None:
    focal = WIDTH / 2 / math.tan(FOV / 2)
    assert flow(pose(x=0.1), pose()) == pytest.approx(focal * 0.1 / 2.0, rel=1e-4)
    assert flow(pose(), pose()) == pytest.approx(0, abs=1e-4)


def test_nothing_in_front_of_the_reference_camera_is_no_motion() -> None:
    assert flow(pose(yaw=math.pi), pose()) == 0.0


def test_pixels_behind_the_reference_camera_do_not_count() -> None:
    # Half a turn less a little: some of the surface is seen, at any displacement, and the mean stays finite.
    assert 0 <= flow(pose(yaw=2.0), pose()) < math.inf


def test_flow_keyframes_come_first_then_by_motion_then_by_patience() -> None:
    policy = FlowKeyframes(threshold=3.0, max_gap=4)
    flows = [0.0, 0.2, 3.1, 0.0, 0.0, 0.0, 0.0, 2.9]
    chosen = [policy.decide(value).is_keyframe for value in flows]
    assert chosen == [True, False, True, False, False, False, True, False]


def test_flow_keyframes_keep_their_least_distance_unless_the_camera_is_fast() -> None:
    policy = FlowKeyframes(threshold=3.0, max_gap=2, min_gap=3)
    flows = [0.0, 8.9, 8.9, 3.1, 0.0, 9.1, 0.0, 0.0, 0.0]
    chosen = [policy.decide(value).is_keyframe for value in flows]
    assert chosen == [True, False, False, True, False, True, False, False, True]


def test_interval_keyframes() -> None:
    policy = IntervalKeyframes(3)
    announced, chosen = [], []
    for _ in range(7):
        announced.append(policy.evicts_first)
        chosen.append(policy.decide(0.0).is_keyframe)
    assert chosen == announced == [True, False, False, True, False, False, True]


@pytest.mark.parametrize(
    ("mode", "interval", "expected"),
    [("every", 5, [True] * 4), ("interval", 2, [True, False, True, False]), ("flow", 1, [True, False, False, True])],
)
def test_each_mode_of_a_preset_has_its_policy(mode: KeyframeMode, interval: int, expected: list[bool]) -> None:
    stream = tiny_preset(keyframes=mode, keyframe_interval=interval, flow_threshold=1e9, max_gap=3).stream
    policy = keyframe_policy(stream)
    assert [policy.decide(0.0).is_keyframe for _ in range(4)] == expected
