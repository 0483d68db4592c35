"""The step head inside the network: whole clips, a stream frame by frame, and chosen frames say the same."""

import dataclasses

import pytest
import torch

from stream_recon.app.engine.stream import Stream
from stream_recon.cache.clip import ClipVisibility
from stream_recon.configs.errors import ConfigError
from stream_recon.models.network import Prediction
from tests.networks import GRID, random_images, tiny_network, tiny_preset

FRAMES = 7


def whole(dense_frames: torch.Tensor | None = None, images: torch.Tensor | None = None) -> Prediction:
    preset = tiny_preset()
    stream, special = preset.stream, preset.network.special_tokens
    memory = ClipVisibility(
        frames=FRAMES,
        tokens=special + GRID[0] * GRID[1],
        special=special,
        scale_frames=stream.scale_frames,
        window=stream.window,
        camera_window=stream.camera_window,
        device=torch.device("cpu"),
    )
    images = random_images(FRAMES) if images is None else images
    with torch.no_grad():
        prediction: Prediction = tiny_network(preset)(images[None], memory, dense_frames)
    return prediction


def test_a_stream_says_what_the_whole_clip_says() -> None:
    preset, images = tiny_preset(), random_images(FRAMES)
    stream = Stream(tiny_network(preset), preset, GRID, "auto")
    first = preset.stream.scale_frames
    parts = [images[:first], *images[first:].split(1)]
    streamed = torch.cat([stream.step(part)[0].pose_code for part in parts], dim=1)
    torch.testing.assert_close(streamed, whole().pose_code, atol=1e-4, rtol=1e-3)


def test_steps_move_the_poses_away_from_the_camera_heads() -> None:
    prediction = whole()
    assert (prediction.pose_code[:, 1:, :7] - prediction.pose[-1, :, 1:, :7]).abs().amax() > 1e-4
    torch.testing.assert_close(prediction.pose_code[..., 7:], prediction.pose[-1][..., 7:])


def test_a_frame_that_is_not_kept_leaves_no_trace() -> None:
    """Each keyframe comes out as in a stream of keyframes alone."""
    interval = tiny_preset(keyframes="interval", keyframe_interval=2)
    images = random_images(FRAMES + 4)
    first = interval.stream.scale_frames
    stream = Stream(tiny_network(interval), interval, GRID, "auto")
    kept, codes = [], []
    stream.step(images[:first])
    for image in images[first:]:
        prediction, decision = stream.step(image[None])
        if decision.is_keyframe:
            kept.append(image)
            codes.append(prediction.pose_code.clone())
    every = Stream(tiny_network(interval), tiny_preset(), GRID, "auto")
    every.step(images[:first])
    for image, code in zip(kept, codes, strict=True):
        torch.testing.assert_close(every.step(image[None])[0].pose_code, code)


def test_steps_of_chosen_frames_are_those_of_all() -> None:
    chosen = torch.tensor([0, 2, 5])
    all_steps, some = whole().steps, whole(chosen).steps
    assert all_steps is not None and some is not None
    torch.testing.assert_close(some.motion, all_steps.motion[:, chosen])
    torch.testing.assert_close(some.flows, all_steps.flows[:, :, chosen])


def test_later_frames_do_not_change_earlier_ones() -> None:
    images = random_images(FRAMES)
    images[5:] = 0.5
    torch.testing.assert_close(whole(images=images).pose_code[:, :5], whole().pose_code[:, :5])


def test_it_needs_the_encoders_detail() -> None:
    with pytest.raises(ConfigError, match="step_blocks"):
        dataclasses.replace(tiny_preset().network, encoder_stem="linear")
