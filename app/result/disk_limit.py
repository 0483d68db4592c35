"""Choice of the depth files that a run keeps, so that an endless source does not fill the disk."""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stream_recon.app.core.types import FrameResult
from stream_recon.app.result.cameras import CAMERAS_NAME, TRAJECTORY_NAME, FrameCamera
from stream_recon.app.result.cloud import BYTES_PER_FRAME, POINTS_NAME
from stream_recon.app.result.depth import depth_path
from stream_recon.app.result.files import output_errors
from stream_recon.configs.errors import OutputError
from stream_recon.configs.schema import parse_size

KeepDepth = Literal["all", "keyframes", "none"]

BYTES_PER_PIXEL = 4.25
"""Size of a depth file per network pixel: two bytes each for depth and confidence, and the JPEG."""
BYTES_PER_CAMERA = 1600
"""Size of a frame in cameras.json and trajectory.txt, and in the temporary table of `PointCloud`."""

MESH_BYTES = 30_000_000
"""Room for the mesh that follows the run, within a limit of at least ten times as much."""


@dataclass(frozen=True)
class DiskLimit:
    """Depth files to keep, and the largest size of a result."""

    keep_depth: KeepDepth = "all"
    max_bytes: int | None = None
    """Bound for all files of the result. The oldest depth files are removed first, keyframes' last. None: no bound."""

    @staticmethod
    def parse(keep_depth: KeepDepth, max_disk: str | None) -> "DiskLimit":
        """Limit from command-line options; ``max_disk`` such as ``20GB``. Raises ConfigError."""
        return DiskLimit(keep_depth, parse_size(max_disk, "--max-disk") if max_disk else None)


class DepthDiskLimit:
    """Applies a `DiskLimit` to one run: `wants` before a depth file is written, `wrote` after."""

    def __init__(self, folder: Path, limit: DiskLimit) -> None:
        self._folder, self._limit = folder, limit
        self._plain: deque[int] = deque()
        self._keyframes: deque[int] = deque()
        """Other frames and keyframes whose depth files exist, in order."""
        self._bytes = 0
        self._frames = 0
        self.removed = 0
        """Number of frames whose depth file was not written, or was removed."""

    def wants(self, result: FrameResult) -> bool:
        """Whether to write the frame's depth file."""
        keep = self._limit.keep_depth
        is_written = keep == "all" or (keep == "keyframes" and result.is_keyframe)
        self.removed += not is_written
        self._frames += 1
        return is_written

    def resume(self, cameras: Sequence[FrameCamera]) -> None:
        """Count the depth files of a resumed run. Raises OutputError."""
        self._frames += len(cameras)
        if self._limit.max_bytes is not None:
            for camera in cameras:
                self._note(camera.index, is_keyframe=camera.is_keyframe)

    def wrote(self, result: FrameResult) -> None:
        """Count the frame's depth file, and remove old ones until the result is within the limit.

        Raises OutputError where poses and cloud alone exceed it.
        """
        if self._limit.max_bytes is None:
            return
        self._note(result.index, is_keyframe=result.is_keyframe)
        with output_errors(self._folder):
            others = sum((self._folder / name).stat().st_size for name in (POINTS_NAME, CAMERAS_NAME, TRAJECTORY_NAME))
            others += self._frames * BYTES_PER_FRAME
            others += MESH_BYTES if self._limit.max_bytes >= 10 * MESH_BYTES else 0
            while self._bytes + others > self._limit.max_bytes and (self._plain or self._keyframes):
                path = depth_path(self._folder, (self._plain or self._keyframes).popleft())
                with suppress(FileNotFoundError):
                    self._bytes -= path.stat().st_size
                    path.unlink()
                self.removed += 1
        if others > self._limit.max_bytes:
            raise OutputError(
                f"{self._folder} has reached --max-disk by poses and points alone ({others / 1e9:.2f} GB); finished "
                "frames are kept"
            )

    def _note(self, index: int, *, is_keyframe: bool) -> None:
        with output_errors(self._folder):
            self._bytes += depth_path(self._folder, index).stat().st_size
        (self._keyframes if is_keyframe else self._plain).append(index)


def bytes_without(folder: Path, name: str) -> int:
    """Size of all files of a result but the file ``name``, or those in the folder ``name``. Raises OutputError."""
    with output_errors(folder):
        files = (path for path in folder.rglob("*") if name not in path.relative_to(folder).parts)
        return sum(path.stat().st_size for path in files if path.is_file())


def bytes_per_frame(pixels: int, keep: KeepDepth) -> float:
    """Approximate bytes that a frame of ``pixels`` network pixels adds to a result, without points."""
    # About three of ten frames are keyframes.
    share = {"all": 1.0, "keyframes": 0.3, "none": 0.0}[keep]
    return BYTES_PER_CAMERA + share * pixels * BYTES_PER_PIXEL
