"""Files for browsers: the points on the page, or the whole cloud of a result folder."""

import mmap
from pathlib import Path
from typing import Any

from stream_recon.app.core import ply
from stream_recon.app.viewer.points import RankedPoints

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
