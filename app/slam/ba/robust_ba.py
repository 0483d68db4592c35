"""Robust bundle adjustment of tracks: rounds with a falling loss scale, between which outliers are dropped.

Initial errors are 5 to 25 pixels, or hundreds at loops, so the first loss scales are large.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import invert_pose, transform_each
from stream_recon.app.slam.ba.adjustment import adjust
from stream_recon.app.slam.ba.problem import BAScene, FloatArray, Observations, Priors, Problem, RelativePoses
from stream_recon.app.slam.ba.triangulation import triangulate


@dataclass(frozen=True)
class AdjustmentConfig:
    """Priors of the adjustments, and when points and errors count."""

    rotation_sigma: float = float(np.radians(1.0))
    """Rad, of the network's motion between neighbouring keyframes; grows with the square root of the steps."""
    translation_sigma: float = 0.3
    """Relative to the translation's length, between neighbouring keyframes; grows with the square root of the steps."""
    min_angle_deg: float = 1.0
    """Least triangulation angle: below it, the network's depth is more accurate than triangulation."""
    wrong_track_px: float = 10.0
    """RMS reprojection error from which a triangulated track is treated as wrong."""
    depth_sigma: float = 1.0
    """Of the log of depth in the first pass, where depth maps preserve the scene's shape."""
    second_pass_depth_sigma: float = 3.0
    """Of the log of depth in the second pass: depth errors alike in all frames would otherwise bias the focal
    length."""
    log_focal_sigma: float = 0.2
    """Of the log of the network's focal length in the first pass."""
    second_pass_log_focal_sigma: float = 0.12
    """Of the log of the network's focal length in the second pass; close to its measured error."""
    independent: float = 0.02
    """Share of observations that count as independent: errors are alike from keyframe to keyframe, and forward motion
    hardly constrains the focal length, however many points are seen."""
    min_variance: float = 0.01
    """Lower limit of the observations' variance in squared pixels: the limit of feature localization."""
    max_focal_change: float = 0.45
    """Largest change of the log focal length; the network's largest error against ground truth was 0.27."""
    k1_sigma: float = 0.001
    """Tight, since k1 and focal length compensate each other: only clear distortion moves k1."""


ADJUSTMENT = AdjustmentConfig()


@dataclass(frozen=True)
class BARound:
    """One call of the adjustment."""

    loss_px: float
    """Scale of the Cauchy loss in pixels."""
    drop_px: float | None
    """Observations of larger error are dropped before the round; None: none."""
    iterations: int = 12
    free_k1: bool = False
    tolerance: float = 1e-3


FINE_ROUNDS = (BARound(2, 6, free_k1=True), BARound(1, 3, 30, free_k1=True))
"""Final rounds of the first pass, whose result is checked before `SECOND_PASS_ROUNDS`."""
STANDARD_ROUNDS = (BARound(20, None), BARound(6, 12), *FINE_ROUNDS)
"""Rounds from the network's poses without loops."""
CLOSED_LOOP_ROUNDS = (BARound(6, 20),)
"""Rounds before `FINE_ROUNDS` from online poses with closed loops; a larger loss scale would admit wrong matches."""
SMALL_GAP_ROUNDS = (BARound(20, None), *CLOSED_LOOP_ROUNDS)
"""Rounds before `FINE_ROUNDS` from online poses where a few loops have small gaps."""
OPEN_LOOP_ROUNDS = (BARound(100, None), BARound(30, None), BARound(10, 60), BARound(3, 15, free_k1=True))
"""Rounds before `FINE_ROUNDS` from poses with open loops, or from relative poses of matches."""
SECOND_PASS_ROUNDS = (BARound(2, 6, free_k1=True), BARound(1, 3, 30, free_k1=True, tolerance=1e-4))
"""Rounds of the second pass, from the first pass's solution."""


@dataclass(frozen=True)
class BAState:
    """Keyframes and points with their remaining observations and errors."""

    scene: BAScene
    observations: Observations
    """Inliers so far; ``point`` indexes the scene's points."""
    feature: NDArray[np.int64]  # [O], index among the features of the observation's keyframe
    errors: FloatArray  # [O], pixels; inf behind the camera
    depth: FloatArray  # [O], of the point in camera axes

    @property
    def views_of_points(self) -> NDArray[np.int64]:
        """Number of keyframes [M] that see each point."""
        return np.bincount(self.observations.point, minlength=len(self.scene.points))


def backprojected(scene: BAScene, observations: Observations) -> FloatArray:
    """Points [M, 3], each the mean of its positions by measured depths; points without observations stay."""
    assert observations.depth is not None and scene.log_depth_scale is not None
    known = observations.depth > 0
    fallback = float(np.median(observations.depth[known])) if known.any() else 1.0
    z = np.where(known, observations.depth, fallback) * np.exp(scene.log_depth_scale[observations.camera])
    local = scene.camera_model.unproject(observations.pixel) * z[:, None]
    xyz = transform_each(scene.T_world_camera[observations.camera], local)
    weight = np.where(known, 1.0, 1e-3) / z
    count = len(scene.points)
    total = np.bincount(observations.point, weight, count)
    sums = np.stack([np.bincount(observations.point, weight * xyz[:, k], count) for k in range(3)], axis=1)
    with np.errstate(invalid="ignore"):
        return np.where(total[:, None] > 0, sums / total[:, None], scene.points)


def retriangulated(fit: BAState, config: AdjustmentConfig = ADJUSTMENT) -> BAState:
    """The state with points triangulated where the angle suffices."""
    tracks = triangulate(fit.scene.T_world_camera, fit.scene.camera_model, fit.observations, len(fit.scene.points))
    with np.errstate(invalid="ignore"):
        sure = tracks.in_front & (tracks.angle_deg > config.min_angle_deg) & (tracks.rms_px < config.wrong_track_px)
    points = np.where(sure[:, None], tracks.points, fit.scene.points)
    return with_errors(replace(fit.scene, points=points), fit.observations, fit.feature)


def from_depth(scene: BAScene, observations: Observations, feature: NDArray[np.int64]) -> BAState:
    """State of ``scene`` with points by measured depths."""
    return with_errors(replace(scene, points=backprojected(scene, observations)), observations, feature)


def with_errors(scene: BAScene, observations: Observations, feature: NDArray[np.int64]) -> BAState:
    """State of ``scene`` with the observations' errors and depths."""
    xyz = transform_each(invert_pose(scene.T_world_camera)[observations.camera], scene.points[observations.point])
    errors = np.linalg.norm(scene.camera_model.project(xyz) - observations.pixel, axis=1)
    return BAState(scene, observations, feature, np.nan_to_num(errors, nan=np.inf), xyz[:, 2])


def without_outliers(fit: BAState, limit_px: float) -> BAState:
    """The state without observations of errors above ``limit_px`` and points with fewer than two left."""
    keep = fit.errors < limit_px
    views = np.bincount(fit.observations.point[keep], minlength=len(fit.scene.points))
    keep &= views[fit.observations.point] >= 2
    used, point = np.unique(fit.observations.point[keep], return_inverse=True)
    observations = replace(fit.observations.take(keep), point=point)
    scene = replace(fit.scene, points=fit.scene.points[used])
    return BAState(scene, observations, fit.feature[keep], fit.errors[keep], fit.depth[keep])


def first_pass_priors(
    focal: float, log_depth_scale_sigma: float, known_intrinsics: bool = False, config: AdjustmentConfig = ADJUSTMENT
) -> Priors:
    """Priors of the first pass, which starts with large errors."""
    return Priors(
        log_depth_scale_sigma=log_depth_scale_sigma,
        focal=focal,
        log_focal_sigma=config.log_focal_sigma,
        known_intrinsics=known_intrinsics,
        k1_sigma=config.k1_sigma,
        depth_sigma=config.depth_sigma,
    )


def variance(fit: BAState, config: AdjustmentConfig = ADJUSTMENT) -> float:
    """Variance of the observations in squared pixels, from the median error."""
    if not len(fit.errors):
        return 1.0
    # The median of the sum of two squared normal variables is 2 log 2.
    return max(float(np.median(np.square(fit.errors)) / (2 * np.log(2))), config.min_variance)


def second_pass_priors(priors: Priors, first: BAState, config: AdjustmentConfig = ADJUSTMENT) -> Priors:
    """Priors of the second pass, from those and the result of the first one."""
    known = priors.log_focal_sigma * config.second_pass_log_focal_sigma / config.log_focal_sigma
    focal = known * float(np.sqrt(config.independent / variance(first, config)))
    return replace(
        priors, depth_sigma=config.second_pass_depth_sigma, log_focal_sigma=min(focal, priors.log_focal_sigma)
    )


def network_motion_priors(
    T_world_camera: FloatArray, segment: Sequence[int] | None = None, config: AdjustmentConfig = ADJUSTMENT
) -> RelativePoses:
    """The network's poses relative to the next keyframe as weak priors, within segments [N]; None: one segment."""
    steps = range(len(T_world_camera) - 1)
    first = np.array([a for a in steps if segment is None or segment[a] == segment[a + 1]], np.intp)
    relative, sigma = invert_pose(T_world_camera)[first] @ T_world_camera[first + 1], np.ones(len(first))
    return RelativePoses(first, first + 1, relative, config.rotation_sigma * sigma, config.translation_sigma * sigma)


@dataclass(frozen=True)
class SolveOptions:
    """What an adjustment by rounds may change, and when it stops early."""

    free_focal: bool = True
    fixed: NDArray[np.bool_] | None = None
    """[N], cameras that stay; None: the first one."""
    should_stop: Callable[[], bool] | None = None
    """Asked now and then; True returns the state so far."""


def solve(
    fit: BAState,
    relative_poses: RelativePoses | None,
    rounds: Sequence[BARound] = STANDARD_ROUNDS,
    priors: Priors | None = None,
    options: SolveOptions | None = None,
) -> BAState:
    """Bundle adjustment in rounds, each with a smaller scale of the robust loss, and without outliers."""
    options, priors = options or SolveOptions(), priors or Priors(focal=fit.scene.camera_model.focal)
    should_stop = options.should_stop

    def stop(_: int, __: float) -> bool:
        return should_stop is not None and should_stop()

    for each in rounds:
        if should_stop and should_stop():
            break
        if each.drop_px is not None:
            fit = without_outliers(fit, each.drop_px)
        if not len(fit.observations):
            break
        focal, k1 = (free and not priors.known_intrinsics for free in (options.free_focal, each.free_k1))
        problem = Problem(fit.scene, fit.observations, relative_poses, options.fixed, focal, k1, priors=priors)
        result = adjust(
            problem, loss_scale=each.loss_px, iterations=each.iterations, tolerance=each.tolerance, should_stop=stop
        )
        fit = with_errors(result.scene, fit.observations, fit.feature)
    return fit
