"""Alternating attention: inside each frame, then across all visible frames (VGGT, Wang et al. 2025; LingBot-Map)."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from stream_recon.cache.attention import KVCache
from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.layers import Attend, Block, attend_within
from stream_recon.models.rope import Rotation, frame_rotation, global_rotation, rotate_frame, rotate_global


class Aggregator(nn.Module):
    """Pairs of a frame block and a global block.

    Tokens of a frame are camera, registers and scale (the special tokens), then gh*gw patches, row by row. ``fused``:
    operations between matrix products run as Triton kernels, for inference on a GPU.
    """

    fused = False

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        # Two learned versions of each special token: [0] for the first frame (scale frames, for the scale
        # token), [1] for all others.
        self.camera_token = nn.Parameter(torch.zeros(1, 2, 1, dim))
        self.register_token = nn.Parameter(torch.zeros(1, 2, config.registers, dim))
        self.scale_token = nn.Parameter(torch.zeros(1, 2, 1, dim))

        def block() -> Block:
            return Block(dim, config.heads, config.mlp_ratio, qk_norm=True, eps=1e-5, layer_scale=0.01)

        self.frame_blocks = nn.ModuleList(block() for _ in range(config.depth))
        self.global_blocks = nn.ModuleList(block() for _ in range(config.depth))

    @property
    def max_score(self) -> float:
        """Largest score of global attention that the weights allow, as an exponent of 2.

        A normalised vector of D channels is at most sqrt(D) long, and rotation keeps its length.
        """
        largest = 0.0
        for block in self.global_blocks:
            assert isinstance(block, Block)
            largest = max(largest, _max_length(block.attn.q_norm) * _max_length(block.attn.k_norm))
        return largest * math.log2(math.e) / math.sqrt(self.config.head_dim)

    def forward(self, patches: Tensor, grid: tuple[int, int], kv_cache: KVCache) -> list[Tensor]:
        """Patches [B, S, gh*gw, dim] -> tokens [B, S, P, 2*dim] of each output layer: frame half, then global half."""
        config = self.config
        clips, frames = patches.shape[:2]
        special = self._special_tokens(kv_cache).to(patches.dtype).expand(clips, -1, -1, -1)
        x = torch.cat([special, patches], dim=2).flatten(0, 1)  # [B*S, P, C]
        in_frame = frame_rotation(grid, config.special_tokens, config.head_dim, x.device)
        times = kv_cache.times.expand(clips, frames).flatten()
        rope = (times, grid, config.special_tokens, config.head_dim, config.rope_time_dims)
        attends = [partial(_attend_across, kv_cache, layer, clips) for layer in range(config.depth)]
        if self.fused:
            from stream_recon.models import fused  # needs Triton

            outputs = self._run_fused(x, attends, in_frame, fused.global_rotation(*rope))
            return [output.unflatten(0, (clips, frames)) for output in outputs]
        across, outputs = global_rotation(*rope), []
        for layer, (frame_block, global_block) in enumerate(zip(self.frame_blocks, self.global_blocks, strict=True)):
            x = frame_block(x, attend_within, rotate_frame, in_frame)
            inside = x
            x = global_block(x, attends[layer], rotate_global, across)
            if layer in config.output_layers:
                outputs.append(torch.cat([inside, x], dim=-1).unflatten(0, (clips, frames)))
        return outputs

    def _run_fused(self, x: Tensor, attends: Sequence[Attend], in_frame: Rotation, across: Rotation) -> list[Tensor]:
        """Tokens [B*S, P, 2*dim] of each output layer; blocks write their halves where they are."""
        from stream_recon.models import fused

        calls, outputs, dim = [], [], x.shape[-1]
        for layer, attend in enumerate(attends):
            frame_out, global_out = None, None
            if layer in self.config.output_layers:
                outputs.append(x.new_empty(*x.shape[:-1], 2 * dim))
                frame_out, global_out = outputs[-1].split(dim, dim=-1)
            frame_block, global_block = self.frame_blocks[layer], self.global_blocks[layer]
            assert isinstance(frame_block, Block) and isinstance(global_block, Block)
            calls.append(fused.BlockCall(frame_block, attend_within, rotate_frame, in_frame, frame_out))
            calls.append(fused.BlockCall(global_block, attend, rotate_global, across, global_out))
        fused.run_blocks(x, calls)
        return outputs

    def _special_tokens(self, kv_cache: KVCache) -> Tensor:
        """[1, S, special, dim]"""
        later, streamed = kv_cache.is_later_frame, kv_cache.is_streamed_frame
        return torch.cat(
            [self.camera_token[:, later], self.register_token[:, later], self.scale_token[:, streamed]], dim=2
        )


def _attend_across(kv_cache: KVCache, layer: int, clips: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of q, k, v [B*S, P, H, D] across frames: each clip is one sequence for the cache."""
    frames_of = (clips, -1, *q.shape[2:])
    y = kv_cache.attend(layer, q.reshape(frames_of), k.reshape(frames_of), v.reshape(frames_of))
    return y.reshape(q.shape)


def _max_length(norm: nn.Module) -> float:
    """Length that no vector of D channels exceeds after a normalisation."""
    assert isinstance(norm, nn.LayerNorm)
    return float(norm.weight.abs().max()) * math.sqrt(norm.weight.numel()) + float(norm.bias.norm())
