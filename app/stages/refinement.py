"""Offline refinement of a finished result folder, with the images of its source."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.core.views import ResultListener, RunView
from stream_recon.app.metric_scale.known_poses import FittingPoses
from stream_recon.app.metric_scale.rig import metres_left
from stream_recon.app.result.amend import amend
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.run_record import REFINEMENT
from stream_recon.app.result.tracks import SparseTracks, read_tracks
from stream_recon.app.run.listeners import RunObserver
from stream_recon.app.slam.offline.config import REFINE, RefineConfig
from stream_recon.app.slam.offline.refine import refine
from stream_recon.app.slam.offline.report import IntermediateState, RefinementReport
from stream_recon.app.sources.source import Source
from stream_recon.app.stages.refinement_input import images_of, read_views, refine_options, rig_frames, with_known_poses
from stream_recon.app.stages.refinement_output import (
    for_all_frames,
    frames_of,
    refined_result,
    relative_to_files,
    revision_to,
    write_localization_map,
)
from stream_recon.configs.errors import InputError

READING_SHARE = 0.05
"""Share of the progress for reading depth files, which comes first."""


def refine_result(
    result: ResultFolder,
    open_again: Callable[[], Source] | None,
    listeners: Sequence[ResultListener] = (),
    view: RunView | None = None,
    observer: RunObserver | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    *,
    keep_map: bool = True,
    known: FittingPoses | None = None,
    config: RefineConfig = REFINE,
) -> RefinementReport:
    """Refine a result from the network's estimates, also after earlier refinements, and write it.

    Args:
        open_again: opens the source again, with the same choice of frames. Where it is None or raises InputError, the
            result's own small images are used.
        listeners: get the final revision.
        view: shows intermediate states and the final one; after an early end, the unchanged result.
        observer: gets the progress.
        keep_map: leave the features by which the place is recognized.
        known: known poses of its frames; None: it starts from the network's.

    Raises:
        Cancelled: ``cancelled`` returned true; the result is unchanged.
        StreamReconError: a file cannot be read or written; the result is unchanged.
    """
    observer = observer or RunObserver()

    def report(share: float, step: str) -> None:
        if cancelled():
            raise Cancelled
        observer.on_share("refining", share, step)

    every = [camera.as_network for camera in result.cameras]
    cameras = result.with_depth(every)
    images = images_of(result, cameras, open_again)
    if images.change is not None:
        observer.on_message(f"{images.change}: refined with the result's small images", warning=True)
    views = read_views(result, cameras, images.scale, lambda share: report(READING_SHARE * share, "depth"))
    views, given = with_known_poses(views, cameras, known)

    def show_state(state: IntermediateState) -> None:
        assert view is not None
        T, depth_scale = for_all_frames(every, cameras, state.T_world_camera, state.depth_scale)
        view.revise(revision_to(every, T, depth_scale, state.camera_model.scaled(1 / images.scale.factor)))
        view.show_map(state.points, frames_of(state.loops, [camera.index for camera in cameras]))

    def progress(share: float, step: str) -> None:
        report(READING_SHARE + (1 - READING_SHARE) * share, step)

    try:
        options = refine_options(result, images.scale, progress, show_state if view else None, given)
        rig = rig_frames(result, cameras)
        options = replace(options, rig=rig)
        refinement = refine(views, images, images.scale, options, config)
        if refinement.fit is None and REFINEMENT in result.run and read_tracks(result.folder) is not None:
            raise InputError(f"no refinement was found this time; {result.folder} keeps its earlier one")
        refined = refined_result(result, every, cameras, refinement, images.warning, known)
        refined.changes.update(metres_left(result, images, rig, refinement))
        for listener in listeners:
            listener.revise(refined.revision)
        if view:
            view.revise(refined.revision)
            view.show_map(*_map_of(refined.tracks))
        observer.on_share("refining", 1.0)
        revision, on_points = relative_to_files(refined.revision, every), partial(observer.on_step, "points")
        amend(result, revision, refined.changes, refined.tracks, on_points, cancelled)
        keyframes = [cameras[number].index for number in refinement.keyframes] if keep_map else []
        write_localization_map(result.folder, refinement, keyframes)
    except BaseException:
        if view:
            view.revise(result.revision_since_causal)
            view.show_map(*_map_of(read_tracks(result.folder)))
        raise
    return refinement.report


def _map_of(tracks: SparseTracks | None) -> tuple[NDArray[np.floating], NDArray[np.integer]]:
    return (tracks.points, tracks.loops) if tracks else (np.zeros((0, 3)), np.zeros((0, 2), np.int32))
