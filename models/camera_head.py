"""Camera head: a pose code from each frame's camera token, by iterative refinement."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stream_recon.cache.attention import Memory
from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.layers import Block, Mlp, in_fp32

POSE_CODE = 9
"""Translation (3), quaternion xyzw (4), vertical and horizontal field of view in radians (2)."""


class CameraHead(nn.Module):
    """Iterative refinement of pose codes.

    Each iteration modulates the token by the last pose code (adaptive layer norm, Peebles & Xie 2023). The trunk
    attends to all cached frames' tokens of the same iteration, and its output is added to the code.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        dim = config.camera_dim or 2 * config.dim
        self.iterations = config.camera_iterations
        self.token_norm = nn.LayerNorm(2 * config.dim)
        self.project = nn.Linear(2 * config.dim, dim) if config.camera_dim else nn.Identity()
        self.empty_pose = nn.Parameter(torch.zeros(1, 1, POSE_CODE))
        self.embed_pose = nn.Linear(POSE_CODE, dim)
        self.modulation = nn.Linear(dim, 3 * dim)
        self.trunk = nn.ModuleList(
            Block(dim, config.camera_heads, 4.0, qk_norm=False, eps=1e-5, layer_scale=0.01)
            for _ in range(config.camera_depth)
        )
        self.trunk_norm = nn.LayerNorm(dim)
        self.pose_branch = Mlp(dim, dim // 2, POSE_CODE)

    def forward(self, camera_tokens: Tensor, memory: Memory) -> Tensor:
        """camera_tokens [B, S, 2*dim] -> pose codes of all iterations, [I, B, S, 9], fields of view not negative."""
        tokens = self.project(self.token_norm(camera_tokens))
        pose = self.empty_pose.expand(*tokens.shape[:2], -1)
        total: Tensor | None = None
        poses = []
        for iteration in range(self.iterations):
            # Each iteration learns its own correction: no gradient through the code it starts from.
            embedded = self.embed_pose(pose.detach() if iteration else pose)
            shift, scale, gate = self.modulation(F.silu(embedded)).chunk(3, dim=-1)
            normed = F.layer_norm(tokens, tokens.shape[-1:], eps=1e-6)
            x = tokens + gate * (normed * (1 + scale) + shift)
            for depth, block in enumerate(self.trunk):
                x = block(x, partial(memory.attend_camera, iteration * len(self.trunk) + depth))
            # In fp32 on any device: rounded to bf16, a pose has an error of tenths of a degree.
            with in_fp32(x):
                delta = self.pose_branch(self.trunk_norm(x.float()))
            total = delta if total is None else total.detach() + delta
            pose = total
            poses.append(torch.cat([total[..., :7], F.relu(total[..., 7:])], dim=-1))
        return torch.stack(poses)
