"""The motion of each frame since the cached frame before it, solved from matches of the images and the frame's depth.

The camera head says a pose from one token of a frame; of what its patches know of the motion only a part gets there.
This head reads flow at four points of each patch from the aggregator's tokens, sharpens it by comparing features of
both images around each match (as RAFT does, Teed & Deng 2020). `solve_pnp` then finds the rigid motion of the points,
unprojected by the frame's depth, that explains the flow. The camera head's poses correct the drift of such steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.dpt_head import project_channels
from stream_recon.models.encoder import STEM_CHANNELS
from stream_recon.models.layers import Block, Mlp, attend_within, in_fp32
from stream_recon.models.odometry.depth_filter import disparity_evidence
from stream_recon.models.odometry.pnp import solve_pnp
from stream_recon.models.odometry.sampling import (
    SAMPLES,
    at_places,
    in_space,
    look_up,
    per_point,
    rays_of,
    sample_places,
    window,
)
from stream_recon.models.rope import frame_rotation, rotate_frame

WIDTH, HEADS = 128, 4
TAPS = (1, 3)
"""Of the aggregator's outputs."""
CONTEXT = 16
FEATURES = 16
REACH = 2
"""Features are compared so many places to each side of a match."""
SPACINGS = (4, 2)
"""Pixels from one place to the next, in each round; features have one for every two."""
SHARPNESS = 5.0
"""Factor on cosines of features."""
HEAVIEST = 8.0
"""Logarithm of the largest weight of a match; the smallest is as far below 1."""


@dataclass(frozen=True)
class RelativeMotion:
    """Of B clips, D frames each."""

    flows: Tensor
    """[R, B, D, 2*gh, 2*gw, 2]: motion (x, y) in patches to the cached frame before, from the tokens and then after
    each round."""
    motion: Tensor
    """[B, D, 3, 4]: rotation and translation from this camera's frame to the one before."""
    support: Tensor
    """[B, D], in [0, 1]: the share of the matches, as they are weighted, that agrees with the motion."""
    parallax: Tensor
    """[B, D, 2, 2*gh, 2*gw]: evidence of the matches for depth (`disparity_evidence`)."""

    def first_clips(self, count: int) -> "RelativeMotion":
        """Of the first ``count`` clips; views."""
        return RelativeMotion(self.flows[:, :count], self.motion[:count], self.support[:count], self.parallax[:count])


class FlowHead(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.patch_size = config.patch_size
        self.norm = nn.LayerNorm(2 * config.dim)
        self.project = nn.Linear(len(TAPS) * 2 * config.dim, WIDTH)
        self.blocks = nn.ModuleList(
            Block(WIDTH, HEADS, 4.0, qk_norm=True, eps=1e-5, layer_scale=0.1) for _ in range(config.step_blocks)
        )
        self.out_norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, SAMPLES * SAMPLES * (2 + CONTEXT))
        self.features1 = nn.Conv2d(STEM_CHANNELS, STEM_CHANNELS, 3, padding=1)
        self.features2 = nn.Conv2d(STEM_CHANNELS, FEATURES, 1)
        self.rounds = nn.ModuleList(Mlp(len(window(REACH, 1)) + CONTEXT, 64, 2 + CONTEXT) for _ in SPACINGS)
        self.weigh = Mlp(CONTEXT, 32, 1)

    def describe(self, detail: Tensor) -> Tensor:
        """The stem's detail [N, 32, H/2, W/2] -> what is compared, [N, 16, H/2, W/2], of length 1 at each place."""
        x = project_channels(F.gelu(self.features1(detail)), self.features2)
        return F.normalize(x.float(), dim=1)

    def forward(
        self, taps: Sequence[Tensor], features: Tensor, before: Tensor, log_depth: Tensor, pose: Tensor
    ) -> RelativeMotion:
        """taps [B * D, gh*gw, 2*dim] each; features and those of the cached frame before [B, D, 16, H/2, W/2] from
        `describe`; log depth [B, D, H, W]; pose codes [B, D, 9], of which the field of view counts."""
        clips = len(pose)
        features, before, log_depth, pose = (x.flatten(0, 1) for x in (features, before, log_depth, pose))
        size = (log_depth.shape[1], log_depth.shape[2])
        grid = (size[0] // self.patch_size, size[1] // self.patch_size)
        flow, context = self._read(taps, grid)
        places = sample_places(size, (SAMPLES * grid[0], SAMPLES * grid[1]), features.device)
        flows = [flow]
        own = look_up(features, places.flatten(0, 1)[None, :, None].expand(len(features), -1, -1, -1), 2)
        coarse = F.avg_pool2d(before, 2)
        for spacing, update in zip(SPACINGS, self.rounds, strict=True):
            # As in RAFT: each round learns its own correction, so no gradient through where it looks.
            flow = flow.detach()
            around = (places + flow * self.patch_size).flatten(1, 2)
            looked = around[:, :, None] + window(REACH, spacing, features.device)
            seen = look_up(coarse, looked, 4) if spacing == SPACINGS[0] else look_up(before, looked, 2)
            alike = (own * seen).sum(1).unflatten(1, flow.shape[1:3]) * SHARPNESS
            change = update(torch.cat([alike, context], dim=-1)).float()
            flow = flow + change[..., :2] * (spacing / self.patch_size)
            context = context + change[..., 2:]
            flows.append(flow)
        log_weight = self.weigh(context).float()[..., 0].clamp(-HEAVIEST, HEAVIEST)
        with in_fp32(pose):
            rays, lengths = rays_of(size, (places.shape[0], places.shape[1]), pose)
            points = in_space(rays, at_places(log_depth, places.shape))
            target = rays[..., :2] + flow * (self.patch_size / lengths[:, None, None])
            weight = log_weight.exp()
            motion, support = solve_pnp(points.flatten(1, 2), target.flatten(1, 2), weight.flatten(1))
            evidence = disparity_evidence(points, target, weight, motion)
        by_clip = (clips, -1)
        each = (x.unflatten(0, by_clip) for x in (motion, support, evidence))
        return RelativeMotion(torch.stack(flows).unflatten(1, by_clip), *each)

    def _read(self, taps: Sequence[Tensor], grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """What tokens say of their points: flow [N, 2*gh, 2*gw, 2] in patches, and what else may help [.., 16]."""
        x = self.project(torch.cat([self.norm(taps[i]) for i in TAPS], dim=-1))
        rotation = frame_rotation(grid, 0, WIDTH // HEADS, x.device)
        for block in self.blocks:
            x = block(x, attend_within, rotate_frame, rotation)
        said = per_point(self.out(self.out_norm(x)).float(), grid)
        return said[..., :2], said[..., 2:]
