"""KV cache of the aggregator's compressed layers: kept frames have one entry for each block of patches.

Deep layers find what they need of the past in fewer tokens. Layout of a layer's pool, in tokens::

    [ ... free | special tokens, newest to oldest ][ newest frame's patches ][ block slot 0 | block slot 1 | ... ]

A step writes its frame's patches whole, and also the mean key and mean value of each block to the frame's slot, which
later steps read. An entry stands for all patches of its block: the logarithm of their number is added to its scores.
The frames of the first step see one another whole.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.cache.attention import Span, TorchAttention
from stream_recon.cache.block_manager import StepAllocation
from stream_recon.cache.frame_cache import FrameCache, FrameCacheSchema
from stream_recon.cache.int8_frame_cache import Int8FrameCache
from stream_recon.configs.schema import NetworkConfig, StreamConfig


@dataclass(frozen=True)
class CompressedSchema(FrameCacheSchema):
    """Sizes of the pools of compressed layers."""

    @staticmethod
    def of_stream(network: NetworkConfig, stream: StreamConfig, grid: tuple[int, int]) -> "CompressedSchema | None":
        """Sizes for the compressed layers of a network and frames of ``grid`` patches; None: it has no such layer."""
        if stream.compressed_from is None:
            return None
        common = vars(FrameCacheSchema.from_config(network, stream, grid[0] * grid[1]))
        own = {"layers": network.depth - stream.compressed_from, "grid": grid, "block_side": stream.block_side}
        return CompressedSchema(**{**common, **own})

    @property
    def first_slot(self) -> int:
        return self.base + self.patches

    @property
    def slot_tokens(self) -> int:
        rows, columns = self.block_grid
        return rows * columns

    @property
    def block_grid(self) -> tuple[int, int]:
        """Rows and columns of blocks of a frame."""
        return math.ceil(self.grid[0] / self.block_side), math.ceil(self.grid[1] / self.block_side)

    def bias(self, device: torch.device, batch_slots: int = 1) -> Tensor:
        """What is added to the scores of each token of a pool of ``batch_slots`` parts: float32 [batch_slots * C]."""
        sides = (torch.arange(0, n, self.block_side) for n in self.grid)
        rows, columns = (
            (n - first).clamp(max=self.block_side).float() for n, first in zip(self.grid, sides, strict=True)
        )
        sizes = torch.outer(rows, columns).flatten().log()
        whole = torch.zeros(self.first_slot)
        return torch.cat([whole, sizes.repeat(self.patch_slots)]).repeat(batch_slots).to(device)

    def block_means(self, patches: Tensor) -> Tensor:
        """Means of each block of patches [T, H, D] -> [slot_tokens, H, D]."""
        # By pooling, which takes borders as they are.
        image = patches.flatten(1).unflatten(0, self.grid).permute(2, 0, 1)[None]
        if not image.is_floating_point():
            image = image.float()
        means = F.avg_pool2d(image, self.block_side, ceil_mode=True)[0].permute(1, 2, 0)
        means = means.reshape(-1, *patches.shape[1:])
        return means if patches.is_floating_point() else means.round_()


class CompressedFrameCache(FrameCache):
    """`FrameCache` of layers that see kept frames' patches as means of blocks."""

    schema: CompressedSchema

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert self._allocated is not None, "attend outside a step"
        special = self._allocated.special
        if len(special.block_table) > len(special.slot_mapping):
            return super().attend(layer, q, k, v)
        # Nothing is cached.
        self._write(layer, k, v)
        self._of_step.plan(len(q), [(0, len(k))])
        return self._of_step.attend(q.to(v.dtype), k.to(v.dtype), v)

    @cached_property
    def _of_step(self) -> TorchAttention:
        """Attention of a step's tokens to one another alone."""
        return TorchAttention()

    def _visible_spans(self, patches: StepAllocation, special_start: int) -> list[Span]:
        slots = [self._patch_span(slot) for slot in patches.block_table if slot not in patches.slot_mapping]
        return [*slots, (special_start, self.schema.first_slot)]

    def _patches_at(self, slot: int) -> tuple[int, int]:
        return self.schema.base, self._patch_span(slot)[0]

    def _store_patches(self, pool: Tensor, slot: int, new: Tensor) -> None:
        pool[self.schema.base : self.schema.first_slot] = new
        super()._store_patches(pool, slot, self.schema.block_means(new))


class CompressedInt8FrameCache(CompressedFrameCache, Int8FrameCache):
    """`CompressedFrameCache` with keys and values in int8, on a CPU."""
