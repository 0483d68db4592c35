"""What an engine of a worker and the process with the network say to one another. Images go by `Mailbox`.

Images one way, depth and confidence the other: memory that a worker and the process with the network both see.
"""

import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.configs.schema import Preset


@dataclass(frozen=True)
class Hello:
    """The first message to a worker; it answers by the handle of its mailbox."""

    preset: Preset
    weights_sha256: str
    device: str
    precision: str


@dataclass(frozen=True)
class Prefill:
    """Begin a stream with the images in the mailbox, as its scale frames; what was before is forgotten."""

    count: int
    size: tuple[int, int]
    """Width and height of the images."""
    crop: tuple[float, float]
    """Width and height of the part of the source's image that they show, in source pixels."""


@dataclass(frozen=True)
class Step:
    """The image in the mailbox is the stream's next one, of the same size."""


@dataclass(frozen=True)
class Close:
    """No frame of this stream will come. There is no answer."""


Request = Prefill | Step | Close


@dataclass(frozen=True)
class Response:
    """Depth and confidence are in the mailbox."""

    T_world_camera: NDArray[np.float64]  # [count, 4, 4]
    focals: tuple[float, ...]
    """In pixels of the crop."""
    is_keyframe: bool
    flow: float | None
    attention: str


PIXEL_BYTES = 3 + 4 + 4
"""Colours in bytes, depth and confidence in fp32."""


class SharedBuffer:
    """Room for the scale frames of a stream, at the largest image of a preset. Freed when both sides are gone."""

    def __init__(self, preset: Preset, handle: int | None = None) -> None:
        """``handle``: of the other side's, a file descriptor of this process; None: new memory (Linux)."""
        self._pixels = preset.stream.scale_frames * preset.image.max_patches * preset.network.patch_size**2
        size = self._pixels * PIXEL_BYTES
        self.handle = os.memfd_create("stream-recon") if handle is None else handle
        if handle is None:
            os.ftruncate(self.handle, size)
        self._memory = mmap.mmap(self.handle, size)

    def images(self, count: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        """[count, h, w, 3] of images of that (width, height)."""
        return self._array(np.uint8, 8 * self._pixels, (count, size[1], size[0], 3))

    def depth(self, count: int, size: tuple[int, int]) -> NDArray[np.float32]:
        """[count, h, w]"""
        return self._array(np.float32, 0, (count, size[1], size[0]))

    def confidence(self, count: int, size: tuple[int, int]) -> NDArray[np.float32]:
        """[count, h, w]"""
        return self._array(np.float32, 4 * self._pixels, (count, size[1], size[0]))

    def _array(self, dtype: Any, offset: int, shape: tuple[int, ...]) -> NDArray[Any]:
        return np.frombuffer(self._memory, dtype, int(np.prod(shape)), offset).reshape(shape)
