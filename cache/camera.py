"""KV cache of the camera head: one token per frame for each iteration and block."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.cache.block_manager import SlidingWindow, StepAllocation
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.configs.schema import NetworkConfig, StreamConfig


@dataclass(frozen=True)
class CameraCacheSchema:
    """Sizes of the camera head's cache."""

    layers: int
    """Iterations times blocks."""
    heads: int
    head_dim: int
    slots: int

    @staticmethod
    def from_config(network: NetworkConfig, stream: StreamConfig) -> "CameraCacheSchema":
        """Sizes for a network's camera head and the budgets of a stream."""
        width = network.camera_dim or 2 * network.dim
        return CameraCacheSchema(
            layers=network.camera_iterations * network.camera_depth,
            heads=network.camera_heads,
            head_dim=width // network.camera_heads,
            slots=SlidingWindow(stream.scale_frames, stream.camera_window).total,
        )

    def bytes(self, dtype: torch.dtype) -> int:
        """Bytes of all keys and values in ``dtype``."""
        return 2 * self.layers * self.slots * self.heads * self.head_dim * dtype.itemsize


def allocate_camera_pools(
    schema: CameraCacheSchema, device: torch.device, dtype: torch.dtype, batch_slots: int = 1
) -> tuple[Tensor, Tensor]:
    """Keys and values of ``batch_slots`` streams, [layers, batch_slots, H, slots, D] each."""
    shape = (schema.layers, batch_slots, schema.heads, schema.slots, schema.head_dim)
    return torch.zeros(shape, device=device, dtype=dtype), torch.zeros(shape, device=device, dtype=dtype)


class CameraCache:
    """Keeps the scale frames' tokens and those of the last ``camera_window`` keyframes."""

    def __init__(
        self,
        schema: CameraCacheSchema,
        stream: StreamConfig,
        device: torch.device,
        dtype: torch.dtype,
        metadata: StepMetadata | None = None,
        pools: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """``metadata``: see `FrameCache`; ``pools``: keys and values of a batch slot, [layers, H, slots, D] each."""
        self.slots = SlidingWindow(stream.scale_frames, stream.camera_window)
        self._keys, self._values = pools or (pool[:, 0] for pool in allocate_camera_pools(schema, device, dtype))
        self._metadata = metadata
        self._allocation: StepAllocation | None = None
        self._planned: StepAllocation | None = None

    def begin(self, count: int) -> None:
        """Open a step of ``count`` frames."""
        self._allocation = self.slots.begin(count)
        if self._metadata is not None and self._allocation is not self._planned:
            self._planned = self._allocation
            self._metadata.set_camera(self._allocation.slot_mapping[0], self._allocation.block_table)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v [S, H, D] of the step's frames -> [S, H, D]."""
        assert self._allocation is not None, "attend outside a step"
        keys, values = self._keys[layer], self._values[layer]
        if self._metadata is not None and len(self._allocation.slot_mapping) == 1:
            from stream_recon.cache.kernels.camera_step import attend_slots  # needs Triton

            return attend_slots(q, k, v, keys[None], values[None], self._metadata)
        for frame, slot in enumerate(self._allocation.slot_mapping):
            keys[:, slot], values[:, slot] = k[frame], v[frame]
        visible = sorted(self._allocation.block_table)
        if visible[-1] - visible[0] + 1 == len(visible):
            keys, values = keys[:, visible[0] : visible[-1] + 1], values[:, visible[0] : visible[-1] + 1]
        else:
            index = torch.tensor(visible, device=keys.device)
            keys, values = keys[:, index], values[:, index]
        y = F.scaled_dot_product_attention(q.transpose(0, 1)[None].to(keys.dtype), keys[None], values[None])
        return y[0].transpose(0, 1)

    def commit(self) -> None:
        """Keep the step's frames."""
        self._allocation = None
        self.slots.commit()

    def rollback(self) -> None:
        """Drop the step's frames."""
        self._allocation = None
        self.slots.rollback()

    def reset(self) -> None:
        """Drop all frames."""
        self._allocation = None
        self.slots.reset()
