"""What the refinement of a result reads: images of its source or its own, depth, poses, and options."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.cores import usable_cores
from stream_recon.app.core.rig import view_of
from stream_recon.app.core.types import FrameResult
from stream_recon.app.datasets.source_identity import source_change
from stream_recon.app.metric_scale.known_poses import FittingPoses
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.folder import ResultFolder, result_of
from stream_recon.app.result.run_record import PARTS, REFINEMENT, RIG, RUN_NAME
from stream_recon.app.slam.frame_data import DepthOf, DepthReader, FrameData, Scale
from stream_recon.app.slam.offline.all_frames import PoseInterpolator
from stream_recon.app.slam.offline.refine import RefineOptions
from stream_recon.app.slam.offline.report import GivenPoses, InitialPoses, IntermediateState, keeps_stream
from stream_recon.app.slam.rig_poses import RigFrames
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError, OutputError

STORED_IMAGES = "the source's images are gone: refined with the result's small images, which is less accurate"
MAX_WORKERS = 8
"""Threads at most: each holds an image and its features, and one thread merges what they find."""


class ResultImages:
    """Images of the source, or of the result where the source is gone; the `Images` of `slam/offline/refine.py`."""

    def __init__(
        self,
        result: ResultFolder,
        cameras: Sequence[FrameCamera],
        open_again: Callable[[], Source] | None,
        scale: Scale,
    ) -> None:
        self.scale = scale
        self.warning: str | None = None if open_again is not None else STORED_IMAGES
        self.change: str | None = None
        """How the source differs from the one that the result was made from, if it does."""
        self._folder, self._cameras, self._open = result.folder, cameras, open_again

    def read(self, positions: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint8], DepthOf]]:
        if self._open is None:
            for position in positions:
                stored = result_of(self._folder, self._cameras[position])
                yield position, _on_canvas(stored, self.scale), partial(DepthReader.from_result, stored, self.scale)
            return
        by_index = {self._cameras[position].index: position for position in positions}
        with self._open() as source:
            for frame in source.frames_at(by_index):
                position = by_index[frame.index]
                yield position, self.scale.grey(frame.rgb), partial(self._depth, position)

    def _depth(self, position: int) -> DepthReader:
        return DepthReader.from_result(result_of(self._folder, self._cameras[position]), self.scale)


def images_of(
    result: ResultFolder, cameras: Sequence[FrameCamera], open_again: Callable[[], Source] | None
) -> ResultImages:
    """Images of a result's frames from its source, or its own small ones.

    Raises InputError without frames, and where the source has changed since an earlier refinement used its images.
    """
    if not cameras:
        raise InputError(f"{result.folder} has no frames to refine")
    first = result_of(result.folder, cameras[0])
    size = first.transform.source_size
    change_message = None
    if open_again is not None:
        try:
            change = source_change(result.folder, cameras, open_again)
        except InputError:
            open_again = None
        else:
            if change is None:
                return ResultImages(result, cameras, open_again, Scale.from_source_size(size))
            change_message = f"the source has changed since the run ({change})"
            if _used_source(result):
                raise InputError(f"{change_message}; {result.folder} stays as it was refined with the source's images")
    factor = min(Scale.from_source_size(size).factor, sum(first.transform.scale) / 2)
    small = Scale(factor, (max(round(size[0] * factor), 1), max(round(size[1] * factor), 1)))
    images = ResultImages(result, cameras, None, small)
    images.change = change_message
    return images


def _used_source(result: ResultFolder) -> bool:
    """Whether an earlier refinement had the source's images."""
    earlier = result.run.get(REFINEMENT)
    return isinstance(earlier, dict) and not earlier.get("warning")


def _on_canvas(result: FrameResult, scale: Scale) -> NDArray[np.uint8]:
    """The stored image at its position in the source image."""
    left, top, width, height = (round(v * scale.factor) for v in result.transform.crop)
    canvas = np.zeros((scale.size[1], scale.size[0]), np.uint8)
    grey = cv2.resize(cv2.cvtColor(result.rgb, cv2.COLOR_RGB2GRAY), (width, height), interpolation=cv2.INTER_AREA)
    part = canvas[top : top + height, left : left + width]
    part[:] = grey[: part.shape[0], : part.shape[1]]
    return canvas


def read_views(
    result: ResultFolder, cameras: Sequence[FrameCamera], scale: Scale, on_read: Callable[[float], object]
) -> list[FrameData]:
    """Depth and poses of frames. ``on_read`` gets the share that is read. Raises OutputError."""
    views = []
    for number, camera in enumerate(cameras):
        views.append(FrameData.from_result(result_of(result.folder, camera), scale))
        on_read(number / len(cameras))
    return views


def rig_frames(result: ResultFolder, cameras: Sequence[FrameCamera]) -> RigFrames | None:
    """The views of a rig's frames; None for one camera. Raises OutputError."""
    rig = result.rig
    if rig is None:
        return None
    index, segment = [camera.index for camera in cameras], [camera.segment for camera in cameras]
    if max(map(view_of, index), default=0) >= len(rig):
        raise OutputError(f"{result.folder} has frames of a view that its rig has not")
    if rig.is_central or RIG not in result.run:
        return RigFrames.of(rig, index, segment)
    try:
        scales = tuple(float(scale) for scale in result.run[RIG]["scales"])
        if len(scales) != len(rig) or not all(math.isfinite(scale) and scale > 0 for scale in scales):
            raise ValueError("a scale is not valid")
    except (KeyError, TypeError, ValueError) as error:
        raise OutputError(f"{result.folder / RUN_NAME} has a damaged rig") from error
    return RigFrames.of(rig, index, segment, scales)


def with_known_poses(
    views: list[FrameData], cameras: Sequence[FrameCamera], known: FittingPoses | None
) -> tuple[list[FrameData], GivenPoses | None]:
    """The frames with known poses, in the network's world and unit, in place of its own, and which ones are known.

    Frames without one follow the network's motion from those that have it.
    """
    if known is None:
        return views, None
    rows, T_known = known.placed(cameras)
    T_network = np.array([view.T_world_camera for view in views])
    segment = np.zeros(len(views), np.intp)
    interpolator = PoseInterpolator(np.array(rows), T_network, T_known, np.ones(len(rows)), segment)
    is_known = np.isin(np.arange(len(views)), rows)
    T = np.array([interpolator.pose(row) for row in range(len(views))])
    T[rows] = T_known
    moved = [dataclasses.replace(view, T_world_camera=pose) for view, pose in zip(views, T, strict=True)]
    return moved, GivenPoses(is_known, known.choice.use == "fixed")


def refine_options(
    result: ResultFolder,
    scale: Scale,
    progress: Callable[[float, str], None],
    on_state: Callable[[IntermediateState], None] | None,
    given: GivenPoses | None = None,
) -> RefineOptions:
    """Options of the solver for a result."""
    return RefineOptions(
        workers=min(usable_cores(), MAX_WORKERS),
        initial_poses=_initial_poses(result, scale),
        unordered=result.run.get("unordered") is True,
        known_intrinsics=result.has_known_camera,
        refined_before=PARTS in result.run.get("options", {}),
        given=given,
        progress=progress,
        on_state=on_state,
    )


def _initial_poses(result: ResultFolder, scale: Scale) -> InitialPoses | None:
    """Online poses of the frames with depth; None without an online back end, or after a refinement that moved them."""
    cameras = result.with_depth(result.cameras)
    is_moved = REFINEMENT in result.run and not keeps_stream(result.run[REFINEMENT])
    if is_moved or all(camera.network is None for camera in cameras):
        return None
    # All frames have one camera.
    focal = float(np.median([np.sqrt(camera.intrinsics.fx * camera.intrinsics.fy) for camera in cameras]))
    T = np.array([camera.T_world_camera for camera in cameras])
    return InitialPoses(T, np.array([camera.map_scale for camera in cameras]), focal * scale.factor)
