"""Which depth files a run keeps: endless sources would fill any disk."""

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stream_recon.app.output.cameras import CAMERAS_NAME, TRAJECTORY_NAME
from stream_recon.app.output.cloud import POINTS_NAME
from stream_recon.app.output.depth import depth_path
from stream_recon.app.output.files import output_errors
from stream_recon.app.results import FrameResult
from stream_recon.configs.errors import OutputError

KeepDepth = Literal["all", "keyframes", "none"]

BYTES_A_PIXEL = 4.25
"""Of a depth file: depth and confidence of two bytes each, and the picture's JPEG."""
BYTES_A_CAMERA = 1300
"""In cameras.json and trajectory.txt."""


@dataclass(frozen=True)
class DiskLimit:
    """What may stay on the disk."""

    keep_depth: KeepDepth = "all"
    max_bytes: int | None = None
    """Of the whole result; the oldest depth files go first, keyframes' last. None: no bound."""


class DepthBudget:
    """Of one run: asked before a depth file is written, and told after."""

    def __init__(self, folder: Path, limit: DiskLimit) -> None:
        self._folder, self._limit = folder, limit
        self._plain: deque[tuple[int, int]] = deque()
        self._keyframes: deque[tuple[int, int]] = deque()
        """Index and bytes of each file that is there, the oldest first."""
        self._bytes = 0
        self.removed = 0
        """Frames without a depth file, since it was not written or removed again."""

    def wants(self, result: FrameResult) -> bool:
        """Whether the frame's depth shall be written at all."""
        keep = self._limit.keep_depth
        wanted = keep == "all" or (keep == "keyframes" and result.is_keyframe)
        self.removed += not wanted
        return wanted

    def wrote(self, result: FrameResult) -> None:
        """Note the frame's file, and remove old ones until all fits.

        Raises:
            OutputError: poses and cloud alone are beyond the limit.
        """
        if self._limit.max_bytes is None:
            return
        with output_errors(self._folder):
            size = depth_path(self._folder, result.index).stat().st_size
            (self._keyframes if result.is_keyframe else self._plain).append((result.index, size))
            self._bytes += size
            others = sum((self._folder / name).stat().st_size for name in (POINTS_NAME, CAMERAS_NAME, TRAJECTORY_NAME))
            while self._bytes + others > self._limit.max_bytes and (self._plain or self._keyframes):
                index, size = (self._plain or self._keyframes).popleft()
                depth_path(self._folder, index).unlink(missing_ok=True)
                self._bytes -= size
                self.removed += 1
        if others > self._limit.max_bytes:
            raise OutputError(
                f"{self._folder} has reached --max-disk by poses and points alone ({others / 1e9:.2f} GB); what was "
                "finished before is kept"
            )


def bytes_a_frame(pixels: int, keep: KeepDepth, keyframe_share: float = 0.3) -> float:
    """About how many bytes a frame of so many network ``pixels`` adds to a result, without points."""
    share = {"all": 1.0, "keyframes": keyframe_share, "none": 0.0}[keep]
    return BYTES_A_CAMERA + share * pixels * BYTES_A_PIXEL
