"""Residuals of relative camera poses against those of another source, such as the network."""

from dataclasses import dataclass, replace

import numpy as np

from stream_recon.app.core import so3
from stream_recon.app.slam.ba.linear import off_diagonal
from stream_recon.app.slam.ba.problem import FloatArray, IntArray, ParameterBlocks, RelativePoses
from stream_recon.app.slam.ba.residuals import cauchy
from stream_recon.app.slam.ba.schur import Normal


@dataclass(frozen=True)
class RelativePosePriors:
    """Relative poses, with cameras in the adjustment's order."""

    first: IntArray  # [E]
    second: IntArray  # [E]
    rotation: FloatArray  # [E, 3, 3], from the second's axes to the first's
    translation: FloatArray  # [E, 3], the second's centre in the first's axes
    inverse_sigma: FloatArray  # [E, 6]
    loss_scale: float
    scaled: bool
    """Translations are in the unit of measured depths, whose scales are free."""

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
        return cls(rank[poses.first], rank[poses.second], T[:, :3, :3], T[:, :3, 3], 1 / sigma, loss_scale, scaled)

    def cost(self, variables: ParameterBlocks) -> float:
        """Half the sum of the losses."""
        return cauchy((self._residual(variables)[0] ** 2).sum(axis=1), self.loss_scale)

    def add_to(self, normal: Normal, variables: ParameterBlocks) -> Normal:
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
        if self.scaled and size > 6:
            J_first[:, 3:, 6] = J_second[:, 3:, 6] = -0.5 * moved
        factor = (weight * self.inverse_sigma)[:, :, None]
        return residual * weight, J_first * factor, J_second * factor

    def _residual(self, variables: ParameterBlocks) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Residuals [E, 6] in sigmas; relative rotations, translations in the measured unit, and the scale to it."""
        R_first = variables.rotation[self.first].transpose(0, 2, 1)
        relative = R_first @ variables.rotation[self.second]
        scale = np.ones(len(self.first))
        if self.scaled:
            scale = np.exp(-0.5 * (variables.log_scale[self.first] + variables.log_scale[self.second]))
        away = variables.centre[self.second] - variables.centre[self.first]
        moved = scale[:, None] * np.einsum("eij,ej->ei", R_first, away)
        rotation = so3.log(self.rotation.transpose(0, 2, 1) @ relative)
        return np.hstack([rotation, moved - self.translation]) * self.inverse_sigma, relative, moved, scale
