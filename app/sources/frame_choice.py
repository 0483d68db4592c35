"""Which frames of a source are taken, and what makes no choice at all.

All frames of a source have one size: where that is checked.
"""

import math
from dataclasses import dataclass

from stream_recon.configs.errors import ConfigError, InputError


@dataclass(frozen=True)
class FrameChoice:
    """Which frames of a source; see `open_source`. Raises ConfigError for a choice of nothing."""

    stride: int = 1
    fps: float | None = None
    start: float | None = None
    end: float | None = None
    max_frames: int | None = None
    camera: str | None = None
    """A known camera, as `Calibration.text` has it, or `EXIF`: frames come without its lens."""
    masks: str | None = None
    """A folder of masks, see `MaskFolder`."""
    topic: str | None = None
    """Of a recording's images."""

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ConfigError(f"--stride must be at least 1, not {self.stride}")
        if self.fps is not None and not 0 < self.fps < math.inf:
            raise ConfigError(f"--fps must be above 0, not {self.fps:g}")
        if self.start is not None and not 0 <= self.start < math.inf:
            raise ConfigError(f"--start must be 0 or more seconds, not {self.start:g}")
        if self.end is not None and not self.end > (self.start or 0.0):
            raise ConfigError(f"--end ({self.end:g} s) must lie after --start ({self.start or 0.0:g} s)")
        if self.max_frames is not None and self.max_frames < 1:
            raise ConfigError(f"--max-frames must be at least 1, not {self.max_frames}")

    def count(self, frames: int | None, rate: float = 1.0) -> int | None:
        """How many are taken of so many ``frames`` at ``rate`` a second; None where neither number is known.

        The rate matters to ``fps``, ``start`` and ``end`` alone.
        """
        if frames is None:
            return self.max_frames
        end = math.inf if self.end is None else self.end
        seconds = max(0.0, min(frames / rate, end) - (self.start or 0.0))
        chosen = seconds * min(rate, self.fps) if self.fps else seconds * rate / self.stride
        taken = max(0, math.ceil(chosen - 1e-6))
        return taken if self.max_frames is None else min(taken, self.max_frames)


def check_frame_size(name: str, size: tuple[int, int], first: str, expected: tuple[int, int]) -> None:
    """Compare a frame's (width, height) with that of the ``first`` one; both are named in the message.

    Raises:
        InputError: they differ.
    """
    if size != expected:
        raise InputError(
            f"frames of different sizes: {name} is {size[0]}x{size[1]} but {first} is {expected[0]}x{expected[1]}; "
            "all frames of a source must have one size"
        )
