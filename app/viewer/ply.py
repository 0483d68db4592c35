"""The viewer's cloud as a file for the download button."""

import io

import numpy as np
import plyfile

from stream_recon.app.transforms import transform_points
from stream_recon.app.viewer.chunks import ChunkStore

VERTEX = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("red", "u1"), ("green", "u1"), ("blue", "u1")])


def ply_bytes(store: ChunkStore, min_rank: int, last_frame: int | None) -> bytes:
    """Points in world axes as a binary little-endian PLY; the filter is that of `ChunkPoints.shown`."""
    parts = [np.empty(0, VERTEX)]
    for chunk in store.chunks:
        points = chunk.points.shown(min_rank, chunk.last if last_frame is None else last_frame)
        vertices = np.empty(len(points), VERTEX)
        xyz = transform_points(chunk.T_world_anchor, points.xyz)
        for column in range(3):
            vertices["xyz"[column]] = xyz[:, column]
            vertices[("red", "green", "blue")[column]] = points.rgb[:, column]
        parts.append(vertices)
    buffer = io.BytesIO()
    element = plyfile.PlyElement.describe(np.concatenate(parts), "vertex")
    plyfile.PlyData([element], byte_order="<").write(buffer)
    return buffer.getvalue()
