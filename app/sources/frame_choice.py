"""Choice of a source's frames, and the check that all have one size."""

import math
from dataclasses import dataclass
from pathlib import Path

from stream_recon.configs.errors import ConfigError, InputError

TF = "tf"
"""In place of a rig's file: what a ROS recording states of its cameras."""


def rig_text(rig: str | Path | None) -> str | None:
    """A rig as `FrameChoice` has it: the absolute name of its file, or `TF`."""
    return None if rig is None else TF if str(rig) == TF else str(Path(rig).absolute())


@dataclass(frozen=True)
class FrameChoice:
    """Which frames of a source are taken, and their camera and masks. Raises ConfigError for an empty choice."""

    stride: int = 1
    """Take every n-th frame."""
    fps: float | None = None
    """Videos and streams: take the frames nearest to a grid of this rate. Folders: the rate of the images."""
    start: float | None = None
    """First second taken, in the source's own time."""
    end: float | None = None
    """Second before which the last frame lies."""
    max_frames: int | None = None
    """Number of frames after which the source ends."""
    camera: str | None = None
    """Known camera as text (see `parse_camera`), or `EXIF`; frames are undistorted."""
    masks: str | None = None
    """Folder of masks, see `MaskFolder`."""
    topic: str | None = None
    """Image topic of a ROS recording, for `TF` several with commas between; None: the only one, for `TF` all."""
    rig: str | None = None
    """File of a rig of cameras, of which the source has folders, films or topics, or `TF`; None: one camera."""

    def __post_init__(self) -> None:
        for name in ("camera", "masks", "topic", "rig"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{name} must be text, not {value!r}")
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
        """Number of frames taken out of ``frames`` at ``rate`` per second; None if there is no limit either way.

        The rate matters only for ``fps``, ``start`` and ``end``.
        """
        if frames is None:
            return self.max_frames
        end = math.inf if self.end is None else self.end
        seconds = max(0.0, min(frames / rate, end) - (self.start or 0.0))
        chosen = seconds * min(rate, self.fps) if self.fps else seconds * rate / self.stride
        taken = max(0, math.ceil(chosen - 1e-6))
        return taken if self.max_frames is None else min(taken, self.max_frames)


def check_frame_size(name: str, size: tuple[int, int], first: str, expected: tuple[int, int]) -> None:
    """Compare a frame's (width, height) with that of the frame named ``first``. Raises InputError: they differ."""
    if size != expected:
        raise InputError(
            f"frames of different sizes: {name} is {size[0]}x{size[1]} but {first} is {expected[0]}x{expected[1]}; "
            "all frames of a source must have one size"
        )
