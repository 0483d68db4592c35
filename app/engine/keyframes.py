"""Keyframe policies: which frames stay in the caches, by induced image motion or by count."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stream_recon.configs.schema import StreamConfig
from stream_recon.models.pose import focal_lengths, pose_to_matrix
from stream_recon.models.prediction import Prediction


@dataclass(frozen=True)
class FlowSampling:
    """Which pixels count in `mean_flow`."""

    pixel_step: int = 8
    """Every n-th pixel along each axis. On the sample the mean differs by 1.1 % (median) from that of all pixels, which
    changes no decision for a keyframe; with 16 it differs by 1.7 % and changes one of 23."""
    min_depth: float = 1e-6
    """Smallest depth that counts as in front of a camera."""


FLOW_SAMPLING = FlowSampling()

FAR = 3.0
"""Without it, a least distance of 6 frames made the embedded network's path errors five times as large where a phone
moved fast."""


@dataclass(frozen=True)
class Decision:
    """Whether a frame is a keyframe, and the `mean_flow` in pixels where the policy needs it."""

    is_keyframe: bool
    flow: float | None


def mean_flow(pose: Tensor, depth: Tensor, reference_pose: Tensor, sampling: FlowSampling = FLOW_SAMPLING) -> Tensor:
    """Mean image motion in pixels of a view's surface, between the view and a reference camera (LingBot-Map), [...].

    Pose codes [..., 9], depth [..., h, w] of the view. Pixels are unprojected by the view's depth and pose; those in
    front of the reference camera count. Nothing waits for the host, so this can be captured.
    """
    (height, width), step, near = depth.shape[-2:], sampling.pixel_step, sampling.min_depth
    depth = depth[..., ::step, ::step]
    v, u = torch.meshgrid(
        torch.arange(0, height, step, device=depth.device, dtype=depth.dtype),
        torch.arange(0, width, step, device=depth.device, dtype=depth.dtype),
        indexing="ij",
    )
    fx, fy = _per_image(focal_lengths(pose, height, width))
    points = torch.stack([(u - width / 2) / fx * depth, (v - height / 2) / fy * depth, depth], dim=-1)
    T_world_view, T_world_reference = (pose_to_matrix(p)[..., None, :, :] for p in (pose, reference_pose))
    world = points @ T_world_view[..., :3, :3].mT + T_world_view[..., None, :3, 3]
    reference = (world - T_world_reference[..., None, :3, 3]) @ T_world_reference[..., :3, :3]
    z = reference[..., 2].clamp_min(near)
    fx, fy = _per_image(focal_lengths(reference_pose, height, width))
    du = reference[..., 0] / z * fx + width / 2 - u
    dv = reference[..., 1] / z * fy + height / 2 - v
    valid = (depth > near) & (reference[..., 2] > near)
    return torch.where(valid, torch.hypot(du, dv), 0).sum((-2, -1)) / valid.sum((-2, -1)).clamp_min(1)


def flow_since(prediction: Prediction, references: Tensor, rows: Tensor | None, *, by_kernel: bool) -> Tensor:
    """`mean_flow` [B] of the last frame of B clips, by the heads' poses and depths.

    Args:
        references: pose codes [M, 9] of the last keyframes.
        rows: [B], each clip's reference; None: in order.
        by_kernel: as one Triton kernel, on a GPU.
    """
    pose, log_depth = prediction.head_pose[-1, :, -1], prediction.head_maps[:, -1, 0]
    if by_kernel:
        from stream_recon.app.engine.flow_kernel import mean_flow_of_rows  # needs Triton

        return mean_flow_of_rows(pose, log_depth, references, rows, FLOW_SAMPLING.pixel_step, FLOW_SAMPLING.min_depth)
    return mean_flow(pose, log_depth.exp(), references if rows is None else references.index_select(0, rows))


def _per_image(numbers: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """[...] -> [..., 1, 1] each."""
    return numbers[0][..., None, None], numbers[1][..., None, None]


class KeyframePolicy(Protocol):
    """Decides for each streamed frame, in order."""

    @property
    def evicts_first(self) -> bool:
        """Whether the next frame is known to be a keyframe: the window then counts it, and hides its oldest frame."""

    @property
    def needs_flow(self) -> bool:
        """Whether `decide` needs the `mean_flow` since the last keyframe, at first since the last scale frame."""

    def decide(self, flow: float | None) -> Decision:
        """Decide for the next frame."""


class FlowKeyframes:
    """The first frame, and one where the image moved by over ``threshold`` pixels, or after ``max_gap`` frames.

    One less than ``min_gap`` frames after the last one has to have moved by `FAR` times as much.
    """

    evicts_first = False
    needs_flow = True

    def __init__(self, threshold: float, max_gap: int, min_gap: int = 1) -> None:
        self._threshold, self._min_gap, self._max_gap = threshold, min_gap, max(max_gap, min_gap)
        self._since = self._max_gap

    def decide(self, flow: float | None) -> Decision:
        assert flow is not None
        self._since += 1
        needed = self._threshold * (1 if self._since >= self._min_gap else FAR)
        chosen = flow > needed or self._since >= self._max_gap
        if chosen:
            self._since = 0
        return Decision(chosen, flow)


class IntervalKeyframes:
    """The first streamed frame and every ``interval``-th after it."""

    needs_flow = False

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._streamed = 0

    @property
    def evicts_first(self) -> bool:
        return self._streamed % self._interval == 0

    def decide(self, flow: float | None) -> Decision:
        chosen = self.evicts_first
        self._streamed += 1
        return Decision(chosen, None)


def keyframe_policy(stream: StreamConfig, min_gap: int = 1) -> KeyframePolicy:
    """The policy of a preset; ``min_gap``: see `FlowKeyframes`."""
    if stream.keyframes == "flow":
        return FlowKeyframes(stream.flow_threshold, stream.max_gap, min_gap)
    return IntervalKeyframes(stream.keyframe_interval if stream.keyframes == "interval" else 1)
