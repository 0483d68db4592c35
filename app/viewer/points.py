"""Points with their confidence rank and frame, the filter of the panel, and downloads as PLY."""

import mmap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import ply
from stream_recon.app.core.depth_points import FramePoints, frame_points
from stream_recon.app.core.input_file import open_regular
from stream_recon.app.core.types import FrameResult
from stream_recon.configs.schema import PointsConfig

FILE_NAME = "points.ply"
"""Name of the downloaded file."""
HIDE_STEP = 20
"""Step in percent of ranks: points of each step are a node that a page can hide; within a step it has its own."""


@dataclass(frozen=True)
class PointOptions:
    """Choice and size of the points, from the panel."""

    min_rank: int = 0
    """Points with a lower confidence rank are hidden."""
    size: float = 1.0
    """Edge of a point in voxels of its chunk."""
    last_frame: int | None = None
    """Ordinal of the last frame whose points are shown; None: all."""


ALL_POINTS = PointOptions()


@dataclass(frozen=True)
class RankedPoints:
    """Points, most confident first."""

    xyz: NDArray[np.float32]  # [N, 3]
    rgb: NDArray[np.uint8]  # [N, 3]
    rank: NDArray[np.uint8]  # [N], percent of the frame's pixels with lower confidence
    frame: NDArray[np.int32]  # [N], ordinal of the frame that saw the point

    def __len__(self) -> int:
        return len(self.xyz)

    def take(self, indices: NDArray[np.intp]) -> "RankedPoints":
        """The points of these indices."""
        # Several times as fast as indexing for rows of three.
        return RankedPoints(
            self.xyz.take(indices, axis=0), self.rgb.take(indices, axis=0), self.rank[indices], self.frame[indices]
        )

    def head(self, count: int) -> "RankedPoints":
        """The ``count`` most confident points, without a copy."""
        return RankedPoints(self.xyz[:count], self.rgb[:count], self.rank[:count], self.frame[:count])

    def step(self, lowest: int) -> "RankedPoints":
        """The points with ranks from ``lowest``, a multiple of `HIDE_STEP`, up to the next one."""
        rank = -self.rank.astype(np.int16)
        top = 101 if lowest + HIDE_STEP >= 100 else lowest + HIDE_STEP
        first, last = np.searchsorted(rank, [-top, -lowest], side="right")
        return self.take(np.arange(first, last))

    def filtered(self, options: PointOptions) -> "RankedPoints":
        """The points that the options show."""
        count = int(np.searchsorted(-self.rank.astype(np.int16), -options.min_rank, side="right"))
        points = self.head(count)
        if options.last_frame is None:
            return points
        late = points.frame > options.last_frame
        return points.take(np.flatnonzero(~late)) if late.any() else points


def no_points() -> RankedPoints:
    return RankedPoints(
        np.empty((0, 3), np.float32), np.empty((0, 3), np.uint8), np.empty(0, np.uint8), np.empty(0, np.int32)
    )


def join_points(parts: list[RankedPoints]) -> RankedPoints:
    """Several sets as one, most confident first; equal ranks keep the order of the sets."""
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
    """A frame's points above ``min_confidence``, their confidence ranks, and the borders of its depth map.

    A rank is the percentage of the frame's pixels with lower confidence. Borders [4] are left, top, width, height at
    z = 1.
    """
    points = frame_points(result, replace(config, confidence=0.0))
    rank = confidence_ranks(result.confidence[result.depth > 0], points.confidence)
    k, (height, width) = result.network_intrinsics, result.depth.shape
    window = np.array([-k.cx / k.fx, -k.cy / k.fy, width / k.fx, height / k.fy])
    return points, rank, window


def confidence_ranks(confidence: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Percentage [N] of a frame's pixels with a lower ``confidence`` [M] than each of ``values`` [N]."""
    # A sample is enough for percentages: sorting all pixels would take longer than all else.
    sample = confidence[:: max(1, len(confidence) // 4096)] if len(confidence) else np.zeros(1, np.float32)
    levels = np.quantile(sample, np.linspace(0, 1, 101)).astype(np.float32)
    return np.clip(np.searchsorted(levels, values, side="right") - 1, 0, 100).astype(np.uint8)


def ply_bytes(points: RankedPoints) -> bytes:
    """Points as a binary PLY file."""
    return ply.header(len(points)) + ply.vertices_of(points.xyz, points.rgb).tobytes()


def _is_sending(client: Any) -> bool:
    """Whether parts of a file wait for a client to read them; it is told to wait then.

    A client that asks again and again, and reads nothing, would fill the memory.
    """
    buffer = client._websock_connection.get_message_buffer()
    with buffer.buffer_lock:
        kinds = {type(message).__name__ for message in buffer.message_from_id.values()}
    is_sending = "FileTransferPart" in kinds
    if is_sending and "NotificationShowMessage" not in kinds:
        client.add_notification("Not now", "The last file is still on its way.", auto_close_seconds=12.0)
    return is_sending


def send_bytes(client: Any, content: bytes, name: str = FILE_NAME) -> None:
    """Send a file to a client as a download, unless one is on its way."""
    if _is_sending(client):
        return
    client.send_file_download(name, content, save_immediately=True)


def send_file(client: Any, path: Path, name: str = FILE_NAME) -> None:
    """Send a file from the disk to a client, or a notification with the reason why not, such as one on its way."""
    if _is_sending(client):
        return
    try:
        # Mapped, not read: viser copies it piece by piece, and a second copy of a large cloud is avoided.
        with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            client.send_file_download(name, content, save_immediately=True)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        client.add_notification("No file", f"{path} cannot be read: {error}", color="red")
