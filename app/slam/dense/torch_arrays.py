"""`Arrays` on torch, for a GPU.

Stereo consists of thousands of short operations, whose start takes longer than their work. So they are recorded as CUDA
graphs, which start with one call.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stream_recon.app.slam.dense.arrays import Array, Arrays

MAX_RECORDINGS = 48
"""Recorded functions and shapes; each holds its own results."""


class TorchArrays(Arrays):
    """`Arrays` on torch, for a GPU."""

    xp = torch
    steps_at_once = 64
    views_at_once = 16

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._constants: dict[tuple[object, ...], torch.Tensor] = {}
        self._recordings: dict[tuple[object, ...], _Recording] = {}
        self._pool: Any = None
        """Memory of all recordings, whose results are copied before the next one runs."""

    def array(self, values: NDArray[Any]) -> torch.Tensor:
        # Values in pageable memory are read before the call returns; otherwise it would wait for all that is queued.
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device, non_blocking=True)

    def constant(self, values: NDArray[Any]) -> torch.Tensor:
        key = (values.shape, values.dtype.str, values.tobytes())
        if key not in self._constants:
            self._constants[key] = self.array(values)
        return self._constants[key]

    def numpy(self, values: Array) -> NDArray[Any]:
        if self._device.type != "cuda":
            return np.asarray(values.numpy())
        # Copies to pinned memory are ten times as fast; it is used again, so the values are copied out of it.
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values)
        return np.array(host.numpy())

    def replayed(self, key: Hashable, function: Callable[..., tuple[Array, ...]], *inputs: Array) -> tuple[Array, ...]:
        if self._device.type != "cuda":
            return function(*inputs)
        of_shape = (key, *((*values.shape, values.dtype) for values in inputs))
        if of_shape not in self._recordings:
            if len(self._recordings) == MAX_RECORDINGS:
                del self._recordings[next(iter(self._recordings))]
            self._recordings[of_shape] = self._recorded(function, inputs)
        return self._recordings[of_shape].results(inputs)

    def batched(self, key: Hashable, function: Callable[..., tuple[Array, ...]], *inputs: Array) -> tuple[Array, ...]:
        missing = self.views_at_once - len(inputs[0])
        if self._device.type != "cuda" or missing <= 0:
            return self.replayed(key, function, *inputs)
        # One recording serves for groups of all sizes.
        full = [torch.cat([values, values[-1:].expand(missing, *values.shape[1:])]) for values in inputs]
        return tuple(output[:-missing] for output in self.replayed(key, function, *full))

    def _recorded(self, function: Callable[..., tuple[Array, ...]], inputs: tuple[Array, ...]) -> "_Recording":
        own = [values.clone() for values in inputs]
        # The first run allocates what libraries need, and the constants.
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            function(*own)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = function(*own)
        return _Recording(graph, own, outputs)

    def where(self, condition: Array, a: Array | float, b: Array | float) -> Array:
        return torch.where(condition, a, b)

    def minimum(self, a: Array, b: Array | float) -> Array:
        return torch.minimum(a, b) if isinstance(b, torch.Tensor) else a.clamp(max=b)

    def maximum(self, a: Array, b: Array | float) -> Array:
        return torch.maximum(a, b) if isinstance(b, torch.Tensor) else a.clamp(min=b)

    def median(self, a: Array) -> Array:
        ordered, count = a.sort(dim=1).values, a.shape[1]
        return (ordered[:, (count - 1) // 2] + ordered[:, count // 2]) / 2

    def pick(self, a: Array, index: Array) -> Array:
        return a.gather(0, index[None])[0]

    def total(self, a: Array) -> Array:
        return a.sum(dim=(-2, -1), keepdim=True)

    def to_float(self, a: Array) -> Array:
        return a.float()

    def sample(self, images: Array, x: Array, y: Array) -> Array:
        count, height, width = images.shape
        grid = torch.stack([x * (2 / width) + (1 / width - 1), y * (2 / height) + (1 / height - 1)], dim=-1)
        flat = grid.reshape(count, -1, grid.shape[-2], 2)
        sampled = torch.nn.functional.grid_sample(
            images[:, None], flat, mode="bilinear", padding_mode="border", align_corners=False
        )
        return sampled.reshape(x.shape)

    def take(self, images: Array, x: Array, y: Array) -> Array:
        count, height, width = images.shape
        inside = (x >= 0) & (y >= 0) & (x < width) & (y < height)
        first = torch.arange(0, count * height * width, height * width, device=images.device)[:, None, None]
        cell = first + torch.where(inside, y, 0).long() * width + torch.where(inside, x, 0).long()
        return torch.where(inside, images.reshape(-1)[cell], 0)

    def rows(self, chosen: Array, margin: int) -> slice:
        # The number of rows would have to be read from the GPU.
        return slice(None)

    def padded_rows(self, part: Array, rows: tuple[Any, ...], like: Array, value: float) -> Array:
        return part

    def box(self, image: Array, radius: int) -> Array:
        flat = image.reshape(-1, 1, *image.shape[-2:])
        padded = torch.nn.functional.pad(flat, (radius,) * 4, mode="replicate")
        return torch.nn.functional.avg_pool2d(padded, 2 * radius + 1, stride=1).reshape(image.shape)

    def enlarged(self, image: Array, size: tuple[int, int]) -> Array:
        return self._resized(image, size, mode="bilinear", align_corners=False)

    def repeated(self, image: Array, size: tuple[int, int]) -> Array:
        return self._resized(image, size, mode="nearest")

    def _resized(self, image: Array, size: tuple[int, int], **how: Any) -> Array:
        flat = image.reshape(-1, 1, *image.shape[-2:])
        resized = torch.nn.functional.interpolate(flat, size=size[::-1], **how)
        return resized.reshape(*image.shape[:-2], *size[::-1])


@dataclass(frozen=True)
class _Recording:
    """Operations as a CUDA graph, with the arrays that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]
    outputs: tuple[torch.Tensor, ...]

    def results(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        for own, values in zip(self.inputs, inputs, strict=True):
            own.copy_(values)
        self.graph.replay()
        return tuple(output.clone() for output in self.outputs)
