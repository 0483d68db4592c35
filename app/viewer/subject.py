"""What the cameras looked at, as a sample of points with the directions in which they were seen."""

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult
from stream_recon.app.viewer.timeline import Timeline

POINTS_PER_FRAME = 64
MAX_FRAMES = 256
"""Frames that are sampled; beyond that every second one is dropped."""
CENTRE = 0.15
"""Share of the image at each border that is not looked at."""
FARTHEST = 2.0
"""Depth in median depths beyond which a pixel is background."""


class Subject:
    """Sample of the central pixels of keyframes, without background and the less sure half."""

    def __init__(self) -> None:
        self._frames: dict[int, NDArray[np.float64]] = {}
        """Points [n, 3] in the axes of the first-given camera, by ordinal."""
        self._stride = 1

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, ordinal: int, result: FrameResult) -> None:
        """Add a keyframe."""
        slot = ordinal // self._stride * self._stride
        if any(slot <= known < slot + self._stride for known in self._frames):
            return
        points = _looked_at(result)
        if len(points):
            self._frames[ordinal] = points
        while len(self._frames) > MAX_FRAMES:
            self._stride *= 2
            slots: dict[int, int] = {}
            for known in sorted(self._frames):
                slots.setdefault(known // self._stride, known)
            self._frames = {known: self._frames[known] for known in slots.values()}

    def world(self, timeline: Timeline) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Points [N, 3] in the world, and the unit vectors [N, 3] from their cameras to them."""
        if not self._frames:
            return np.zeros((0, 3)), np.zeros((0, 3))
        ordinals = np.array(sorted(self._frames), np.intp)
        maps, centres = timeline.point_transforms(ordinals), timeline.poses[ordinals][:, :3, 3]
        points, rays = [], []
        for number, ordinal in enumerate(ordinals.tolist()):
            world = self._frames[ordinal] @ maps[number, :3, :3].T + maps[number, :3, 3]
            ray = world - centres[number]
            points.append(world)
            rays.append(ray / np.maximum(np.linalg.norm(ray, axis=1, keepdims=True), 1e-12))
        return np.concatenate(points), np.concatenate(rays)


def _looked_at(result: FrameResult) -> NDArray[np.float64]:
    h, w = result.depth.shape
    rows, columns = slice(int(CENTRE * h), h - int(CENTRE * h)), slice(int(CENTRE * w), w - int(CENTRE * w))
    depth, confidence = result.depth[rows, columns], result.confidence[rows, columns]
    good = np.isfinite(depth) & (depth > 0)
    if not good.any():
        return np.zeros((0, 3))
    good &= (depth < FARTHEST * np.median(depth[good])) & (confidence >= np.median(confidence[good]))
    points = result.camera_points[rows, columns][good]
    picks = np.linspace(0, len(points) - 1, min(POINTS_PER_FRAME, len(points))).astype(np.intp)
    return np.asarray(points[picks], np.float64)
