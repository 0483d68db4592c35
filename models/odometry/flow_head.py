"""Motion of each frame since the last keyframe, solved from optical flow and the frame's depth.

The camera head estimates a pose from one token of a frame, which receives only a part of what the patches know of the
motion. This head reads flow at four points of each patch from the aggregator's tokens. It refines the flow by comparing
features of both images around each match, as RAFT does (Teed & Deng 2020). `solve_pnp` then finds the rigid motion that
explains the flow of the unprojected points.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.encoder import STEM_CHANNELS
from stream_recon.models.heads import project_channels
from stream_recon.models.layers import Block, Mlp, attend_within, in_fp32
from stream_recon.models.odometry.depth_filter import disparity_evidence
from stream_recon.models.odometry.pnp import RelativeMotion, solve_pnp
from stream_recon.models.odometry.sampling import (
    SAMPLES,
    at_centers,
    camera_rays,
    cell_centers,
    sample_features,
    tokens_to_cells,
    unproject,
    window_offsets,
)
from stream_recon.models.rope import frame_rotation, rotate_frame

WIDTH, HEADS = 128, 4
"""Width of the head's tokens, and its attention heads."""
TAPS = (1, 3)
"""Outputs of the aggregator that are read."""
CONTEXT = 16
"""Channels of the recurrent context of each match."""
FEATURES = 16
"""Channels of the compared features."""
REACH = 2
"""Features are compared up to this number of steps to each side of a match."""
SPACINGS = (4, 2)
"""Step in pixels of each round; features have one value for every two pixels."""
SHARPNESS = 5.0
"""Factor on cosines of features, so that they vary as much as other inputs."""
MAX_LOG_WEIGHT = 8.0
"""Bound of the logarithm of a match's weight, in either direction."""


class FlowHead(nn.Module):
    """Flow, and the relative motion solved from it."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.patch_size = config.patch_size
        self.norm = nn.LayerNorm(2 * config.dim)
        self.project = nn.Linear(len(TAPS) * 2 * config.dim, WIDTH)
        self.blocks = nn.ModuleList(
            Block(WIDTH, HEADS, 4.0, qk_norm=True, eps=1e-5, layer_scale=0.1) for _ in range(config.flow_blocks)
        )
        self.out_norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, SAMPLES * SAMPLES * (2 + CONTEXT))
        self.features1 = nn.Conv2d(STEM_CHANNELS, STEM_CHANNELS, 3, padding=1)
        self.features2 = nn.Conv2d(STEM_CHANNELS, FEATURES, 1)
        self.rounds = nn.ModuleList(Mlp((2 * REACH + 1) ** 2 + CONTEXT, 64, 2 + CONTEXT) for _ in SPACINGS)
        self.weigh = Mlp(CONTEXT, 32, 1)

    def describe(self, detail: Tensor) -> Tensor:
        """Detail of the encoder's stem [N, 32, H/2, W/2] -> features [N, 16, H/2, W/2] of length 1."""
        x = project_channels(F.gelu(self.features1(detail)), self.features2)
        return F.normalize(x.float(), dim=1)

    def forward(
        self, taps: Sequence[Tensor], features: Tensor, before: Tensor, log_depth: Tensor, pose: Tensor
    ) -> RelativeMotion:
        """Motion of D frames of each of B clips to the keyframe before each.

        Args:
            taps: [B * D, gh*gw, 2*dim] each, outputs of the aggregator.
            features, before: [B, D, 16, H/2, W/2] from `describe`, of the frames and of the keyframes before them.
            log_depth: [B, D, H, W].
            pose: pose codes [B, D, 9], of which only the field of view is used.
        """
        clips = len(pose)
        features, before, log_depth, pose = (x.flatten(0, 1) for x in (features, before, log_depth, pose))
        size = (log_depth.shape[1], log_depth.shape[2])
        grid = (size[0] // self.patch_size, size[1] // self.patch_size)
        flow, context = self.initial_flow(taps, grid)
        centers = cell_centers(size, (SAMPLES * grid[0], SAMPLES * grid[1]), features.device)
        flows = [flow]
        own = sample_features(features, centers.flatten(0, 1)[None, :, None].expand(len(features), -1, -1, -1), 2)
        coarse = F.avg_pool2d(before, 2)
        for spacing, update in zip(SPACINGS, self.rounds, strict=True):
            # As in RAFT, each round learns its own correction: no gradient through the start of the next one.
            flow = flow.detach()
            around = (centers + flow * self.patch_size).flatten(1, 2)
            compared = around[:, :, None] + window_offsets(REACH, spacing, features.device)
            is_coarse = spacing == SPACINGS[0]
            other = sample_features(coarse, compared, 4) if is_coarse else sample_features(before, compared, 2)
            correlation = (own * other).sum(1).unflatten(1, flow.shape[1:3]) * SHARPNESS
            change = update(torch.cat([correlation, context], dim=-1)).float()
            flow = flow + change[..., :2] * (spacing / self.patch_size)
            context = context + change[..., 2:]
            flows.append(flow)
        log_weight = self.weigh(context).float()[..., 0].clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT)
        with in_fp32(pose):
            rays, focal = camera_rays(size, (centers.shape[0], centers.shape[1]), pose)
            points = unproject(rays, at_centers(log_depth, centers.shape))
            target = rays[..., :2] + flow * (self.patch_size / focal[:, None, None])
            weight = log_weight.exp()
            motion, support = solve_pnp(points.flatten(1, 2), target.flatten(1, 2), weight.flatten(1))
            evidence = disparity_evidence(points, target, weight, motion)
        by_clip = (clips, -1)
        each = (x.unflatten(0, by_clip) for x in (motion, support, evidence, focal))
        return RelativeMotion(torch.stack(flows).unflatten(1, by_clip), *each)

    def initial_flow(self, taps: Sequence[Tensor], grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Flow [N, 2*gh, 2*gw, 2] in patches as read from tokens, and the context [N, 2*gh, 2*gw, 16]."""
        return self.flow_of(torch.cat([self.norm(taps[i]) for i in TAPS], dim=-1), grid)

    def flow_of(self, normed: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """`initial_flow` from outputs that are normalised and joined, [N, gh*gw, len(TAPS)*2*dim]."""
        x = self.project(normed)
        rotation = frame_rotation(grid, 0, WIDTH // HEADS, x.device)
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        if blocks and blocks[0].fused:
            from stream_recon.models import fused  # needs Triton

            calls = [fused.BlockCall(block, attend_within, rotate_frame, rotation) for block in blocks]
            _, out = fused.run_blocks(x.float(), calls, last=self.out_norm, dtype=self.out.weight.dtype)
        else:
            for block in blocks:
                x = block(x, attend_within, rotate_frame, rotation)
            out = self.out_norm(x)
        cells = tokens_to_cells(self.out(out).float(), grid)
        return cells[..., :2], cells[..., 2:]
