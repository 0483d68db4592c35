"""The step head inside the network: whole clips, a stream frame by frame, and chosen frames say the same."""

import dataclasses

import pytest
import torch
from torch import Tensor

from stream_recon.app.engine.stream import StreamRunner
from stream_recon.configs.errors import ConfigError
from stream_recon.models.odometry import flow_head
from stream_recon.models.odometry.pnp import RelativeMotion
from stream_recon.models.prediction import Prediction
from tests.networks import (
    GRID,
    assert_only_keyframes_count,
    clip_mask,
    random_images,
    tiny_network,
    tiny_preset,
    whole_clip,
)

FRAMES = 7


def shift_of(points: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """In place of `solve`: a motion that matches determine well, whatever they are."""
    off = (target - points[..., :2] / points[..., 2:]).clamp(-0.2, 0.2)
    shift = (weight[..., None] * off).sum(1) / weight.sum(1, keepdim=True)
    rotation = torch.eye(3).expand(len(points), 3, 3)
    return torch.cat([rotation, torch.nn.functional.pad(shift, (0, 1))[..., None]], dim=-1), torch.ones(len(points))


@pytest.fixture
def steady_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that count. Matches of random weights determine a motion so badly that rounding decides, and would have no
    say in depths."""
    monkeypatch.setattr(flow_head, "solve_pnp", shift_of)


def whole(images: torch.Tensor | None = None) -> Prediction:
    return whole_clip(tiny_preset(), random_images(FRAMES) if images is None else images)


def measured(dense_frames: torch.Tensor | None = None) -> RelativeMotion:
    """Motions of these frames of the same clip."""
    preset, images = tiny_preset(), random_images(FRAMES)
    network = tiny_network(preset)
    assert network.odometry is not None
    with torch.no_grad():
        heads, features = network.predict(images[None], clip_mask(preset, images), dense_frames)
        return network.odometry.measure(heads, features, dense_frames).motion


def streamed() -> list[Prediction]:
    """The same frames as of `whole`, the scale frames together and each later one alone."""
    preset, images = tiny_preset(), random_images(FRAMES)
    stream = StreamRunner(tiny_network(preset), preset, GRID)
    first = preset.stream.scale_frames
    return [stream.step(part)[0] for part in (images[:first], *images[first:].split(1))]


def test_a_stream_says_what_the_whole_clip_says() -> None:
    codes = torch.cat([prediction.pose for prediction in streamed()], dim=1)
    torch.testing.assert_close(codes, whole().pose, atol=1e-4, rtol=1e-3)


@pytest.mark.usefixtures("steady_steps")
def test_depths_of_a_stream_are_those_of_the_whole_clip() -> None:
    depths, together = torch.cat([prediction.log_depth for prediction in streamed()], dim=1), whole()
    torch.testing.assert_close(depths, together.log_depth, atol=1e-4, rtol=0)
    assert (together.log_depth - together.head_maps[:, :, 0]).abs().median() > 0.01


@pytest.mark.usefixtures("steady_steps")
def test_steps_move_the_depths_away_from_the_depth_heads() -> None:
    prediction = whole()
    assert (prediction.log_depth[:, 1:] - prediction.head_maps[:, 1:, 0]).abs().amax() > 1e-4
    torch.testing.assert_close(prediction.log_depth[:, 0], prediction.head_maps[:, 0, 0])


def test_steps_move_the_poses_away_from_the_camera_heads() -> None:
    prediction = whole()
    assert (prediction.pose[:, 1:, :7] - prediction.head_pose[-1, :, 1:, :7]).abs().amax() > 1e-4
    torch.testing.assert_close(prediction.pose[..., 7:], prediction.head_pose[-1][..., 7:])


@pytest.mark.usefixtures("steady_steps")
def test_a_frame_that_is_not_kept_leaves_no_trace() -> None:
    assert_only_keyframes_count(random_images(FRAMES + 4))


def test_steps_of_chosen_frames_are_those_of_all() -> None:
    chosen = torch.tensor([0, 2, 5])
    every, some = measured(), measured(chosen)
    torch.testing.assert_close(some.motion, every.motion[:, chosen])
    torch.testing.assert_close(some.flows, every.flows[:, :, chosen])


@pytest.mark.usefixtures("steady_steps")
def test_later_frames_do_not_change_earlier_ones() -> None:
    images = random_images(FRAMES)
    images[5:] = 0.5
    changed, before = whole(images=images), whole()
    torch.testing.assert_close(changed.pose[:, :5], before.pose[:, :5])
    torch.testing.assert_close(changed.log_depth[:, :5], before.log_depth[:, :5])


def test_it_needs_the_encoders_detail_and_a_look_back_needs_it() -> None:
    with pytest.raises(ConfigError, match="flow_blocks"):
        dataclasses.replace(tiny_preset().network, encoder_stem="linear")
    with pytest.raises(ConfigError, match="keyframe_matcher"):
        dataclasses.replace(tiny_preset(keyframe_matcher=True).network, flow_blocks=0)
