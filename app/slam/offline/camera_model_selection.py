"""Choice of the camera model: without distortion, with one or two radial terms, or fish-eye.

Each lens is fitted to three quarters of the tracks of some keyframes. The others are triangulated by the fitted
cameras, and their reprojection errors decide: a lens with more terms is taken where a paired test over the keyframes is
sure that it is better. Errors of the tracks that were fitted would always favour more terms.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.ba.adjustment import intrinsics_information
from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.ba.problem import BAScene, FloatArray, Mask, Priors, Problem, RelativePoses
from stream_recon.app.slam.ba.robust_ba import ADJUSTMENT, AdjustmentConfig, BARound, BAState, SolveOptions
from stream_recon.app.slam.ba.triangulation import triangulate
from stream_recon.app.slam.matching.matching import Matches
from stream_recon.app.slam.offline import hierarchical_ba

Held = Mapping[tuple[int, int], Matches]
"""Matches of held-out features by pair of keyframes."""

COARSE_ROUNDS = (BARound(30, None), BARound(10, 60), BARound(4, 20), BARound(2, 8, 20))
"""Rounds with the lens fixed: far from the solution, the focal length would follow errors of the poses."""
FINE_ROUNDS = (
    BARound(4, 16, 20, free_k1=True, tolerance=1e-4),
    BARound(2, 12, 20, free_k1=True, tolerance=1e-4),
    BARound(1, 4, 60, free_k1=True, tolerance=1e-5),
)
"""Rounds with the lens free, to convergence: it exchanges with the shape of the scene along a narrow valley."""


@dataclass(frozen=True)
class DistortionConfig:
    """How distortion is found, and when it is believed."""

    log_focal_sigma: float = 0.5
    """Of the log of the network's focal length: wide, since a lens that bends lines misleads the network."""
    perspective_sigmas: tuple[float, float] = (0.2, 0.1)
    fisheye_sigmas: tuple[float, float] = (0.05, 0.02)
    """Of k1 and k2, about 0."""
    coarse_rounds: tuple[BARound, ...] = COARSE_ROUNDS
    fine_rounds: tuple[BARound, ...] = FINE_ROUNDS
    held_out_every: int = 4
    """Every 4th track is excluded from the fits, to test them."""
    test_px: float = 2.0
    """Reprojection error with loss 1/2; the loss is bounded by 1."""
    max_observations: int = 4000
    """Observations that are fitted; bounds the time."""
    min_observations: int = 400
    """Least number of observations from which a lens is chosen."""
    sure: float = 3.0
    """Standard errors by which a lens with more terms must be better."""
    min_gain: float = 0.01
    """Least relative gain; a smaller one is not worth another term."""
    outlying: float = 2.0
    """Multiple of the median absolute difference of losses to which the differences are clipped."""
    correlated: int = 2
    """Keyframes whose losses count as one sample, since they share tracks."""
    max_focal_error: float = 0.1
    """Relative standard deviation of the focal length from which the images do not measure it."""
    max_keyframes: int = 200
    """Keyframes by which the error of the focal length is estimated; bounds the time."""
    adjustment: AdjustmentConfig = ADJUSTMENT


DISTORTION = DistortionConfig()


@dataclass(frozen=True)
class CameraModelFit:
    """Cameras fitted with one lens, and their test."""

    state: BAState
    priors: Priors
    losses: FloatArray  # [N], of each keyframe's held-out observations
    config: DistortionConfig = DISTORTION

    def is_better(self, other: "CameraModelFit") -> bool:
        """Whether the losses are lower by more than chance."""
        gain, config = other.losses - self.losses, self.config
        # A few keyframes whose poses went astray must not decide.
        most = config.outlying * float(np.median(np.abs(gain)))
        gain = gain.clip(-most, most)
        error = np.inf
        if len(gain) > config.correlated:
            error = float(gain.std(ddof=1)) * np.sqrt(config.correlated / len(gain))
        return bool(gain.mean() > max(config.sure * error, config.min_gain * other.losses.mean()))


def best_camera_model(
    start: BAState,
    motions: RelativePoses | None,
    priors: Priors,
    size: tuple[int, int],
    config: DistortionConfig = DISTORTION,
) -> CameraModelFit | None:
    """The fit of the lens that the test prefers; None with few observations or where no fit succeeds.

    ``start``: state before adjustment, with a lens without distortion; ``size``: width and height of the working image.
    """
    if len(start.observations) < config.min_observations:
        return None
    try:
        return _CameraModelSelection(start, motions, priors, size, config).best()
    except (SingularError, np.linalg.LinAlgError):
        return None


class _CameraModelSelection:
    """Fits and tests of lenses by the tracks of some keyframes."""

    def __init__(
        self,
        start: BAState,
        motions: RelativePoses | None,
        priors: Priors,
        size: tuple[int, int],
        config: DistortionConfig,
    ) -> None:
        point = start.observations.point
        held_out = point % config.held_out_every == 0
        # Long tracks say more than short ones.
        order = np.argsort(-np.bincount(point[~held_out], minlength=len(start.scene.points)), kind="stable")
        observations = np.bincount(point[~held_out], minlength=len(order))[order]
        fitted = np.zeros(len(order), bool)
        fitted[order[np.cumsum(observations) <= config.max_observations]] = True
        self._start, self._test = _tracks(start, ~held_out & fitted[point]), _tracks(start, held_out)
        self._config = config
        self._motions, self._priors, self._size = motions, replace(priors, log_focal_sigma=config.log_focal_sigma), size

    def best(self) -> CameraModelFit:
        plain = self._start.scene.camera_model
        coarse = self._coarse(plain)
        best = self._fitted(coarse, plain)
        one = self._fitted(best.state.scene, plain, terms=1)
        if not one.is_better(best):
            # A wrong lens may have led to a wrong motion.
            one = self._fitted(coarse, plain, terms=1)
        if not one.is_better(best):
            # One term of a plain lens is too far from a fish-eye lens where the motion follows the lens, as in turns.
            one = self._fisheye
        if not one.is_better(best):
            return best
        # The simpler lens, too, may fit better from there.
        again = self._fitted(one.state.scene, plain)
        best = again if again.losses.mean() < best.losses.mean() else best
        two = self._fitted(one.state.scene, one.state.scene.camera_model, terms=2)
        wide = min(one, two, key=_mean_loss).state.scene
        fisheye = replace(plain, fisheye=True, focal=wide.camera_model.focal)
        fisheye_fits = self._fitted(wide, fisheye, terms=1), self._fisheye
        # Two terms come last: a fish-eye lens with one explains as much with less.
        for other in (one, min(fisheye_fits, key=_mean_loss), two):
            if other.state.scene.camera_model.is_invertible(self._size) and other.is_better(best):
                best = other
        return best

    @cached_property
    def _fisheye(self) -> CameraModelFit:
        fisheye = replace(self._start.scene.camera_model, fisheye=True)
        return self._fitted(self._coarse(fisheye), fisheye, terms=1)

    def _coarse(self, camera_model: CameraModel) -> BAScene:
        """The scene adjusted with a fixed camera model."""
        start = self._start
        scene = replace(start.scene, camera_model=camera_model)
        begin = robust_ba.with_errors(scene, start.observations, start.feature)
        fixed = SolveOptions(free_focal=False)
        return robust_ba.solve(begin, self._motions, self._config.coarse_rounds, self._priors, fixed).scene

    def _fitted(self, begin: BAScene, camera_model: CameraModel, terms: int = 0) -> CameraModelFit:
        """Fit with free radial ``terms``; 0: under the priors of the start."""
        observations, feature, priors = self._start.observations, self._start.feature, self._priors
        if terms:
            priors = with_camera_model(priors, camera_model, terms, self._config)
        scene = replace(begin, camera_model=camera_model, points=self._start.scene.points)
        state = robust_ba.retriangulated(robust_ba.from_depth(scene, observations, feature))
        fitted = robust_ba.solve(state, self._motions, self._config.fine_rounds, priors)
        return CameraModelFit(fitted, priors, self._losses(fitted.scene), self._config)

    def _losses(self, scene: BAScene) -> FloatArray:
        observations, count = replace(self._test.observations, depth=None), len(scene.T_world_camera)
        by_depth = robust_ba.backprojected(replace(scene, points=self._test.scene.points), self._test.observations)
        T, test_px = scene.T_world_camera, self._config.test_px
        tracks = triangulate(T, scene.camera_model, observations, len(by_depth), test_px, 10, otherwise=by_depth)
        errors = robust_ba.with_errors(replace(scene, points=tracks.points), observations, self._test.feature).errors
        squared = np.square(np.minimum(errors, 1e3))
        total = np.bincount(observations.camera, squared / (squared + test_px**2), count)
        return np.asarray(total / np.maximum(np.bincount(observations.camera, minlength=count), 1))


def _mean_loss(fit: CameraModelFit) -> float:
    return float(fit.losses.mean())


def with_camera_model(
    priors: Priors, camera_model: CameraModel, terms: int, config: DistortionConfig = DISTORTION
) -> Priors:
    """Priors under which the first ``terms`` radial terms of a lens are free."""
    k1, k2 = config.fisheye_sigmas if camera_model.fisheye else config.perspective_sigmas
    return replace(priors, k1_sigma=k1, k2_sigma=k2 if terms > 1 else None, log_focal_sigma=config.log_focal_sigma)


def focal_error(fit: BAState, priors: Priors, config: DistortionConfig = DISTORTION) -> float | None:
    """Relative standard deviation of the focal length by the observations alone; None where they say nothing."""
    if len(fit.scene.T_world_camera) > config.max_keyframes:
        fit = hierarchical_ba.subset(fit, np.arange(config.max_keyframes))
    if not len(fit.observations):
        return None
    known = intrinsics_information(Problem(fit.scene, fit.observations, priors=priors))
    sigmas = (None, None) if fit.scene.camera_model.is_straight else (priors.k1_sigma, priors.k2_sigma)
    information = config.adjustment.independent * known.log_focal(*sigmas)
    if information <= 0:
        return None
    return float(np.sqrt(max(known.variance, config.adjustment.min_variance) / information))


def _tracks(fit: BAState, kept: Mask) -> BAState:
    """The state with some of its observations, and the points that they see."""
    used, point = np.unique(fit.observations.point[kept], return_inverse=True)
    scene = replace(fit.scene, points=fit.scene.points[used])
    observations = replace(fit.observations.take(kept), point=point)
    return BAState(scene, observations, fit.feature[kept], fit.errors[kept], fit.depth[kept])
