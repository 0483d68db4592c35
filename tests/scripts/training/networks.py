"""A preset small enough for a training step in some hundredths of a second."""

import dataclasses

from stream_recon.configs.schema import NetworkConfig, Preset, load_preset

TINY_NETWORK = NetworkConfig(
    dim=64,
    heads=2,
    encoder_depth=1,
    encoder_stem="conv",
    encoder_qk_norm=True,
    depth=4,
    output_layers=(0, 1, 2, 3),
    camera_depth=1,
    camera_dim=32,
    camera_heads=2,
    camera_iterations=2,
    dpt_features=16,
    dpt_channels=(8, 8, 16, 16),
    image_size=56,
    rope_time_dims=12,
    flow_blocks=1,
    keyframe_matcher=True,
    dpt_upsampling="convex",
)


def tiny_preset() -> Preset:
    return dataclasses.replace(load_preset("small"), name="tiny", network=TINY_NETWORK)
