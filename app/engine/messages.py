"""What an engine of a worker and the process with the network say to one another. Images go by `Mailbox`."""

from dataclasses import dataclass

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
