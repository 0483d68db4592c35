"""Covariances of the poses of a solved adjustment, from how much its tracks disagree.

Errors are alike along a track and hardly between tracks. So the covariance is H^-1 M H^-1 with the information H of all
observations and the sum M of g g^T over the tracks' gradients g (Liang and Zeger, Biometrika 1986). The inverse of H
alone takes all observations for independent.
"""

import numpy as np
import scipy.sparse as sparse

from stream_recon.app.slam.ba.problem import FloatArray, IntArray, ParameterBlocks
from stream_recon.app.slam.ba.residuals import RobustLosses, linearise_sightings, order_sightings
from stream_recon.app.slam.ba.robust_ba import BAState, variance

LOSS = 8.0
"""Scale of the Cauchy loss in standard deviations of the observations: only outliers are to count less."""


def pose_covariances(fit: BAState, log_focal_sigma: float | None) -> tuple[FloatArray, FloatArray]:
    """Covariances [N, 6, 6] of poses: of a rotation in the camera's axes (rad), and of its centre along the world's.

    The first ones are relative to the first camera, which is exact, in the unit in which the centres are as far from it
    as they are on the whole: the unit has no error, either. The second ones are those of another image that is fitted
    to the camera's points, given these. ``log_focal_sigma``: of the focal length; None: it is known. Raises
    LinAlgError: tracks do not tie all cameras.
    """
    count, points, every = len(fit.scene.T_world_camera), len(fit.scene.points), np.arange(len(fit.observations))
    state = ParameterBlocks.from_scene(fit.scene, np.arange(count))
    sightings, _, _ = order_sightings(fit.observations, np.arange(count), state, fit.scene.camera_model)
    losses = RobustLosses(LOSS * float(np.sqrt(variance(fit))), 1.0)
    rows = linearise_sightings(state, sightings, losses)

    def matrix(values: FloatArray, first: IntArray, width: int) -> sparse.csr_matrix:
        """[2 O, width], with the values [2, D, O] of the observations from their ``first`` columns [O] on."""
        row, column = len(every) * np.arange(2)[:, None, None] + every, first + np.arange(values.shape[1])[:, None]
        places = [np.broadcast_to(each, values.shape).ravel() for each in (row, column)]
        return sparse.csr_matrix((values.ravel(), places), shape=(2 * len(every), width))

    size = 6 * count + 1
    by_camera = matrix(rows.camera, 6 * sightings.camera, size)
    if log_focal_sigma is not None:
        by_camera = by_camera + matrix(rows.intrinsics[:, :1], np.full(len(every), size - 1), size)
    V = np.zeros((points, 3, 3))
    np.add.at(V, sightings.point, np.einsum("rio,rjo->oij", rows.point, rows.point))
    V += (1e-9 * np.trace(V, axis1=1, axis2=2) + np.finfo(float).tiny)[:, None, None] * np.eye(3)
    root = np.linalg.inv(np.linalg.cholesky(V))[sightings.point]
    by_point = matrix(np.einsum("oij,rjo->rio", root, rows.point), 3 * sightings.point, 3 * points)
    # Without what the points take up of residuals and derivatives.
    residual = rows.residual.ravel() - by_point @ (by_point.T @ rows.residual.ravel())
    Y = by_camera.T @ by_point
    own = (by_camera.T @ by_camera).toarray()
    gradient = by_camera.T @ matrix(residual.reshape(2, 1, -1), sightings.point, points)
    if points <= size:
        raise np.linalg.LinAlgError("fewer tracks than unknowns")
    # The solution has taken up a part of the errors.
    H, M = own - (Y @ Y.T).toarray(), (gradient @ gradient.T).toarray() * points / (points - size)
    for each in (H, M):
        each[-1, -1] += 1.0 if log_focal_sigma is None else log_focal_sigma**-2
    # Without the first camera, and without growth of the whole about it, which changes no residual.
    growth = np.append(np.hstack([np.zeros((count, 3)), state.centre - state.centre[0]]), 0.0)
    growth /= np.linalg.norm(growth)
    held = H[6:, 6:] + np.trace(H) / size * np.outer(growth, growth)[6:, 6:]
    inverse = np.zeros((size, size))
    inverse[6:, 6:] = np.linalg.inv(held)
    inverse -= np.outer(growth, growth @ inverse)
    k, noise = np.arange(count), (inverse * M).sum() / (size - 8)
    C, own = (each[:-1, :-1].reshape(count, 6, count, 6)[k, :, k] for each in (inverse @ M @ inverse.T, own))
    return C, noise * np.linalg.inv(own)
