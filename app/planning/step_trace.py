"""Memory and operations of a network step, traced on torch's meta device, which has shapes but no numbers.

This needs no GPU and no weights, and the figures follow the network's code.
"""

import dataclasses
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import conv_flop_count

from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.network import StreamingNetwork

META = torch.device("meta")
"""Device of tensors without numbers."""
IN_HALF = ("linear", "conv2d", "conv_transpose2d")
"""Functions of the network that autocast runs in half precision on a GPU."""
IN_FULL = ("layer_norm",)
"""Functions of the network that autocast runs in fp32 on a GPU."""


@dataclass(frozen=True)
class StepTrace:
    """Figures of one step."""

    peak_bytes: int
    """Most bytes that the step's tensors hold at once, with input, output, position tables, without weights, caches."""
    convolution_flops: int
    """Floating-point operations of all convolutions; a multiply-add counts as two."""


@dataclass(frozen=True)
class NetworkSize:
    """Sizes of the weights as stored on a GPU; see `StreamingNetwork.fuse_for_gpu`."""

    bytes: int
    """Bytes of all weights."""
    camera_bytes: int
    """Bytes of the camera head."""
    token_products: int
    """Multiplications per token in the linear layers of encoder and aggregator."""


@lru_cache(maxsize=64)
def network_size(config: NetworkConfig) -> NetworkSize:
    """Size of a network in bf16, counted without allocating weights."""
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
    """Trace of a step of ``frames`` frames of ``grid`` patch rows and columns, in bf16 as on a GPU, or in fp32.

    Attention is assumed to need only its output, as in fused kernels. Takes about a quarter of a second.
    """
    network = _meta_network(_without_repeats(config), half=half)
    side = config.patch_size
    images = torch.empty(1, frames, 3, grid[0] * side, grid[1] * side, device=META)
    live = _LiveBytes(ignored=[*network.parameters(), *network.buffers()])
    live.hold(images)
    # Unfused: fused kernels do not run on the meta device, and hold no more than what they replace.
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half), _Rules(), live:
        output = network(images, _NoMemory(frames))
    del output  # kept until here, as the stream keeps it
    return StepTrace(live.peak, live.convolution_flops)


def _meta_network(config: NetworkConfig, *, half: bool = True) -> StreamingNetwork:
    with META:
        network = StreamingNetwork(config).eval().requires_grad_(False)
    if half:
        network.store_matrices_in_half()
    return network


def _without_repeats(config: NetworkConfig) -> NetworkConfig:
    """One layer of each kind, and four for the depth head's taps: equal layers in sequence hold no more than one."""
    return dataclasses.replace(
        config, encoder_depth=1, depth=4, output_layers=(0, 1, 2, 3), camera_depth=1, camera_iterations=1
    )


def _bytes_of(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


class _NoMemory:
    """A `KVCache` without past frames; the caches are counted elsewhere."""

    def __init__(self, frames: int) -> None:
        self.times = torch.zeros(1, frames, dtype=torch.long, device=META)
        self.is_later_frame = self.is_streamed_frame = self.times[0]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.empty_like(q)

    def attend_camera(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.empty_like(q)


class _Rules(TorchFunctionMode):
    """Fused attention and autocast types, which torch lacks for the meta device; the CPU's autocast flag is used."""

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
    """Counts the bytes of all storages that operations create or read, until they are freed."""

    def __init__(self, ignored: Iterable[Tensor]) -> None:
        """``ignored``: tensors that are not counted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = weakref.WeakSet(tensor.untyped_storage() for tensor in ignored)
        self._known_results: dict[Any, Callable[[], Tensor]] = {}
        self._bytes = 0
        self.peak = 0
        self.convolution_flops = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors: list[Tensor] = []
        key = function, _layout([args, list((kwargs or {}).items())], tensors)
        # Again on the same shapes: torch's own computation of a result's shape takes most of a trace.
        known = self._known_results.get(key)
        result: Any = function(*args, **(kwargs or {})) if known is None else known()
        if known is None and isinstance(result, Tensor) and result.device == META:
            size, stride, dtype, device = _layout(result, [])
            if result.untyped_storage() not in [x.untyped_storage() for x in tensors]:
                self._known_results[key] = partial(torch.empty_strided, size, stride, dtype=dtype, device=device)
        _layout(result, tensors)
        # Arguments too: position tables that an earlier step has cached.
        for tensor in tensors:
            self.hold(tensor)
        if function is torch.ops.aten.convolution.default:
            x, weight, transposed = args[0], args[1], args[6]
            self.convolution_flops += conv_flop_count(x.shape, weight.shape, result.shape, transposed)
            # Convolution kernels copy their input to another layout.
            self.peak = max(self.peak, self._bytes + x.nbytes)
        return result

    def hold(self, tensor: Tensor) -> None:
        """Count a tensor's storage until it is freed."""
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


def _layout(value: Any, tensors: list[Tensor]) -> Any:
    """The value with size, stride and type in place of each tensor; ``tensors`` takes them."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.size(), value.stride(), value.dtype, value.device
    return tuple(_layout(part, tensors) for part in value) if isinstance(value, list | tuple) else (type(value), value)
