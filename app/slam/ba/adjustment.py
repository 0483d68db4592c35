"""Robust bundle adjustment of poses, points, shared intrinsics and depth scales.

Levenberg-Marquardt on reweighted least squares with a Cauchy loss, points eliminated (Triggs et al., Bundle Adjustment:
A Modern Synthesis, 2000). `robust_ba` calls it with falling loss scales.
"""

from dataclasses import dataclass, replace

import numpy as np

from stream_recon.app.core import so3
from stream_recon.app.slam.ba.levenberg import SingularError, StopTest, minimise
from stream_recon.app.slam.ba.linear import off_diagonal
from stream_recon.app.slam.ba.problem import (
    INTRINSICS_SIZE,
    BAScene,
    FloatArray,
    IntArray,
    ParameterBlocks,
    Problem,
    RelativePoses,
)
from stream_recon.app.slam.ba.residuals import (
    RobustLosses,
    cauchy,
    linearise_sightings,
    order_sightings,
    pixel_errors,
    sightings_cost,
    squared_errors,
)
from stream_recon.app.slam.ba.schur import Elimination, NormalEquations, damped_square


@dataclass(frozen=True)
class RelativePosePriors:
    """Residuals of relative poses against those of another source, with cameras in the adjustment's order."""

    first: IntArray  # [E]
    second: IntArray  # [E]
    rotation: FloatArray  # [E, 3, 3], from the second's axes to the first's
    translation: FloatArray  # [E, 3], the second's centre in the first's axes
    inverse_sigma: FloatArray  # [E, 6]
    loss_scale: float
    scaled: FloatArray  # [E]
    """1 where translations are in the unit of measured depths, whose scales are free; else 0."""

    @classmethod
    def from_poses(
        cls, poses: RelativePoses, rank: IntArray, depth: float, loss_scale: float, scaled: bool
    ) -> "RelativePosePriors":
        """``rank``: position of each camera in the adjustment; ``depth``: median of the scene, NaN if unknown."""
        T = np.asarray(poses.T_first_second, np.float64)
        length = np.linalg.norm(T[:, :3, 3], axis=1)
        least = poses.still * (depth if np.isfinite(depth) else max(float(np.median(length)), 1e-12))
        sigma = np.empty((len(T), 6))
        sigma[:, :3] = np.asarray(poses.rotation_sigma)[:, None]
        sigma[:, 3:] = (np.asarray(poses.translation_sigma) * np.maximum(length, least))[:, None]
        free = np.where(poses.is_in_scene_unit, 0.0, float(scaled))
        return cls(rank[poses.first], rank[poses.second], T[:, :3, :3], T[:, :3, 3], 1 / sigma, loss_scale, free)

    def cost(self, variables: ParameterBlocks) -> float:
        """Half the sum of the losses."""
        return cauchy((self._residual(variables)[0] ** 2).sum(axis=1), self.loss_scale)

    def add_to(self, normal: NormalEquations, variables: ParameterBlocks) -> NormalEquations:
        """The normal equations with these residuals; ``normal`` itself is changed, too."""
        free, size = normal.camera_gradient.shape
        residual, J_first, J_second = self.linearised(variables, size)
        for index, J in ((self.first, J_first), (self.second, J_second)):
            moves = index < free
            np.add.at(normal.camera, index[moves], np.einsum("eki,ekj->eij", J[moves], J[moves]))
            np.add.at(normal.camera_gradient, index[moves], np.einsum("eki,ek->ei", J[moves], residual[moves]))
        both = (self.first < free) & (self.second < free)
        i, j = self.first[both], self.second[both]
        blocks = np.einsum("eki,ekj->eij", J_first[both], J_second[both])
        return replace(normal, off_diagonal=off_diagonal(i, j, blocks, free))

    def linearised(self, variables: ParameterBlocks, size: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Weighted residuals [E, 6] and their derivatives [E, 6, size] by the first and second camera."""
        residual, relative, moved, scale = self._residual(variables)
        weight = 1 / np.sqrt(1 + (residual**2).sum(axis=1, keepdims=True) / self.loss_scale**2)
        J_first, J_second = np.zeros((2, len(residual), 6, size))
        by_rotation = so3.inverse_right_jacobian(residual[:, :3] / self.inverse_sigma[:, :3])
        J_second[:, :3, :3] = by_rotation
        J_first[:, :3, :3] = -by_rotation @ relative.transpose(0, 2, 1)
        inwards = variables.rotation[self.first].transpose(0, 2, 1) * scale[:, None, None]
        J_second[:, 3:, 3:6], J_first[:, 3:, 3:6] = inwards, -inwards
        J_first[:, 3:, :3] = so3.skew(moved)
        if size > 6:
            J_first[:, 3:, 6] = J_second[:, 3:, 6] = -0.5 * self.scaled[:, None] * moved
        factor = (weight * self.inverse_sigma)[:, :, None]
        return residual * weight, J_first * factor, J_second * factor

    def _residual(self, variables: ParameterBlocks) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Residuals [E, 6] in sigmas; relative rotations, translations in the measured unit, and the scale to it."""
        R_first = variables.rotation[self.first].transpose(0, 2, 1)
        relative = R_first @ variables.rotation[self.second]
        both = variables.log_scale[self.first] + variables.log_scale[self.second]
        scale = np.exp(-0.5 * self.scaled * both)
        away = variables.centre[self.second] - variables.centre[self.first]
        moved = scale[:, None] * np.einsum("eij,ej->ei", R_first, away)
        rotation = so3.log(self.rotation.transpose(0, 2, 1) @ relative)
        return np.hstack([rotation, moved - self.translation]) * self.inverse_sigma, relative, moved, scale


_UNDAMPED = 1e-9
"""Damping for information matrices: unconstrained unknowns stay solvable."""


@dataclass(frozen=True)
class Solution:
    """Result of an adjustment. Costs are half the sum of the losses over all residuals, priors included."""

    scene: BAScene
    cost_before: float
    cost: float
    iterations: int
    converged: bool
    """False if the iteration limit or ``should_stop`` ended it."""
    errors: FloatArray  # [O, 2]
    """Projection minus observation in pixels, in the order of the observations; NaN behind the camera."""
    depth: FloatArray  # [O]
    """Depths of the points along the z axes of their cameras."""

    @property
    def distances(self) -> FloatArray:
        """Reprojection errors [O] in pixels; inf behind the camera."""
        distances = np.linalg.norm(self.errors, axis=1)
        return np.where(np.isnan(distances), np.inf, distances)

    @property
    def rms_px(self) -> float:
        """RMS reprojection error over points in front of their cameras; NaN without any."""
        distances = self.distances[np.isfinite(self.distances)]
        return float(np.sqrt(np.mean(distances**2))) if len(distances) else float("nan")


@dataclass(frozen=True)
class IntrinsicsInformation:
    """Information of observations on the intrinsics after elimination of all else, without priors on the intrinsics.

    It assumes independent errors of one sigma: divide by ``variance``, and by a factor for their correlation.
    """

    matrix: FloatArray  # [INTRINSICS_SIZE, INTRINSICS_SIZE], of log focal, k1 and k2
    variance: float
    """Variance of the errors in units of their squared sigmas, from the median."""

    def log_focal(self, k1_sigma: float | None = None, k2_sigma: float | None = None) -> float:
        """Information on the log focal length; sigmas of the priors of k1 and k2, None where one is known."""
        sigmas = {index: sigma for index, sigma in ((1, k1_sigma), (2, k2_sigma)) if sigma is not None}
        if not sigmas:
            return max(float(self.matrix[0, 0]), 0.0)
        free = list(sigmas)
        own = self.matrix[np.ix_(free, free)] + np.diag([sigma**-2 for sigma in sigmas.values()])
        shared = self.matrix[0, free]
        return max(float(self.matrix[0, 0] - shared @ np.linalg.solve(own, shared)), 0.0)


def adjust(
    problem: Problem,
    loss_scale: float = 1.0,
    iterations: int = 50,
    tolerance: float = 1e-5,
    should_stop: StopTest | None = None,
) -> Solution:
    """Solution of least cost near the problem's scene.

    Args:
        loss_scale: of the Cauchy loss on reprojection errors, in sigmas of the observations (pixels without sigmas).
        tolerance: the search ends with a step that lowers the cost by a smaller share.
        should_stop: asked before each iteration; True returns the best scene so far.
    """
    model = _Adjustment(problem, loss_scale)
    end = minimise(model, model.start, iterations, tolerance, should_stop)
    errors, depth = np.empty((2, len(problem.observations))), np.empty(len(problem.observations))
    errors[:, model.sorted], depth[model.sorted] = pixel_errors(end.state, model.sightings)
    scene = end.state.to_scene(problem.scene, model.order, model.free)
    return Solution(scene, end.cost_before, end.cost, end.iterations, end.converged, errors.T, depth)


def intrinsics_information(problem: Problem, loss_scale: float = 1.0) -> IntrinsicsInformation:
    """Information at the problem's scene, ideally a solution. Zero where the scene is unconstrained."""
    model = _Adjustment(problem, loss_scale)
    normal = model.without_intrinsics_priors(model.start)
    try:
        information, _, _ = model.elimination.intrinsics_system(model.elimination.reduced(normal, _UNDAMPED))
    except SingularError:
        information = np.zeros((INTRINSICS_SIZE, INTRINSICS_SIZE))
    errors, _ = pixel_errors(model.start, model.sightings)
    square = squared_errors(errors, model.sightings)
    # The median of the sum of two squared normal variables is 2 log 2.
    variance = float(np.median(square) / (2 * np.log(2))) if len(square) else 1.0
    return IntrinsicsInformation(information, variance)


class _Adjustment:
    """`levenberg.LinearizedModel` over `ParameterBlocks`. Free cameras come first, observations in their order."""

    def __init__(self, problem: Problem, loss_scale: float) -> None:
        scene, priors = problem.scene, problem.priors
        count = len(scene.T_world_camera)
        fixed = np.zeros(count, bool) if problem.fixed is None else np.asarray(problem.fixed, bool).copy()
        if count and not fixed.any():
            fixed[0] = True
        self.order = np.argsort(fixed, kind="stable")
        self.free = int(count - fixed.sum())
        rank = np.empty(count, np.intp)
        rank[self.order] = np.arange(count)
        self.start = ParameterBlocks.from_scene(scene, self.order)
        self.sightings, self.sorted, depth = order_sightings(
            problem.observations, rank, self.start, scene.camera_model, problem.priors.depth_sigma
        )
        self.size = 7 if self.sightings.log_depth is not None else 6
        self.elimination = Elimination(self.sightings, self.free, len(scene.points))
        self.losses = RobustLosses(loss_scale, priors.depth_loss_scale)
        self.priors = priors
        self.free_scales = problem.free_depth_scales and self.size == 7
        self.free_intrinsics = np.flatnonzero(
            [problem.free_focal, problem.free_k1, problem.free_k1 and priors.k2_sigma is not None]
        )
        self.log_focal = None if priors.focal is None else float(np.log(priors.focal))
        self.relative: RelativePosePriors | None = None
        if problem.relative_poses is not None and len(problem.relative_poses.first):
            loss = priors.relative_loss_scale
            self.relative = RelativePosePriors.from_poses(problem.relative_poses, rank, depth, loss, self.free_scales)

    def cost(self, state: ParameterBlocks) -> float:
        cost = sightings_cost(state, self.sightings, self.losses)
        if self.relative is not None:
            cost += self.relative.cost(state)
        if self.free_scales:
            cost += 0.5 * float(((state.log_scale[: self.free] / self.priors.log_depth_scale_sigma) ** 2).sum())
        offsets, sigmas = self._intrinsics_priors(state)
        return cost + 0.5 * float(((offsets / sigmas) ** 2).sum())

    def linearise(self, state: ParameterBlocks) -> NormalEquations:
        normal = self.without_intrinsics_priors(state)
        offsets, sigmas = self._intrinsics_priors(state)
        normal.intrinsics[range(INTRINSICS_SIZE), range(INTRINSICS_SIZE)] += sigmas**-2
        normal.intrinsics_gradient[:] += offsets * sigmas**-2
        return normal

    def without_intrinsics_priors(self, state: ParameterBlocks) -> NormalEquations:
        normal = self.elimination.normal(linearise_sightings(state, self.sightings, self.losses))
        if self.relative is not None:
            normal = self.relative.add_to(normal, state)
        if self.size == 7:
            # Fixed scales are kept by an infinite prior.
            information = self.priors.log_depth_scale_sigma**-2 if self.free_scales else np.inf
            _hold_scales(normal, state.log_scale[: self.free], information)
        return normal

    def step(self, state: ParameterBlocks, linear: NormalEquations, damping: float) -> tuple[ParameterBlocks, float]:
        reduced = self.elimination.reduced(linear, damping)
        cameras, points, intrinsics = self.elimination.solve(reduced, self.free_intrinsics)
        slope = float((linear.camera_gradient * cameras).sum() + (linear.point_gradient * points).sum())
        slope += float(linear.intrinsics_gradient @ intrinsics)
        promised = 0.5 * (damping * damped_square(linear, cameras, points, intrinsics) - slope)
        return state.stepped(cameras, points, intrinsics), promised

    def _intrinsics_priors(self, state: ParameterBlocks) -> tuple[FloatArray, FloatArray]:
        """Deviations of log focal, k1 and k2 from their priors, and the priors' sigmas; inf without a prior."""
        focal = 0.0 if self.log_focal is None else state.log_focal - self.log_focal
        focal_sigma = np.inf if self.log_focal is None else self.priors.log_focal_sigma
        sigmas = np.array([focal_sigma, self.priors.k1_sigma, self.priors.k2_sigma or np.inf])
        return np.array([focal, state.camera_model.k1, state.camera_model.k2]), sigmas


def _hold_scales(normal: NormalEquations, log_scale: FloatArray, information: float) -> None:
    """Add the prior of depth scales about 0; infinite ``information`` removes them from the unknowns instead."""
    if np.isfinite(information):
        normal.camera[:, 6, 6] += information
        normal.camera_gradient[:, 6] += log_scale * information
        return
    normal.rows.camera[:, 6] = 0
    normal.camera[:, 6], normal.camera[:, :, 6], normal.camera[:, 6, 6] = 0, 0, 1
    normal.camera_gradient[:, 6] = 0
    normal.camera_intrinsics[:, 6] = 0
