"""Input and report of an export."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.box import Box
from stream_recon.app.core.ply import VERTEX, Vertices, positions, select_vertices
from stream_recon.app.core.subject import subject_box
from stream_recon.app.export.view import PinholeView, Up, gltf_axes, shared_view
from stream_recon.app.result.cameras import FrameCamera, select_cameras
from stream_recon.app.result.cloud import POINTS_NAME, write_result_cloud
from stream_recon.app.result.depth import depth_path
from stream_recon.app.result.files import checked_points, stored_points
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.tracks import SparseTracks, read_tracks
from stream_recon.configs.errors import ConfigError
from stream_recon.configs.schema import PointsConfig


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export; `export` warns of those that do not concern the format."""

    frames: str | None = None
    """``keyframes``, ``all`` or a number N for every N-th; None: the format's default."""
    max_side: int | None = None
    """Longer side of images; None: the source's size."""
    points: int = 1_000_000
    """Most points."""
    faces: int = 500_000
    """Most triangles, approximately."""
    up: Up = "auto"
    """Up direction of formats that define one: estimated, or the first camera's."""
    dense: int | None = None
    """Points from depth maps; None: none where there are tracked points, else `DENSE_POINTS` of colmap."""
    confidence: float | None = None
    """Least confidence of points from 0 to 1; None: the run's."""
    voxel: float | None = None
    """Edge of a voxel of the cloud, in units of the result; None: the run's."""
    box: Box | str | None = None
    """What is outside is left out; "subject": see `subject_box`; other text: see `Box.parse`; None: all stays."""

    @property
    def changed(self) -> list[str]:
        """Names of the fields that differ from the default."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]


@dataclass(frozen=True)
class ExportJob:
    """One export of the present state of a result, which a run may still be writing to."""

    result: ResultFolder
    options: ExportOptions = field(default_factory=ExportOptions)
    progress: Callable[[int, int], None] = lambda done, total: None
    """Called with the number of frames done and their total; may raise Cancelled."""

    def cameras(self, default: str) -> list[FrameCamera]:
        """The frames that the options, or else ``default``, choose; see `select_cameras`."""
        refined = None if self.tracks is None else np.unique(self.tracks.frame)
        return select_cameras(self.result.cameras, self.options.frames or default, refined)

    @property
    def points(self) -> PointsConfig:
        """Selection of points, by the options and the run. Raises StreamReconError."""
        config, options = self.result.points, self.options
        return replace(
            config,
            confidence=config.confidence if options.confidence is None else options.confidence,
            voxel=config.voxel if options.voxel is None else options.voxel,
        )

    def cloud(self) -> Vertices:
        """The points of the result, or a cloud made for this export where its options say so. Raises OutputError."""
        if self.points == self.result.points:
            return self._cut(checked_points(self.result.folder / POINTS_NAME))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / POINTS_NAME
            write_result_cloud(path, self.result, self.progress, config=self.points)
            return np.array(self._cut(stored_points(path)))

    def box_planes(self, R_file_world: NDArray[np.floating] | None = None) -> NDArray[np.float64]:
        """Planes [P, 4] of the box in the world, or in axes to which ``R_file_world`` [3, 3] rotates it; see `Box`."""
        if self.box is None:
            return np.zeros((0, 4))
        axes = self._box_axes if R_file_world is None else self._box_axes @ np.asarray(R_file_world).T
        return self.box.planes(axes)

    def is_inside(self, xyz: NDArray[np.floating]) -> NDArray[np.bool_]:
        """Which points [N, 3] of the world are in the box."""
        return np.ones(len(xyz), np.bool_) if self.box is None else self.box.contains(xyz, self._box_axes)

    @cached_property
    def box(self) -> Box | None:
        """The box that the options choose. Raises StreamReconError: no box, or the cameras look at no one place."""
        if self.options.box != "subject":
            return Box.parse(self.options.box) if isinstance(self.options.box, str) else self.options.box
        cameras = self.result.cameras
        T = np.array([camera.T_world_camera for camera in cameras])
        xyz = positions(checked_points(self.result.folder / POINTS_NAME))
        box = subject_box(T, [camera.intrinsics for camera in cameras], xyz, self._box_axes)
        if box is None:
            raise ConfigError("--box subject: the cameras do not look at one place: give the borders of a box")
        return box

    @cached_property
    def _box_axes(self) -> NDArray[np.float64]:
        return gltf_axes(self.result, "auto")

    def _cut(self, vertices: Vertices) -> Vertices:
        if self.box is None:
            return vertices
        inside = np.flatnonzero(self.is_inside(positions(vertices)))
        return select_vertices(np.asarray(vertices), inside).view(VERTEX)

    def has_depth(self, camera: FrameCamera) -> bool:
        """Whether the frame has a dense depth map or a depth file."""
        return camera.index in self.result.dense or depth_path(self.result.folder, camera.index).is_file()

    @cached_property
    def tracks(self) -> SparseTracks | None:
        """Tracks of the refinement, if any. Raises OutputError for a damaged file."""
        return read_tracks(self.result.folder)

    @cached_property
    def view(self) -> PinholeView:
        """The pinhole camera of all frames, at the source's size. Raises StreamReconError."""
        return shared_view(select_cameras(self.result.cameras, "all"), self.tracks)


@dataclass
class ExportReport:
    """Description of a finished export for its README.txt and for the user."""

    summary: str
    """One line on the files written."""
    notes: list[str] = field(default_factory=list)
    """Lines on the content of the files, with units, for README.txt."""
    warnings: list[str] = field(default_factory=list)
    """Lines on what is missing or worse than it could be."""
