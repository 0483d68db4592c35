"""A batched step of odometry and its mean flow, by kernels and by torch; exits non-zero where they differ."""

import sys
from dataclasses import astuple, fields
from typing import Any

import torch
import torch.nn.functional as F

from stream_recon.app.engine.flow_kernel import mean_flow_of_rows
from stream_recon.app.engine.keyframes import FLOW_SAMPLING, mean_flow
from stream_recon.app.engine.stream import OdometrySlots, StreamRunner
from stream_recon.configs.schema import load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET, EMBEDDED_WEIGHTS
from stream_recon.models.encoder import STEM_CHANNELS
from stream_recon.models.odometry.kernels import flow, matching, step
from stream_recon.models.odometry.kernels.features import describe_flow, describe_matching
from stream_recon.models.odometry.odometry import Odometry, OdometryState
from stream_recon.models.prediction import Descriptors, NetworkFeatures, Prediction
from stream_recon.models.weights import load_network

GRID, SIZE = (3, 4), (42, 56)
"""48 cells: not a multiple of the points of one program."""
SLOTS = (3, 0, 2)
"""Of the streams in the batch, of four slots."""

Step = tuple[Prediction, NetworkFeatures, OdometryState | None]


def moving_texture(seed: int, frames: int) -> torch.Tensor:
    """Images [frames, 3, h, w] of a texture that moves by a pixel or two from frame to frame."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 12, 16, generator=generator)
    texture = F.interpolate(coarse, size=(96, 128), mode="bicubic").clamp(0, 1)[0]
    texture = 0.7 * texture + 0.3 * torch.rand(texture.shape, generator=generator)
    shifts = [(i * (1 + seed % 2), 2 * i) for i in range(frames)]
    return torch.stack([texture[:, y : y + SIZE[0], x : x + SIZE[1]] for y, x in shifts])


def recorded_steps(stream: StreamRunner, images: torch.Tensor) -> list[Step]:
    """What each step of a stream gives to odometry."""
    steps: list[Step] = []
    plain = Odometry.step

    def record(
        self: Odometry, heads: Prediction, features: NetworkFeatures, state: OdometryState | None, **options: bool
    ):  # type: ignore[no-untyped-def]
        steps.append((heads, features, state.select(torch.tensor([0])) if state is not None else None))
        return plain(self, heads, features, state, **options)

    Odometry.step = record  # type: ignore[method-assign]
    try:
        stream.step(images[:-2])
        for image in images[-2:].split(1):
            stream.step(image)
    finally:
        Odometry.step = plain  # type: ignore[method-assign]
    return steps


def joined(steps: list[Step]) -> tuple[Prediction, NetworkFeatures]:
    """Inputs of several streams as those of one batch, features as a convolution with channels last gives them."""
    heads = [heads for heads, _, _ in steps]
    parts = [features for _, features, _ in steps]
    prediction = Prediction(torch.cat([h.head_pose for h in heads], dim=1), *(
        torch.cat([getattr(h, name) for h in heads]) for name in ("head_maps", "pose", "log_depth")
    ))  # fmt: skip
    described = [part.descriptors for part in parts if part.descriptors is not None]
    features = torch.cat([d.flow for d in described]).flatten(0, 1).contiguous(memory_format=torch.channels_last)
    keys = torch.cat([d.matching for d in described if d.matching is not None])
    taps = [torch.cat(taps) for taps in zip(*(part.taps for part in parts), strict=True)]
    descriptors = Descriptors(features.unflatten(0, (len(steps), -1)), keys)
    return prediction, NetworkFeatures(taps[-1], taps[0], taps, descriptors)


def compare(name: str, one: torch.Tensor, two: torch.Tensor, most: float) -> None:
    assert one.shape == two.shape and torch.isfinite(two).all()
    error = float((one - two).abs().max() / one.abs().max().clamp_min(1e-6))
    print(f"{name}: {error:.1e}")
    assert error < most, name


def tensors(state: Any) -> list[torch.Tensor]:
    """All tensors of a dataclass, in the order of its fields."""
    if isinstance(state, torch.Tensor):
        return [state]
    return [tensor for field in fields(state) for tensor in tensors(getattr(state, field.name))]


def compare_descriptions(odometry: Odometry) -> None:
    """Also of images whose sides are no multiples of the coarsest cell."""
    matcher = odometry.keyframe_matcher
    assert matcher is not None
    detail = torch.randn(2, STEM_CHANNELS, 21, 30).contiguous(memory_format=torch.channels_last)
    compare("features of flow", odometry.flow_head.describe(detail), describe_flow(odometry.flow_head, detail), 1e-5)
    compare("features to match", matcher.describe(detail), describe_matching(matcher, detail), 1e-5)


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    flow.POINTS = matching.POINTS = 32
    preset = load_preset(EMBEDDED_PRESET)
    network = load_network(EMBEDDED_WEIGHTS, preset.network).eval()
    odometry, pool = network.odometry, OdometrySlots(preset.network, GRID, 4, torch.device("cpu"))
    assert odometry is not None and pool.states is not None
    last = []
    for slot in SLOTS:
        steps = recorded_steps(StreamRunner(network, preset, GRID), moving_texture(slot, 10))
        last.append(steps[-1])
        assert steps[-1][2] is not None
        pool.states.store(torch.tensor([slot]), steps[-1][2], torch.tensor([0]))
    compare_descriptions(odometry)
    heads, features = joined(last)
    rows = torch.tensor([[7, slot, 9] for slot in SLOTS], dtype=torch.int32)[:, 1]
    state = pool.states.select(rows)
    plain, plain_state = odometry.step(heads, features, state, rotation_search=False)
    fused, fused_state = step.step(odometry, heads, features, state)
    moved = float((plain.pose - heads.head_pose[-1]).abs().amax((1, 2)).min())
    print(f"odometry moved poses by {moved:.1e}")
    assert moved > 1e-4
    compare("pose", plain.pose, fused.pose, 1e-4)
    compare("log depth", plain.log_depth, fused.log_depth, 1e-3)
    names = [field.name for field in fields(OdometryState)]
    print(f"state: {names}")
    for number, pair in enumerate(zip(tensors(plain_state), tensors(fused_state), strict=True)):
        compare(f"state {number}", *pair, most=2e-3)
    depth = heads.head_maps[:, -1, 0]
    since = mean_flow(heads.head_pose[-1, :, -1], depth.exp(), pool.head_pose.index_select(0, rows))
    by_kernel = mean_flow_of_rows(heads.head_pose[-1, :, -1], depth, pool.head_pose, rows, *astuple(FLOW_SAMPLING))
    compare("mean flow", since, by_kernel, 1e-4)


if __name__ == "__main__":
    main()
    sys.exit(0)
