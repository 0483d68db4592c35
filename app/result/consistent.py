"""Points of a result's frames that other frames confirm, read in order and in bounded memory."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.consistency import NEIGHBOURS, DepthView, choose_neighbours, consistent_pixels
from stream_recon.app.core.depth_points import FramePoints, frame_points
from stream_recon.app.core.transforms import invert_pose, rotation_angle_deg, transform_points
from stream_recon.app.core.types import FrameResult
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.configs.errors import OutputError
from stream_recon.configs.schema import PointsConfig

WINDOW = 32
"""Frames before and after a frame of which its neighbours are chosen."""
NEW_PLACE, NEW_DIRECTION_DEG = 2.0, 1.2
"""Movement of a camera, in edges of voxels and in degrees, from which its view is read. Keyframes by flow move more."""
MEMORY = 96 * 2**20
"""Bytes of frames that are kept in memory, about; a frame that is needed again is read again."""
KEYFRAMES = 12
"""Latest keyframes that a frame of a run in progress is compared with."""
STREAM_NEIGHBOURS = 2
"""Of these, the ones that it is compared with in fact."""
STREAM_STEP = 2
"""Side in pixels of the blocks that are judged as one while a run goes on: a quarter of the time."""


class ConsistentFrames:
    """Reads frames and selects their pixels by agreement with neighbours. Safe from several threads.

    Args:
        read: a frame's result; raises OutputError.
        config: selection of pixels.
    """

    def __init__(self, read: Callable[[FrameCamera], FrameResult], config: PointsConfig) -> None:
        self._read, self._config = read, config
        self._kept: OrderedDict[int, tuple[FrameResult, DepthView]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def pixels(
        self, camera: FrameCamera, others: Sequence[FrameCamera]
    ) -> tuple[FrameResult, NDArray[np.bool_], NDArray[np.float32]]:
        """A frame, the mask [h, w] of its pixels to keep, and its depth [h, w] averaged over views that agree.

        Of pixels closer than half a voxel at the frame's median depth, one in each block is kept.
        ``others``: frames of which neighbours are chosen; those that cannot be read are left out. Raises OutputError
        where the frame itself cannot be read.
        """
        result, own = self._frame(camera)
        others = [other for other in others if other.segment == camera.segment]
        chosen = choose_neighbours(own, [(c.T_world_camera, c.intrinsics, c.source_size) for c in others], NEIGHBOURS)
        views = []
        for number in chosen:
            try:
                views.append(self._frame(others[number])[1])
            except OutputError:
                continue
        step = _pixel_step(own, self._config.voxel)
        keep, depth = consistent_pixels(result, own, views, self._config, step)
        mask = np.zeros_like(keep)
        mask[::step, ::step] = keep[::step, ::step]
        return result, mask, depth

    def points(self, camera: FrameCamera, others: Sequence[FrameCamera]) -> FramePoints:
        """A frame's points in camera axes; see `pixels`."""
        result, keep, depth = self.pixels(camera, others)
        return frame_points(result, self._config, keep, depth)

    def world_points(
        self, camera: FrameCamera, others: Sequence[FrameCamera]
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """A frame's points [N, 3] in the world and their colours [N, 3]; see `pixels`."""
        points = self.points(camera, others)
        return transform_points(camera.T_world_camera, points.xyz), points.rgb

    def _frame(self, camera: FrameCamera) -> tuple[FrameResult, DepthView]:
        with self._lock:
            kept = self._kept.get(camera.index)
            if kept is not None:
                self._kept.move_to_end(camera.index)
                return kept
        result = self._read(camera)
        frame = result, DepthView.from_result(result, self._config)
        with self._lock:
            if camera.index not in self._kept:
                self._kept[camera.index] = frame
                self._bytes += _bytes(result)
            while self._bytes > MEMORY and len(self._kept) > 1:
                self._bytes -= _bytes(self._kept.popitem(last=False)[1][0])
        return frame


def _pixel_step(view: DepthView, voxel: float) -> int:
    """Pixels within half a voxel along an axis at the median depth: at least 1."""
    known = view.depth[view.depth > 0]
    return max(1, int(voxel * view.camera.fx / (2 * float(np.median(known))))) if len(known) else 1


def _bytes(result: FrameResult) -> int:
    """Approximate memory of a frame: its maps, and those of its view."""
    return result.depth.size * (3 + 9 * 4)


def with_neighbours(cameras: Iterable[FrameCamera]) -> Iterator[tuple[FrameCamera, list[FrameCamera]]]:
    """Each camera with at most `WINDOW` ones before and after it. Reads that far ahead."""
    before: deque[FrameCamera] = deque(maxlen=WINDOW)
    ahead: deque[FrameCamera] = deque()
    source = iter(cameras)
    while True:
        while len(ahead) <= WINDOW and (camera := next(source, None)) is not None:
            ahead.append(camera)
        if not ahead:
            return
        current = ahead.popleft()
        yield current, [*before, *ahead]
        before.append(current)


def new_views(cameras: Iterable[FrameCamera], voxel: float) -> Iterator[tuple[FrameCamera, list[FrameCamera], bool]]:
    """`with_neighbours`, and whether the camera has moved since the last one that had, for points of that ``voxel``."""
    last: FrameCamera | None = None
    for camera, others in with_neighbours(cameras):
        is_new = last is None or last.segment != camera.segment or _has_moved(last, camera, voxel)
        if is_new:
            last = camera
        yield camera, others, is_new


def _has_moved(before: FrameCamera, after: FrameCamera, voxel: float) -> bool:
    motion = invert_pose(before.T_world_camera) @ after.T_world_camera
    turned = float(rotation_angle_deg(motion[:3, :3])) > NEW_DIRECTION_DEG
    return turned or float(np.linalg.norm(motion[:3, 3])) > NEW_PLACE * voxel


class RecentKeyframes:
    """Selects a frame's points while a run goes on, by agreement with two of the latest keyframes.

    The cost is bounded: about 2 ms at 224 pixels on one core.
    """

    def __init__(self, config: PointsConfig) -> None:
        self._config = config
        self._views: deque[tuple[DepthView, tuple[int, int]]] = deque(maxlen=KEYFRAMES)

    def points(self, result: FrameResult) -> FramePoints:
        """The frame's points in camera axes; a keyframe is remembered."""
        own = DepthView.from_result(result, self._config)
        views = [entry for entry in self._views if entry[0].segment == result.segment]
        chosen = choose_neighbours(
            own, [(view.T_world_camera, view.camera, size) for view, size in views], STREAM_NEIGHBOURS
        )
        keep, _ = consistent_pixels(result, own, [views[number][0] for number in chosen], self._config, STREAM_STEP)
        if result.is_keyframe:
            self._views.append((own, result.transform.network_size))
        return frame_points(result, self._config, keep)
