import math

import pytest
import torch

from stream_recon.app.keyframes import FlowKeyframes, IntervalKeyframes, View, keyframe_policy, mean_flow
from stream_recon.configs.schema import KeyframeMode
from tests.networks import tiny_preset

HEIGHT, WIDTH, FOV = 48, 64, 1.0


def view(x: float = 0.0, depth: float = 2.0, yaw: float = 0.0) -> View:
    pose = torch.tensor([x, 0, 0, 0, math.sin(yaw / 2), 0, math.cos(yaw / 2), 0.8, FOV])
    return View(pose, torch.full((HEIGHT, WIDTH), depth))


def test_a_sideways_step_moves_a_plane_by_focal_length_times_step_over_depth() -> None:
    focal = WIDTH / 2 / math.tan(FOV / 2)
    assert mean_flow(view(x=0.1), view()) == pytest.approx(focal * 0.1 / 2.0, rel=1e-4)
    assert mean_flow(view(), view()) == pytest.approx(0, abs=1e-4)


def test_nothing_in_front_of_the_reference_camera_is_no_motion() -> None:
    assert mean_flow(view(yaw=math.pi), view()) == 0.0


def test_flow_keyframes_come_first_then_by_motion_then_by_patience() -> None:
    policy = FlowKeyframes(threshold=3.0, max_gap=4)
    policy.start(view())
    steps = [0.0, 0.01, 0.2, 0.2, 0.2, 0.2, 0.2, 0.21]
    chosen = [policy.decide(view(x=x)).is_keyframe for x in steps]
    assert chosen == [True, False, True, False, False, False, True, False]


def test_small_steps_add_up_since_the_last_keyframe() -> None:
    policy = FlowKeyframes(threshold=3.0, max_gap=100)
    policy.start(view())
    decisions = [policy.decide(view(x=0.04 * i)) for i in range(10)]
    assert sum(d.is_keyframe for d in decisions[1:]) == 3
    assert all(d.flow is not None for d in decisions)


def test_interval_keyframes() -> None:
    policy = IntervalKeyframes(3)
    announced, chosen = [], []
    for _ in range(7):
        announced.append(policy.evicts_first)
        chosen.append(policy.decide(view()).is_keyframe)
    assert chosen == announced == [True, False, False, True, False, False, True]


@pytest.mark.parametrize(
    ("mode", "interval", "expected"),
    [("every", 5, [True] * 4), ("interval", 2, [True, False, True, False]), ("flow", 1, [True, False, False, True])],
)
def test_each_mode_of_a_preset_has_its_policy(mode: KeyframeMode, interval: int, expected: list[bool]) -> None:
    stream = tiny_preset(keyframes=mode, keyframe_interval=interval, flow_threshold=1e9, max_gap=3).stream
    policy = keyframe_policy(stream)
    policy.start(view())
    assert [policy.decide(view()).is_keyframe for _ in range(4)] == expected
