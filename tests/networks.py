"""Tiny networks for tests, with weights large enough that every connection shows in the outputs."""

from typing import TYPE_CHECKING

import torch

from stream_recon.app.engine.stream import StreamRunner
from stream_recon.configs.schema import ImageConfig, NetworkConfig, Preset, StreamConfig
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.odometry.odometry import OdometryState
from stream_recon.models.prediction import Prediction

if TYPE_CHECKING:
    from training.mask import TrainingMask

GRID = (2, 3)


def tiny_preset(*, keyframe_matcher: bool = False, **stream: object) -> Preset:
    network = NetworkConfig(
        dim=64,
        heads=2,
        encoder_depth=1,
        encoder_stem="conv",
        encoder_qk_norm=True,
        depth=4,
        output_layers=(0, 1, 2, 3),
        camera_depth=1,
        camera_heads=2,
        camera_iterations=2,
        camera_dim=32,
        dpt_features=16,
        dpt_channels=(8, 8, 8, 8),
        image_size=56,
        rope_time_dims=8,
        flow_blocks=1,
        keyframe_matcher=keyframe_matcher,
        dpt_upsampling="convex",
    )
    values = {"scale_frames": 3, "window": 4, "special_budget": 64, "camera_window": 8, "keyframes": "every"}
    return Preset(
        name="tiny",
        network=network,
        stream=StreamConfig(**{**values, **stream}),  # type: ignore[arg-type]
        image=ImageConfig(max_patches=GRID[0] * GRID[1], max_side=56),
    )


def tiny_network(preset: Preset, seed: int = 0) -> StreamingNetwork:
    generator = torch.Generator().manual_seed(seed)
    network = StreamingNetwork(preset.network).eval().requires_grad_(False)
    for name, parameter in network.named_parameters():
        value = torch.randn(parameter.shape, generator=generator)
        if name.endswith("gamma") or "norm" in name:
            parameter.copy_(1 + 0.1 * value)
        else:
            parameter.copy_(value * (2.0 / max(parameter[0].numel(), 1) ** 0.5 if parameter.ndim > 1 else 0.1))
    network.depth_head.out3.weight.mul_(1e-4)  # depths of order one
    if network.depth_head.upsample is not None and network.depth_head.sharpen is not None:
        network.depth_head.upsample.mixture.weight.mul_(0.02)
        network.depth_head.sharpen.conv2.weight.mul_(0.1)
    if network.odometry is not None:
        # Motions that five iterations find.
        network.odometry.flow_head.out.weight.mul_(0.02)
        for update in network.odometry.flow_head.rounds:
            update.fc2.weight.mul_(0.02)
    if network.odometry is not None and network.odometry.keyframe_matcher is not None:
        # A camera that moves little, and matches near where they are looked for: scattered ones determine no pose, and
        # rounding would decide.
        network.camera_head.pose_branch.fc2.weight[:7].mul_(0.02)
        for update in network.odometry.keyframe_matcher.rounds:
            update.fc2.weight.mul_(0.02)
            update.fc2.bias.mul_(0.02)
    # A plausible camera: looking ahead, about 60 degrees wide.
    network.camera_head.pose_branch.fc2.bias.copy_(torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1.2]) / 2)
    return network


def random_images(count: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, GRID[0] * 14, GRID[1] * 14, generator=generator)


def clip_mask(preset: Preset, images: torch.Tensor) -> "TrainingMask":
    """Attention of images [S, 3, H, W] to each other as one clip."""
    from training.mask import ClipLayout, TrainingMask

    stream, special = preset.stream, preset.network.special_tokens
    clip = ClipLayout(len(images), special + GRID[0] * GRID[1], special, stream.scale_frames, stream.window)
    return TrainingMask(clip, stream.camera_window, torch.device("cpu"))


def clip_step(preset: Preset, images: torch.Tensor) -> tuple[Prediction, OdometryState | None]:
    """The tiny network's step on images [S, 3, H, W] as one clip."""
    with torch.no_grad():
        step: tuple[Prediction, OdometryState | None] = tiny_network(preset)(
            images[None], clip_mask(preset, images), rotation_search=preset.stream.rotation_search is not False
        )
    return step


def whole_clip(preset: Preset, images: torch.Tensor) -> Prediction:
    """The tiny network's prediction for images [S, 3, H, W] as one clip."""
    return clip_step(preset, images)[0]


def assert_only_keyframes_count(images: torch.Tensor, **options: bool) -> None:
    """Each keyframe of a stream comes out as in a stream of keyframes alone: ``options`` of `tiny_preset`."""
    interval = tiny_preset(keyframes="interval", keyframe_interval=2, **options)
    first = interval.stream.scale_frames
    stream = StreamRunner(tiny_network(interval), interval, GRID)
    kept, codes, depths = [], [], []
    stream.step(images[:first])
    for image in images[first:]:
        prediction, decision = stream.step(image[None])
        if decision.is_keyframe:
            kept.append(image)
            codes.append(prediction.pose.clone())
            depths.append(prediction.log_depth.clone())
    every = StreamRunner(tiny_network(interval), tiny_preset(**options), GRID)
    every.step(images[:first])
    for image, code, depth in zip(kept, codes, depths, strict=True):
        prediction, _ = every.step(image[None])
        torch.testing.assert_close(prediction.pose, code)
        torch.testing.assert_close(prediction.log_depth, depth)
