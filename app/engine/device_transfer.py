"""Pixels to the device, predictions to the host.

The numbers that a network runs in, by the device.

A step as one captured CUDA graph.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stream_recon.cache.attention import BF16, cpu_has
from stream_recon.models.pose import focal_length, pose_to_matrix

View = tuple[NDArray[np.float64], float, NDArray[np.float32], NDArray[np.float32]]
"""Of a frame: T_world_camera [4, 4], the focal length in pixels of its crop, depth and confidence [h, w]."""


def to_images(pixels: NDArray[np.uint8], device: torch.device) -> Tensor:
    """[N, h, w, 3] -> [N, 3, h, w] in [0, 1]. Bytes are sent to the device, and made numbers there."""
    return torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).float() / 255


def host_views(pose: Tensor, depth: Tensor, confidence: Tensor, crops: Sequence[tuple[float, float]]) -> Iterator[View]:
    """pose [N, 9], depth and confidence [N, h, w] of N frames; ``crops``: width and height of each, source pixels."""
    pose, depth, confidence = _to_host(pose.double(), depth, confidence)
    T_world_camera = pose_to_matrix(pose).numpy()
    # The fields of view are the crop's, whatever the network's pixels were. The source's pixels are taken to be square,
    # so that both axes estimate one focal length; apart, they would stretch the scene.
    width, height = torch.tensor(crops, dtype=torch.float64).unbind(1)
    focals = focal_length(pose, height, width).tolist()
    yield from zip(T_world_camera, focals, depth.numpy(), confidence.numpy(), strict=True)


def _to_host(*tensors: Tensor) -> list[Tensor]:
    """Copies in host memory; from a GPU through pinned memory and with one wait for all."""
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    if tensors[0].is_cuda:
        torch.cuda.current_stream().synchronize()
    return copies


Precision = Literal["fp32", "bf16"]


def plain_precision(device: torch.device) -> Precision:
    """bf16 on a GPU, fp32 on any CPU."""
    return "bf16" if device.type == "cuda" else "fp32"


def fast_precision(device: torch.device) -> Precision:
    """bf16 also on a CPU that has instructions for it; without them it would be slower than fp32."""
    if device.type == "cpu" and cpu_has(BF16):
        return "bf16"
    return plain_precision(device)


T = TypeVar("T")


class StepGraph(Generic[T]):
    """Runs a body as it stands the first time, which compiles and warms up all kernels, and from its capture later.

    The body must take all that changes from tensors that stay where they are. What it returns is overwritten by the
    next run. Constants that it makes once have to be kept for good, of all shapes (`functools.cache`): a graph goes on
    reading them where they were.
    """

    def __init__(self, pool: Any = None) -> None:
        """``pool``: memory that several graphs share (`torch.cuda.graph_pool_handle`), each overwriting what others
        returned."""
        self._pool = pool
        self._graph: torch.cuda.CUDAGraph | None = None
        self._is_warm = False
        self._output: T | None = None

    def run(self, body: Callable[[], T]) -> T:
        """``body``: the same every time. It is not kept: what owns both would then outlive its last user, memory and
        all, until cycles are collected."""
        if not self._is_warm:
            self._is_warm = True
            return body()
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                self._output = body()
            self._graph = graph
        assert self._output is not None
        self._graph.replay()
        return self._output
