"""Pixels to the device, predictions to the host."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
