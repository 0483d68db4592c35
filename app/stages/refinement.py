"""Offline refinement of a finished result folder, with the images of its source."""

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.metric_scale.known_poses import FittingPoses
from stream_recon.app.metric_scale.rig import metres_left
from stream_recon.app.result.amend import amend
from stream_recon.app.result.run_record import REFINEMENT
from stream_recon.app.result.tracks import SparseTracks, read_tracks
from stream_recon.app.slam.matching.learned import LearnedMatcher
from stream_recon.app.slam.offline.config import REFINE, RefineConfig
from stream_recon.app.slam.offline.refine import refine
from stream_recon.app.slam.offline.report import IntermediateState, RefinementReport
from stream_recon.app.stages.refinement_input import images_of, read_views, refine_options, rig_frames, with_known_poses
from stream_recon.app.stages.refinement_output import (
    for_all_frames,
    frames_of,
    refined_result,
    relative_to_files,
    revision_to,
    write_localization_map,
)
from stream_recon.app.stages.stage import StageContext
from stream_recon.configs.errors import InputError, ResourceError

READING_SHARE = 0.05
"""Share of the progress for reading depth files, which comes first."""


def write_refinement(
    context: StageContext, *, keep_map: bool = True, known: FittingPoses | None = None, config: RefineConfig = REFINE
) -> RefinementReport:
    """Refine a result from the network's estimates, also after earlier refinements, and write it.

    Where its source cannot be opened again, the result's own small images are used. The view shows intermediate states
    and the final one; after an early end, the unchanged result.

    Args:
        keep_map: leave the features by which the place is recognized.
        known: known poses of its frames; None: it starts from the network's.

    Raises Cancelled; StreamReconError: a file cannot be read or written. The result is unchanged then.
    """
    result, view, observer = context.result, context.view, context.observer

    def report(share: float, step: str) -> None:
        context.cancel.check()
        observer.on_share("refining", share, step)

    every = [camera.as_network for camera in result.cameras]
    cameras = result.with_depth(every)
    images = images_of(result, cameras, context.open_again)
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

    @cache
    def matcher() -> LearnedMatcher | None:
        try:
            return LearnedMatcher.installed()
        except ResourceError as error:
            observer.on_message(f"matched without learned features: {error}", warning=True)
            return None

    try:
        options = refine_options(result, images.scale, progress, show_state if view else None, given)
        rig = rig_frames(result, cameras)
        refinement = refine(views, images, images.scale, replace(options, rig=rig, learned=matcher), config)
        if refinement.fit is None and REFINEMENT in result.run and read_tracks(result.folder) is not None:
            raise InputError(f"no refinement was found this time; {result.folder} keeps its earlier one")
        refined = refined_result(result, every, cameras, refinement, images.warning, known)
        refined.changes.update(metres_left(result, images, rig, refinement))
        for listener in context.listeners:
            listener.revise(refined.revision)
        if view:
            view.revise(refined.revision)
            view.show_map(*_map_of(refined.tracks))
        observer.on_share("refining", 1.0)
        revision = relative_to_files(refined.revision, every)
        amend(result, revision, refined.changes, refined.tracks, context.progress("points"))
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
