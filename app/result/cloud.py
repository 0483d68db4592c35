"""``points.ply``: written while a run goes on, and rebuilt at its end or by `amend` if revisions moved frames.

The file holds the points of one frame after another, thinned by voxels: the first frame that sees a voxel gives its
point. While the run goes on, a frame's points are compared with earlier keyframes. `PointCloud.rebuild` unprojects
again, from their depth files, the frames that show more than the one before, and compares each with frames before and
after. A frame without a file, see `DiskLimit`, keeps its points, moved by the similarity of its revision; new
intrinsics and depth fields are not applied to them.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.cores import serial_opencv, usable_cores
from stream_recon.app.core.per_frame_arrays import PerFrameArrays
from stream_recon.app.core.ply import colours, positions
from stream_recon.app.core.transforms import Similarity, transform_points
from stream_recon.app.core.types import FrameResult
from stream_recon.app.core.voxels import VoxelTable
from stream_recon.app.result.cameras import CAMERAS_NAME, FrameCamera, iterate_cameras
from stream_recon.app.result.commit import FolderChange
from stream_recon.app.result.consistent import ConsistentFrames, RecentKeyframes, new_views
from stream_recon.app.result.depth import depth_path
from stream_recon.app.result.files import PlyFile, in_order, output_errors
from stream_recon.app.result.folder import ResultFolder, result_of
from stream_recon.configs.schema import PointsConfig

POINTS_NAME = "points.ply"
BYTES_PER_FRAME = 8 * 13
"""Size on the disk of a frame's pose and depth scale in `PointCloud`: 3x4 and 1 float64."""
ColouredPoints = tuple[NDArray[np.float32], NDArray[np.uint8]]
"""Points [N, 3] in the world, and their colours [N, 3]."""


def _no_points() -> ColouredPoints:
    return np.empty((0, 3), np.float32), np.empty((0, 3), np.uint8)


class PointCloud:
    """The cloud of a run in progress."""

    def __init__(self, folder: Path, config: PointsConfig, known: Sequence[FrameCamera] = ()) -> None:
        """Write the file with the points of the frames ``known``. Raises OutputError; the old file then stays."""
        self._folder = folder
        self._config = config
        self._voxels = VoxelTable(config.voxel)
        self._written = PerFrameArrays(folder, pose=(3, 4), depth_scale=())
        """Camera of each frame when its points were written."""
        self._ends = array("q", [0])
        self._keyframes = RecentKeyframes(config)
        with FolderChange(folder) as change, ExitStack() as opened:
            self._ply = PlyFile(change.part(POINTS_NAME))
            opened.callback(self._ply.close)
            for camera in known:
                self.add(result_of(folder, camera), camera.depth_scale)
            change.commit()
            opened.pop_all()

    def add(self, result: FrameResult, depth_scale: float = 1.0, *, now: bool = True) -> None:
        """Append the new points of a frame, whose depth is ``depth_scale`` times the causal one. Raises OutputError.

        ``now``: False leaves its points to `rebuild`, which needs its depth file.
        """
        if now:
            points = self._keyframes.points(result)
            xyz = transform_points(result.T_world_camera, points.xyz)
            new = self._voxels.take_new(xyz)
            self._ply.append(xyz[new], points.rgb[new])
        with output_errors(self._folder):
            self._written.append(pose=result.T_world_camera[:3], depth_scale=depth_scale)
        self._ends.append(self._ply.count)

    def rebuild(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Replace the file by one with the poses of ``cameras.json``; the last step before `close`.

        See `write_cloud`; the old file stays after its errors.
        """
        with FolderChange(self._folder) as change:
            part, count = change.part(POINTS_NAME), len(self._written)
            write_cloud(part, self._config.voxel, self._frames(), count, on_progress)
            change.commit()

    def close(self) -> None:
        self._ply.close()

    def _frames(self) -> Iterator[Callable[[], ColouredPoints]]:
        frames = ConsistentFrames(partial(result_of, self._folder), self._config)
        cameras = islice(iterate_cameras(self._folder / CAMERAS_NAME), len(self._written))
        for row, (camera, others, is_new) in enumerate(new_views(cameras, self._config.voxel)):
            if depth_path(self._folder, camera.index).is_file():
                yield partial(frames.world_points, camera, others) if is_new else _no_points
            else:
                yield partial(self._moved, row, camera)

    def _moved(self, row: int, camera: FrameCamera) -> ColouredPoints:
        """The points of a frame without a depth file, moved with its camera."""
        with output_errors(self._folder):
            pose, scale = self._written["pose"][row], float(self._written["depth_scale"][row])
        T_world_camera = camera.T_world_camera
        revised = Similarity(camera.depth_scale, T_world_camera[:3, :3], T_world_camera[:3, 3])
        motion = revised @ Similarity(scale, pose[:, :3], pose[:, 3]).inverse()
        vertices = self._ply.read(self._ends[row], self._ends[row + 1])
        xyz = motion.apply(positions(vertices).astype(np.float64)).astype(np.float32)
        return xyz, colours(vertices)


def write_cloud(
    path: Path,
    voxel: float,
    frames: Iterator[Callable[[], ColouredPoints]],
    count: int,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """Write the points of ``count`` frames in order, thinned by voxels, on all cores and in bounded memory.

    Args:
        frames: computes each frame's points; called in several threads.
        on_progress: called with the number of frames done, and ``count``; may raise `Cancelled`.

    Raises OutputError: no space, or a damaged file.
    """
    voxels, ply = VoxelTable(voxel), PlyFile(path)

    def computed(points: Callable[[], ColouredPoints]) -> tuple[NDArray[np.uint64], ColouredPoints]:
        xyz, rgb = points()
        return voxels.keys(xyz), (xyz, rgb)

    try:
        threads = usable_cores()
        with serial_opencv(), ThreadPoolExecutor(threads, "cloud") as pool:
            # A thread of its own would only change places with this one.
            work = (
                map(computed, frames)
                if threads == 1
                else in_order(pool, computed, zip(frames, strict=True), ahead=2 * threads)
            )
            for done, (keys, (xyz, rgb)) in enumerate(work, start=1):
                new = voxels.take_first(keys)
                ply.append(xyz[new], rgb[new])
                if on_progress is not None:
                    on_progress(done, count)
    finally:
        ply.close()


def write_result_cloud(
    path: Path,
    result: ResultFolder,
    on_progress: Callable[[int, int], None] | None = None,
    config: PointsConfig | None = None,
) -> None:
    """Write the cloud of a result's best depth maps to ``path``; see `write_cloud`. ``config``: None: the result's."""
    config = config or result.points
    cameras = result.surface_cameras
    frames = ConsistentFrames(result.surface_of, config)
    points = (
        partial(frames.world_points, camera, others) if is_new else _no_points
        for camera, others, is_new in new_views(cameras, config.voxel)
    )
    write_cloud(path, config.voxel, points, len(cameras), on_progress)
