"""The camera head's cache: one token a frame for each iteration and block, with the verbs of the frame cache."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.cache.block_manager import SlotLease, SlotWindow
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.configs.schema import NetworkConfig, StreamConfig


@dataclass(frozen=True)
class CameraCacheSchema:
    layers: int
    """Iterations times blocks."""
    heads: int
    head_dim: int
    slots: int

    @staticmethod
    def of(network: NetworkConfig, stream: StreamConfig) -> "CameraCacheSchema":
        """Sizes for a network's camera head and the budgets of a stream."""
        width = network.camera_dim or 2 * network.dim
        return CameraCacheSchema(
            layers=network.camera_iterations * network.camera_depth,
            heads=network.camera_heads,
            head_dim=width // network.camera_heads,
            slots=SlotWindow(stream.scale_frames, stream.camera_window).total,
        )

    def bytes(self, dtype: torch.dtype) -> int:
        return 2 * self.layers * self.slots * self.heads * self.head_dim * dtype.itemsize


def camera_pools(
    schema: CameraCacheSchema, device: torch.device, dtype: torch.dtype, seats: int = 1
) -> tuple[Tensor, Tensor]:
    """Keys and values of so many streams, [layers, seats, H, slots, D] each."""
    shape = (schema.layers, seats, schema.heads, schema.slots, schema.head_dim)
    return torch.zeros(shape, device=device, dtype=dtype), torch.zeros(shape, device=device, dtype=dtype)


class CameraCache:
    """Scale frames' tokens stay; of later ones the last ``camera_window`` are remembered."""

    def __init__(
        self,
        schema: CameraCacheSchema,
        stream: StreamConfig,
        device: torch.device,
        dtype: torch.dtype,
        inputs: StepMetadata | None = None,
        pools: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """``inputs``: as `FrameCache` has them; ``pools``: a seat's keys and values, [layers, H, slots, D] each."""
        self.slots = SlotWindow(stream.scale_frames, stream.camera_window)
        self._keys, self._values = pools or (pool[:, 0] for pool in camera_pools(schema, device, dtype))
        self._inputs = inputs
        self._lease: SlotLease | None = None

    def begin(self, count: int) -> None:
        self._lease = self.slots.begin(count)
        if self._inputs is not None:
            self._inputs.set_camera(self._lease.written[0], self._lease.visible)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v [S, H, D] of the step's frames -> [S, H, D]."""
        assert self._lease is not None, "attend outside a step"
        keys, values = self._keys[layer], self._values[layer]
        if self._inputs is not None and len(self._lease.written) == 1:
            from stream_recon.cache.kernels.camera_step import attend_slots  # needs Triton

            return attend_slots(q, k, v, keys[None], values[None], self._inputs)
        for frame, slot in enumerate(self._lease.written):
            keys[:, slot], values[:, slot] = k[frame], v[frame]
        seen = sorted(self._lease.visible)
        if seen[-1] - seen[0] + 1 == len(seen):
            keys, values = keys[:, seen[0] : seen[-1] + 1], values[:, seen[0] : seen[-1] + 1]
        else:
            index = torch.tensor(seen, device=keys.device)
            keys, values = keys[:, index], values[:, index]
        y = F.scaled_dot_product_attention(q.transpose(0, 1)[None].to(keys.dtype), keys[None], values[None])
        return y[0].transpose(0, 1)

    def commit(self) -> None:
        self._lease = None
        self.slots.commit()

    def rollback(self) -> None:
        self._lease = None
        self.slots.rollback()

    def reset(self) -> None:
        """Forget all frames."""
        self._lease = None
        self.slots.reset()
