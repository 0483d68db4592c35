"""Messages between a worker's engine (client) and the process with the network (server), and their shared buffer.

The buffer carries images to the server, and depth and confidence back.
"""

import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.cache.block_manager import CacheUse
from stream_recon.configs.schema import Preset


@dataclass(frozen=True)
class Hello:
    """The server's first message; the client answers with the handle of its buffer."""

    preset: Preset
    weights_sha256: str
    device: str
    precision: str


@dataclass(frozen=True)
class Prefill:
    """Start a new stream with the images in the buffer as its scale frames; an earlier stream is dropped."""

    count: int
    """Number of scale frames."""
    size: tuple[int, int]
    """Width and height of the images."""
    crop: tuple[float, float]
    """Width and height of the images' crop of the source image, in source pixels."""
    min_gap: int
    """See `keyframe_policy`."""


@dataclass(frozen=True)
class Step:
    """Process the image in the buffer, the stream's next one, of the same size; ``keep``: a keyframe in any case."""

    keep: bool


@dataclass(frozen=True)
class Close:
    """End the stream. There is no response."""


Request = Prefill | Step | Close


@dataclass(frozen=True)
class Response:
    """Results of a request; depth and confidence are in the buffer."""

    T_world_camera: NDArray[np.float64]  # [count, 4, 4]
    focals: tuple[float, ...]
    """In source pixels."""
    is_keyframe: bool
    flow: float | None
    attention: str
    """Name of the attention backend."""
    use: CacheUse


PIXEL_BYTES = 3 + 4 + 4
"""Bytes per pixel: three colours, depth and confidence in fp32."""


class SharedBuffer:
    """Shared memory for a stream's scale frames at a preset's largest image. Freed when both processes have ended."""

    def __init__(self, preset: Preset, handle: int | None = None) -> None:
        """``handle``: file descriptor of an existing buffer in this process; None: new memory (Linux)."""
        self._pixels = preset.stream.scale_frames * preset.image.max_patches * preset.network.patch_size**2
        size = self._pixels * PIXEL_BYTES
        self.handle = os.memfd_create("stream-recon") if handle is None else handle
        if handle is None:
            os.ftruncate(self.handle, size)
        self._memory = mmap.mmap(self.handle, size)

    def images(self, count: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        """Images [count, h, w, 3] of ``size``, (width, height)."""
        return self._array(np.uint8, 8 * self._pixels, (count, size[1], size[0], 3))

    def depth(self, count: int, size: tuple[int, int]) -> NDArray[np.float32]:
        """Depth [count, h, w]."""
        return self._array(np.float32, 0, (count, size[1], size[0]))

    def confidence(self, count: int, size: tuple[int, int]) -> NDArray[np.float32]:
        """Confidence [count, h, w]."""
        return self._array(np.float32, 4 * self._pixels, (count, size[1], size[0]))

    def _array(self, dtype: Any, offset: int, shape: tuple[int, ...]) -> NDArray[Any]:
        return np.frombuffer(self._memory, dtype, int(np.prod(shape)), offset).reshape(shape)
