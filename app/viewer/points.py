"""Points with what the page sorts and filters them by.

Files for browsers: the points on the page, or the whole cloud of a result folder.
"""

import mmap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import ply
from stream_recon.app.core.depth_points import FramePoints, frame_points
from stream_recon.app.core.types import FrameResult
from stream_recon.configs.schema import PointsConfig


@dataclass(frozen=True)
class RankedPoints:
    """Points, surest first."""

    xyz: NDArray[np.float32]  # [N, 3]
    rgb: NDArray[np.uint8]  # [N, 3]
    rank: NDArray[np.uint8]  # [N]; percent of the frame's pixels that are less confident, 0 to 100
    frame: NDArray[np.int32]  # [N]; ordinal of the frame that saw the point

    def __len__(self) -> int:
        return len(self.xyz)

    def take(self, indices: NDArray[np.intp]) -> "RankedPoints":
        # For rows of three several times as fast as indexing.
        return RankedPoints(
            self.xyz.take(indices, axis=0), self.rgb.take(indices, axis=0), self.rank[indices], self.frame[indices]
        )

    def head(self, count: int) -> "RankedPoints":
        """The ``count`` surest points, without a copy."""
        return RankedPoints(self.xyz[:count], self.rgb[:count], self.rank[:count], self.frame[:count])

    def at(self, xyz: NDArray[np.float32]) -> "RankedPoints":
        """The same points elsewhere."""
        return replace(self, xyz=xyz)

    def shown(self, min_rank: int, last_frame: int) -> "RankedPoints":
        """The points at least as sure as ``min_rank`` that were seen no later than frame ``last_frame``."""
        count = int(np.searchsorted(-self.rank.astype(np.int16), -min_rank, side="right"))
        sure = self.head(count)
        late = sure.frame > last_frame
        return sure.take(np.flatnonzero(~late)) if late.any() else sure


def no_points() -> RankedPoints:
    return RankedPoints(
        np.empty((0, 3), np.float32), np.empty((0, 3), np.uint8), np.empty(0, np.uint8), np.empty(0, np.int32)
    )


def join_points(parts: list[RankedPoints]) -> RankedPoints:
    """Several sets as one, surest first; among equals the earlier set goes first."""
    joined = concatenate_points(parts)
    return joined.take(np.argsort(100 - joined.rank, kind="stable"))


def concatenate_points(parts: list[RankedPoints]) -> RankedPoints:
    """Several sets one after the other."""
    parts = parts or [no_points()]
    return RankedPoints(
        np.concatenate([p.xyz for p in parts]),
        np.concatenate([p.rgb for p in parts]),
        np.concatenate([p.rank for p in parts]),
        np.concatenate([p.frame for p in parts]),
    )


def ranked_points(
    result: FrameResult, config: PointsConfig
) -> tuple[FramePoints, NDArray[np.uint8], NDArray[np.float64]]:
    """A frame's points from ``min_confidence`` on, the rank in percent of each among the frame's pixels, and where the
    depth map's borders [4] are at z = 1: left, top, width, height."""
    points = frame_points(result, replace(config, confidence_quantile=0.0))
    seen = result.confidence[result.depth > 0]
    # A sample is enough for percents, and sorting all pixels would cost more than all the rest.
    levels = np.quantile(seen[:: max(1, len(seen) // 4096)], np.linspace(0, 1, 101)) if len(seen) else np.zeros(1)
    rank = np.searchsorted(levels.astype(np.float32), points.confidence, side="right") - 1
    k, (height, width) = result.network_intrinsics, result.depth.shape
    window = np.array([-k.cx / k.fx, -k.cy / k.fy, width / k.fx, height / k.fy])
    return points, np.clip(rank, 0, 100).astype(np.uint8), window


FILE_NAME = "points.ply"


def ply_bytes(points: RankedPoints) -> bytes:
    """Points as a binary PLY file."""
    return ply.header(len(points)) + ply.vertices_of(points.xyz, points.rgb).tobytes()


def send_bytes(client: Any, content: bytes) -> None:
    """Let a browser save a PLY file."""
    client.send_file_download(FILE_NAME, content, save_immediately=True)


def send_file(client: Any, path: Path) -> None:
    """Let a browser save a PLY file from the disk, or say there why not."""
    try:
        # Mapped rather than read: viser cuts it into pieces, and one copy of a large cloud is enough.
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            client.send_file_download(FILE_NAME, content, save_immediately=True)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        client.add_notification("No PLY", f"{path} cannot be read: {error}", color="red")
