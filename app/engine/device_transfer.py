"""Transfers between host and device, the precision of a device, and captured CUDA graphs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stream_recon.app.engine.session import HostOutput
from stream_recon.cache.attention import AVX512_BF16, cpu_has
from stream_recon.models.pose import focal_length, pose_to_matrix


def to_images(pixels: NDArray[np.uint8], device: torch.device) -> Tensor:
    """uint8 [N, h, w, 3] -> float32 [N, 3, h, w] in [0, 1]. Bytes are sent and converted on the device."""
    return torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).float() / 255


def to_host(
    pose: Tensor, depth: Tensor, confidence: Tensor, crops: Sequence[tuple[float, float]]
) -> Iterator[HostOutput]:
    """Outputs of N frames from pose codes [N, 9], depth and confidence [N, h, w].

    ``crops``: width and height of each frame's crop in source pixels.
    """
    pose, depth, confidence = _copy_to_host(pose.double(), depth, confidence)
    T_world_camera = pose_to_matrix(pose).numpy()
    # The fields of view are those of the crop. Source pixels are assumed square, so that both axes estimate one focal
    # length; two focal lengths would distort the scene.
    width, height = torch.tensor(crops, dtype=torch.float64).unbind(1)
    focals = focal_length(pose, height, width).tolist()
    for output in zip(T_world_camera, focals, depth.numpy(), confidence.numpy(), strict=True):
        yield HostOutput(*output)


def _copy_to_host(*tensors: Tensor) -> list[Tensor]:
    """Copies in host memory; from a GPU through pinned memory, with one wait for all."""
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    if tensors[0].is_cuda:
        torch.cuda.current_stream().synchronize()
    return copies


Precision = Literal["fp32", "bf16"]
"""Number type of matrix work."""


def plain_precision(device: torch.device) -> Precision:
    """bf16 on a GPU, fp32 on any CPU."""
    return "bf16" if device.type == "cuda" else "fp32"


def fast_precision(device: torch.device) -> Precision:
    """bf16 on a GPU, and on a CPU with bf16 instructions; without them it would be slower than fp32."""
    if device.type == "cpu" and cpu_has(AVX512_BF16):
        return "bf16"
    return plain_precision(device)


T = TypeVar("T")


class StepGraph(Generic[T]):
    """A function as a CUDA graph: the first run is plain and warms up all kernels, the second is captured.

    The function must read all that changes from tensors whose addresses never change. The next run overwrites what it
    returned. Constants that it creates are cached for ever, for all shapes (`functools.cache`): it has addresses.
    """

    def __init__(self, pool: Any = None) -> None:
        """``pool``: memory that several graphs share (`torch.cuda.graph_pool_handle`), whose results it overwrites."""
        self._pool = pool
        self._graph: torch.cuda.CUDAGraph | None = None
        self._is_warm = False
        self._output: T | None = None

    def run(self, body: Callable[[], T]) -> T:
        """Run ``body``, the same one every time.

        No reference to it is kept: it would make a cycle with the owner of both, whose memory would then be freed late.
        """
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
