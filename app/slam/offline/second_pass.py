"""Last adjustment of a map, with all features, and the correction of its keyframes' depth."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.ba.robust_ba import BAState, SolveOptions
from stream_recon.app.slam.evidence.depth_scales import keyframe_depth_scales
from stream_recon.app.slam.matching.matching import build_tracks
from stream_recon.app.slam.offline import (
    camera_model_selection,
    depth_fields,
    hierarchical_ba,
    scale_consistency,
    segments,
)
from stream_recon.app.slam.offline.attempts import Attempt, triangulated
from stream_recon.app.slam.offline.config import RefineConfig
from stream_recon.app.slam.offline.depth_fields import DepthFields
from stream_recon.app.slam.offline.initialization import solve_fixed
from stream_recon.app.slam.offline.keyframe_matching import VideoData


@dataclass(frozen=True)
class SecondPass:
    """Map from all features."""

    fit: BAState
    scale_correction: float = 1.0
    """Ratio of the largest to the smallest factor by which depth maps corrected lengths of the map."""
    focal_error: float | None = None
    """Relative standard deviation of the focal length by the matches alone; None: they tell nothing, or it is known."""
    known_intrinsics: bool = False


def second_pass(attempt: Attempt, fallback: NDArray[np.bool_]) -> SecondPass:
    """The attempt's map adjusted with all features, without keyframes [K] that fall back to the network."""
    data, first, config = attempt.data, attempt.candidate, attempt.config
    usable = {pair: m for pair, m in attempt.matches.matches.items() if not fallback[list(pair)].any()}
    start = triangulated(first.fit, data, build_tracks([len(f) for f in data.features], usable))
    priors = robust_ba.second_pass_priors(first.priors, first.fit, config.start.adjustment)
    options, rounds = SolveOptions(free_focal=first.free_focal), robust_ba.SECOND_PASS_ROUNDS
    correction, tie = 1.0, None
    if attempt.initializer.fixed:
        fit = solve_fixed(start, rounds, priors, options)
    else:
        fit = hierarchical_ba.solve(start, first.motions, rounds, priors, options, config.start.hierarchy)
        if data.rig is None or data.rig.rig.is_central:  # else the distance of its cameras gives the scale
            tie = scale_consistency.tie(fit, data.keyframe_grids, data.keyframe_segment, config.scales)
    if tie is not None:
        priors = replace(priors, log_depth_scale_sigma=config.scales.scale_sigma)
        motions = tie.motions(first.motions)
        fit = tie.restored(hierarchical_ba.solve(tie.state, motions, rounds, priors, options, config.start.hierarchy))
        correction = tie.correction
    error = (
        None if priors.known_intrinsics else camera_model_selection.focal_error(fit, priors, config.start.distortion)
    )
    fit = segments.with_network_layout(fit, data.keyframe_segment, data.T_keyframes, fallback, config.segments)
    return SecondPass(fit, correction, error, priors.known_intrinsics)


def agreeing_depth_scales(data: VideoData, fit: BAState, config: RefineConfig) -> FloatArray:
    """Depth scales [K] of the keyframes on which their depth maps agree."""
    return scale_consistency.depth_scales(fit, data.keyframe_grids, data.keyframe_segment, config.scales)


def scale_jumps(data: VideoData, fit: BAState, config: RefineConfig) -> list[tuple[int, float]]:
    """Keyframes at which the scale changes, which neither points nor depth maps settled, and the factor.

    Where another view of a rig follows, it is not the map's scale: views share their poses.
    """
    jumps = scale_consistency.jumps(fit, data.keyframe_grids, data.keyframe_segment, config.scales)
    rig = data.keyframe_rig
    return [(k, factor) for k, factor in jumps if rig is None or rig.part[k - 1] == rig.part[k]]


def corrected_depth(
    data: VideoData, fit: BAState, fallback: NDArray[np.bool_], size: tuple[int, int], config: RefineConfig
) -> tuple[FloatArray, DepthFields]:
    """Depth scales [K] and fields of the keyframes.

    A field follows the points, and so does the scale with it; without one, depth maps agree on scales.
    """
    agreeing = agreeing_depth_scales(data, fit, config)
    by_points = keyframe_depth_scales(fit, len(data.keyframes), agreeing, config.scales.points)
    estimated = depth_fields.estimate_fields(fit, by_points, data.keyframe_views, size, config.fields)
    fields = replace(estimated, nodes=np.where(fallback[:, None, None], 0.0, estimated.nodes))
    return np.where(fields.kept, by_points, agreeing), fields
