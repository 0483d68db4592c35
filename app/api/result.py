"""A finished or interrupted result, read and changed from Python."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.api.frame import ResultFrame
from stream_recon.app.api.operations import export_result, refinement, run_work, scaling
from stream_recon.app.api.options import OnProgress, chosen, dense_side_of
from stream_recon.app.api.trajectory import Trajectory
from stream_recon.app.core.cancel import Cancel
from stream_recon.app.core.ply import colours, positions
from stream_recon.app.result.cameras import FrameCamera, of_bodies
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.files import checked_points
from stream_recon.app.result.folder import MESH_NAME, ResultFolder, read_result
from stream_recon.app.result.verdict import Verdict, recorded_verdict
from stream_recon.app.run.options import DENSE_SIDE
from stream_recon.configs.schema import DeviceChoice


class Result:
    """A result folder, finished or interrupted; it shows the state at which it was opened or last changed by a method.

    Args:
        folder: what `reconstruct` or the command wrote.

    Raises OutputError: it is no result, or damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self._content: ResultFolder = read_result(Path(folder))

    @property
    def folder(self) -> Path:
        """The folder."""
        return self._content.folder

    @property
    def run(self) -> Mapping[str, Any]:
        """The content of ``run.json``: options, timings, warnings, evidence."""
        return self._content.run

    @property
    def trajectory(self) -> Trajectory:
        """Final poses of all frames; of a rig, such as a panorama's views, one for each frame."""
        cameras = list(of_bodies(self._content.cameras))
        poses = [camera.T_world_camera for camera in cameras]
        return Trajectory(np.array([c.timestamp for c in cameras], np.float64), np.reshape(poses, (-1, 4, 4)))

    @property
    def cameras(self) -> Sequence[FrameCamera]:
        """One camera for each frame, of a rig for each view: poses, intrinsics in pixels of its image, if keyframe."""
        return tuple(self._content.cameras)

    @property
    def verdict(self) -> Verdict | None:
        """The judgement of the result; None where there is none."""
        return recorded_verdict(self._content.run)

    @property
    def is_metric(self) -> bool:
        """Whether lengths are in metres."""
        return self._content.metric_scale is not None

    @property
    def mesh_path(self) -> Path | None:
        """The mesh, a GLB file; None where there is none."""
        path = self.folder / MESH_NAME
        return path if path.is_file() else None

    def frames(self) -> Iterator[ResultFrame]:
        """The frames whose depth was kept, in order, each read when it is due. Raises OutputError: one is damaged."""
        for camera in self._content.with_depth(self._content.cameras):
            yield ResultFrame(self._content.surface_of(camera))

    def cloud(self) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """World points [N, 3], in the result's unit, and colours [N, 3] of the coloured cloud. Raises OutputError."""
        vertices = checked_points(self.folder / POINTS_NAME)
        return positions(vertices), colours(vertices)

    def refine(
        self,
        *,
        mesh: bool = True,
        keep_map: bool = True,
        dense: Literal["on", "off"] = "on",
        dense_side: int = DENSE_SIDE,
        device: DeviceChoice = "auto",
        on_progress: OnProgress | None = None,
        cancel: Cancel | None = None,
    ) -> None:
        """Refine the result by offline bundle adjustment, as the command ``refine`` does with options of these names.

        Raises StreamReconError; Cancelled: the result is as the last complete stage left it.
        """
        chosen("device", device, get_args(DeviceChoice))
        work = refinement(self.folder, device, dense_side_of(dense, dense_side), mesh, keep_map)
        run_work(self.folder, work, on_progress, cancel)
        self._content = read_result(self.folder)

    def scale(self, what: str, *, on_progress: OnProgress | None = None, cancel: Cancel | None = None) -> None:
        """Convert the result to metres.

        ``what``: ``marker:METRES``, ``frames:A,B,METRES``, ``height:METRES``, ``track:FILE`` or ``exif``, as of the
        command ``scale``. Raises StreamReconError; Cancelled: the result is unchanged.
        """
        run_work(self.folder, scaling(self.folder, what), on_progress, cancel)
        self._content = read_result(self.folder)

    def export(
        self,
        format: str,
        path: str | Path | None = None,
        *,
        overwrite: bool = False,
        on_progress: OnProgress | None = None,
        cancel: Cancel | None = None,
        **options: Any,
    ) -> Path:
        """Write the result for other programs; returns the file or folder.

        Args:
            format: ``colmap``, ``transforms``, ``trajectory``, ``depth``, ``glb``, ``mesh``, ``html``, ``rrd``,
                ``mcap``, ``ros2bag`` or ``splats``.
            path: file or folder, by the format; None: next to the result, named after it.
            overwrite: replace an earlier export.
            options: fields of the command's options: ``frames``, ``max_side``, ``points``, ``faces``, ``up``,
                ``dense``, ``confidence``, ``voxel`` and ``box``.

        Raises StreamReconError, Cancelled; nothing is written then.
        """
        target = None if path is None else Path(path)
        return export_result(self.folder, format, target, options, overwrite, on_progress, cancel)

    def __len__(self) -> int:
        return len(self._content)

    def __repr__(self) -> str:
        verdict = self.verdict.level if self.verdict else "not judged"
        unit = "in metres" if self.is_metric else "without metric scale"
        return f"<Result {str(self.folder)!r}: {len(self)} frames, {verdict}, {unit}>"


def open_result(folder: str | Path) -> Result:
    """Open a result folder of `reconstruct` or of the command. Raises OutputError: it is no result, or damaged."""
    return Result(folder)
