"""``points.ply`` as a run fills it, and how it is brought up to date after revisions.

The file holds the points of one frame after another, and the cloud remembers where each frame's end. Thinning by
voxels keeps the point of the first frame that saw a voxel. After a revision three kinds of frames are told apart:

- Frames that moved by more than half a voxel are unprojected again from their depth files.
- Frames that did not, but came later and may have seen a voxel that a moved one had represented, are unprojected
  again, too: otherwise the surface would have a hole where the moved points were. They are found by frustum, without
  opening their files.
- The points of all others are copied as they lie in the file: no depth file is opened.

All are thinned anew in order. So the outcome is what a run would have written that had known the last poses, but for
points that belong within half a voxel from where they are.
"""

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import Field
from stream_recon.app.core.depth_points import frame_points
from stream_recon.app.core.ply import Vertices, positions, select_vertices, vertices_of
from stream_recon.app.core.transforms import transform_points
from stream_recon.app.core.types import FrameResult, FrameRevision
from stream_recon.app.core.voxels import VoxelTable, voxel_first
from stream_recon.app.result.cameras import CAMERAS_NAME, Camera, iterate_cameras
from stream_recon.app.result.depth import depth_path
from stream_recon.app.result.files import PART_SUFFIX, PlyFile, in_order, output_errors
from stream_recon.app.result.folder import result_of
from stream_recon.app.result.stale_points import StalePointTracker
from stream_recon.configs.errors import OutputError
from stream_recon.configs.schema import PointsConfig

POINTS_NAME = "points.ply"
COPIED_POINTS = 250_000
"""Points of unmoved frames that are taken at a time, at most, but for a frame that has more."""
VACATED_CELL = 32
"""Voxels along the edge of a cell in which it is noted that moved points have left it."""


@dataclass(frozen=True)
class _Piece:
    """Points [N] of consecutive frames on their way into the file."""

    keys: NDArray[np.uint64]
    """Their voxels [N]."""
    ends: NDArray[np.intp]
    """How many of the points are of the frames up to each one's end."""
    vertices: Callable[[NDArray[np.intp]], Vertices]
    """Some of them as they lie in a file, by their indices."""


class PointCloud:
    """The cloud of one result folder while it grows."""

    def __init__(self, folder: Path, config: PointsConfig, known: Sequence[Camera] = ()) -> None:
        """Begin the file anew, or again with the points of the frames ``known``. Raises OutputError; the old one then
        stays."""
        self._folder = folder
        self._config = config
        self._voxels = VoxelTable(config.voxel)
        self._placements = StalePointTracker(folder)
        self._ends = array("q", [0])
        path = folder / POINTS_NAME
        part = path.with_name(path.name + PART_SUFFIX)
        self._ply = PlyFile(part)
        try:
            for camera in known:
                self.add(result_of(folder, camera), camera.depth_scale, camera.depth_field)
            with output_errors(path):
                part.replace(path)
        except OutputError:
            self._ply.close()
            part.unlink(missing_ok=True)
            raise

    def add(self, result: FrameResult, depth_scale: float = 1.0, depth_field: Field | None = None) -> None:
        """Append the new points of the next frame. Raises OutputError.

        ``depth_scale``, ``depth_field``: see `StalePointTracker.add`.
        """
        points = frame_points(result, self._config)
        xyz = transform_points(result.T_world_camera, points.xyz)
        new = self._voxels.take_new(xyz)
        self._ply.append(xyz[new], points.rgb[new])
        with output_errors(self._folder):
            self._placements.add(result, points.xyz[:, 2], depth_scale, depth_field)
        self._ends.append(self._ply.count)

    def revise(self, row: int, frame: FrameRevision) -> None:
        """Note that the frame before which ``row`` others came belongs elsewhere. Raises OutputError."""
        with output_errors(self._folder):
            self._placements.revise(row, frame)

    @property
    def stale(self) -> bool:
        """Whether some points are further than half a voxel from where they belong."""
        return bool(len(self._moved()))

    def rebuild(
        self,
        on_progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Bring the file up to date with ``cameras.json``, beside the old one and then in its place.

        Memory does not grow with the number of points; all cores work.

        Args:
            on_progress: told how many frames are done, of how many.
            cancelled: asked now and then.

        Returns:
            False where it was cancelled: the old file is whole and as it was.

        Raises:
            OutputError: no room, or a damaged file; the old one stays.
        """
        moved = self._moved()
        if not len(moved):
            return True
        part = self._folder / (POINTS_NAME + PART_SUFFIX)
        with output_errors(part):
            again = np.union1d(moved, self._bereft(moved))
        voxels, ends = VoxelTable(self._config.voxel), array("q", [0])
        ply = PlyFile(part)
        try:
            threads = os.cpu_count() or 1
            with ThreadPoolExecutor(threads, "cloud") as pool:
                for piece in in_order(pool, lambda make: make(voxels), self._work(again), ahead=2 * threads):
                    if cancelled():
                        return False
                    new = voxels.take_first(piece.keys)
                    ends.extend((ply.count + np.searchsorted(new, piece.ends)).tolist())
                    ply.append_vertices(piece.vertices(new))
                    if on_progress is not None:
                        on_progress(len(ends) - 1, len(self._placements))
            with output_errors(part):
                part.replace(self._folder / POINTS_NAME)
            self._ply, ply = ply, self._ply
        finally:
            # Whichever of the two is not wanted any more.
            ply.close()
            part.unlink(missing_ok=True)
        self._voxels, self._ends = voxels, ends
        with output_errors(self._folder):
            self._placements.settle(again)
        return True

    def close(self) -> None:
        self._ply.close()

    def _moved(self) -> NDArray[np.intp]:
        with output_errors(self._folder):
            return self._placements.moved(self._config.voxel / 2)

    def _bereft(self, moved: NDArray[np.intp]) -> NDArray[np.intp]:
        """Rows of the frames that may have seen what a moved frame had represented in the file."""
        cell = VACATED_CELL * self._config.voxel
        if len(self._placements) - moved[0] == len(moved):
            return moved[:0]  # nothing that stays comes after the first that moved
        places, since = [], []
        for row in moved:
            xyz = positions(self._ply.read(self._ends[row], self._ends[row + 1]))
            places.append(xyz[voxel_first(xyz, cell)])
            since.append(np.full(len(places[-1]), row))
        # The first row that left a cell comes first, so it is the one that is kept.
        xyz = np.concatenate(places)
        first = voxel_first(xyz, cell)
        return self._placements.overlooking(xyz[first], np.concatenate(since)[first], radius=cell * np.sqrt(3))

    def _work(self, again: NDArray[np.intp]) -> Iterator[tuple[Callable[[VoxelTable], _Piece]]]:
        """What makes each piece of the new file, in order; pieces are made by several threads."""
        fresh, first = set(again.tolist()), 0
        for row, camera in enumerate(iterate_cameras(self._folder / CAMERAS_NAME)):
            if row == len(self._placements):
                break
            full = self._ends[row + 1] - self._ends[first] > COPIED_POINTS
            if (row in fresh or full) and first < row:
                yield (self._copy(first, row),)
                first = row
            if row in fresh:
                has_depth = depth_path(self._folder, camera.index).is_file()
                yield (self._unproject(camera) if has_depth else self._carry(row),)
                first = row + 1
        if first < len(self._placements):
            yield (self._copy(first, len(self._placements)),)

    def _copy(self, first: int, last: int) -> Callable[[VoxelTable], _Piece]:
        """The points of the frames from row ``first`` to before ``last``, from the old file."""

        def make(voxels: VoxelTable) -> _Piece:
            vertices = self._ply.read(self._ends[first], self._ends[last])
            keys = voxels.keys(positions(vertices))
            ends = np.array(self._ends[first + 1 : last + 1], np.intp) - self._ends[first]
            return _Piece(keys, ends, lambda new: select_vertices(vertices, new))

        return make

    def _carry(self, row: int) -> Callable[[VoxelTable], _Piece]:
        """The points of a frame that has no depth file any more, moved as a whole."""
        with output_errors(self._folder):
            motion = self._placements.motion(row)

        def make(voxels: VoxelTable) -> _Piece:
            vertices = self._ply.read(self._ends[row], self._ends[row + 1])
            xyz = motion.apply(positions(vertices).astype(np.float64)).astype(np.float32)
            rgb = np.stack([vertices[name] for name in ("red", "green", "blue")], axis=1)
            ends = np.array([len(xyz)], np.intp)
            return _Piece(voxels.keys(xyz), ends, lambda new: vertices_of(xyz[new], rgb[new]))

        return make

    def _unproject(self, camera: Camera) -> Callable[[VoxelTable], _Piece]:
        def make(voxels: VoxelTable) -> _Piece:
            points = frame_points(result_of(self._folder, camera), self._config)
            xyz = transform_points(camera.T_world_camera, points.xyz)
            ends = np.array([len(xyz)], np.intp)
            return _Piece(voxels.keys(xyz), ends, lambda new: vertices_of(xyz[new], points.rgb[new]))

        return make
