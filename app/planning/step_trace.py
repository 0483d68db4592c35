"""What a step of the network holds and computes, found by running it on torch's meta device: shapes, no numbers.

So no GPU and no weights are needed, and the figures follow the network's code instead of a second description of it.
"""

import dataclasses
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import conv_flop_count

from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.network import StreamingNetwork

META = torch.device("meta")
# As autocast on a GPU has them, of the functions that the network calls.
IN_HALF = ("linear", "conv2d", "conv_transpose2d")
IN_FULL = ("layer_norm",)


@dataclass(frozen=True)
class StepTrace:
    peak_bytes: int
    """Most bytes that tensors of the step hold at once: input, outputs and position tables included, weights and
    caches not."""
    convolution_flops: int
    """Floating-point operations (a product and a sum count as two) of all convolutions."""


@dataclass(frozen=True)
class NetworkSize:
    """Sizes of the weights as kept on a GPU: see `StreamingNetwork.fuse_for_gpu`."""

    bytes: int
    camera_bytes: int
    """Bytes of the camera head alone."""
    token_products: int
    """Multiplications that each token of a frame takes in the matrices of encoder and aggregator."""


@lru_cache(maxsize=64)
def network_size(config: NetworkConfig) -> NetworkSize:
    """The size of a network in bf16, counted without memory for its weights."""
    network = _meta_network(config)
    network.fuse_for_gpu()
    blocks = [module for part in (network.encoder, network.aggregator) for module in part.modules()]
    return NetworkSize(
        bytes=_bytes_of(network),
        camera_bytes=_bytes_of(network.camera_head),
        token_products=sum(module.weight.numel() for module in blocks if isinstance(module, nn.Linear)),
    )


@lru_cache(maxsize=256)
def trace_step(config: NetworkConfig, grid: tuple[int, int], frames: int, *, half: bool = True) -> StepTrace:
    """A step of ``frames`` frames of ``grid`` patch rows and columns, in bf16 as on a GPU or in fp32; attention is
    taken to need no more than its output, as fused kernels do.

    Takes about a quarter of a second.
    """
    network = _meta_network(_without_repeats(config), half=half)
    side = config.patch_size
    images = torch.empty(1, frames, 3, grid[0] * side, grid[1] * side, device=META)
    live = _LiveBytes(beside=[*network.parameters(), *network.buffers()])
    live.hold(images)
    # Unfused: our kernels do not run on the meta device, and hold no more than what they replace.
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half), _Rules(), live:
        output = network(images, _NoMemory(frames))
    del output  # held until here, as the stream holds it
    return StepTrace(live.peak, live.convolution_flops)


def _meta_network(config: NetworkConfig, *, half: bool = True) -> StreamingNetwork:
    with META:
        network = StreamingNetwork(config).eval().requires_grad_(False)
    if half:
        network.store_matrices_in_half()
    return network


def _without_repeats(config: NetworkConfig) -> NetworkConfig:
    """Equal layers one after the other hold no more than one of them, but for the four taps of the depth head."""
    return dataclasses.replace(
        config, encoder_depth=1, depth=4, output_layers=(0, 1, 2, 3), camera_depth=1, camera_iterations=1
    )


def _bytes_of(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


class _NoMemory:
    """A `Memory` that sees nothing; the caches are counted elsewhere."""

    def __init__(self, frames: int) -> None:
        self.times = torch.zeros(1, frames, dtype=torch.long, device=META)
        self.is_later_frame = self.is_streamed_frame = self.times[0]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.empty_like(q)

    def attend_camera(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.empty_like(q)


class _Rules(TorchFunctionMode):
    """Fused attention and autocast's types, which torch does not have for the meta device: the CPU's switch serves."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.scaled_dot_product_attention:
            return torch.empty_like(args[0])
        name = getattr(function, "__name__", "")
        half = torch.is_autocast_enabled("cpu")
        if half and name in IN_HALF:
            args = _cast(args, torch.bfloat16)
        elif half and name in IN_FULL:
            args = _cast(args, torch.float32)
        return function(*args, **(kwargs or {}))


def _cast(values: Iterable[Any], dtype: torch.dtype) -> list[Any]:
    return [value.to(dtype) if isinstance(value, Tensor) else value for value in values]


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that the operations make or meet, until they are freed."""

    def __init__(self, beside: Iterable[Tensor]) -> None:
        """``beside``: tensors that are not counted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = weakref.WeakSet(tensor.untyped_storage() for tensor in beside)
        self._bytes = 0
        self.peak = 0
        self.convolution_flops = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result: Any = function(*args, **(kwargs or {}))
        # Arguments, too: position tables that an earlier step has made and kept.
        for leaf in tree_leaves((args, result)):
            if isinstance(leaf, Tensor):
                self.hold(leaf)
        if function is torch.ops.aten.convolution.default:
            x, weight, transposed = args[0], args[1], args[6]
            self.convolution_flops += conv_flop_count(x.shape, weight.shape, result.shape, transposed)
            # Its kernels lay the input out anew beside it.
            self.peak = max(self.peak, self._bytes + x.nbytes)
        return result

    def hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self._bytes += size
        self.peak = max(self.peak, self._bytes)
        weakref.finalize(storage, self._release, size)

    def _release(self, size: int) -> None:
        self._bytes -= size
