"""Transfers between host and device, the precision of a device, and captured CUDA graphs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stream_recon.app.engine.session import HostOutput
from stream_recon.cache.attention import AVX512_BF16, cpu_has
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import PrecisionChoice
from stream_recon.models.int8 import bf16_is_faster, exact_levels, is_fastest
from stream_recon.models.pose import focal_length, pose_to_matrix
from stream_recon.models.rope import exact_device


def to_images(pixels: NDArray[np.uint8], device: torch.device) -> Tensor:
    """uint8 [N, h, w, 3] -> float32 [N, 3, h, w] in [0, 1]. Bytes are sent and converted on the device."""
    return torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).float() / 255


def to_host(
    pose: Tensor, depth: Tensor, confidence: Tensor, crops: Sequence[tuple[float, float]]
) -> Iterator[HostOutput]:
    """Outputs of N frames from pose codes [N, 9], depth and confidence [N, h, w].

    ``crops``: width and height of each frame's crop in source pixels.
    """
    pose, depth, confidence = _copy_to_host(pose.to(exact_device(pose.device)).double(), depth, confidence)
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


Precision = Literal["fp32", "bf16", "int8"]
"""Number type of matrix work; ``int8``: of the blocks' matrices on a CPU, all else as `computes_in_half`."""


def plain_precision(device: torch.device) -> Precision:
    """bf16 on a GPU, fp32 on any CPU."""
    return "bf16" if device.type == "cuda" else "fp32"


def fast_precision(device: torch.device) -> Precision:
    """bf16 on a GPU; on a CPU int8 where its products are clearly the fastest, else bf16 or fp32."""
    if device.type != "cpu":
        return plain_precision(device)
    half = computes_in_half("int8", device)
    if is_fastest(torch.bfloat16 if half else torch.float32):
        return "int8"
    return "bf16" if half else "fp32"


def choose_precision(requested: PrecisionChoice, device: torch.device) -> Precision:
    """The precision of a run on ``device``. Raises ResourceError: it cannot run there."""
    if requested == "auto":
        return fast_precision(device)
    if requested == "int8" and device.type != "cpu":
        raise ResourceError("int8 is for CPUs: use --precision auto on a GPU")
    if requested == "int8" and not exact_levels():
        raise ResourceError("this CPU or this torch has no products in int8: use --precision auto")
    return requested


def computes_in_half(precision: Precision, device: torch.device) -> bool:
    """Whether matrix work and caches are in bf16. With ``int8`` this is what does not run in int8: in bf16 on a CPU
    with fast bf16 instructions."""
    if precision != "int8":
        return precision == "bf16"
    return device.type == "cpu" and cpu_has(AVX512_BF16) and bf16_is_faster()


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
