"""SO(3): exponential and logarithm of rotations, in arrays of any leading shape."""

import numpy as np

from stream_recon.app.core.transforms import FloatArray, quaternion_xyzw

_SMALL = 1e-4
"""Angle in rad below which Taylor series replace quotients of two vanishing numbers."""


def skew(v: FloatArray) -> FloatArray:
    """Matrices [..., 3, 3] with skew(v) @ x = cross(v, x)."""
    out = np.zeros((*v.shape, 3))
    out[..., 0, 1], out[..., 0, 2], out[..., 1, 2] = -v[..., 2], v[..., 1], -v[..., 0]
    out[..., 1, 0], out[..., 2, 0], out[..., 2, 1] = v[..., 2], -v[..., 1], v[..., 0]
    return out


def exp(v: FloatArray) -> FloatArray:
    """Rotations [..., 3, 3] of rotation vectors [..., 3] in rad (Rodrigues)."""
    square = np.sum(v * v, axis=-1)[..., None, None]
    angle = np.sqrt(square)
    small = angle < _SMALL
    safe = np.where(small, 1.0, angle)
    sine = np.where(small, 1 - square / 6, np.sin(safe) / safe)
    versine = np.where(small, 0.5 - square / 24, (1 - np.cos(safe)) / safe**2)
    K = skew(v)
    return np.asarray(np.eye(3) + sine * K + versine * (K @ K))


def log(R: FloatArray) -> FloatArray:
    """Rotation vectors [..., 3], with lengths in [0, pi] rad, of rotations [..., 3, 3]."""
    # The quaternion is accurate near 0 and near pi.
    q = quaternion_xyzw(R)
    sine = np.linalg.norm(q[..., :3], axis=-1, keepdims=True)
    small = sine < _SMALL
    factor = np.where(
        small, 2 / np.maximum(q[..., 3:], 0.5), 2 * np.arctan2(sine, q[..., 3:]) / np.where(small, 1.0, sine)
    )
    return np.asarray(factor * q[..., :3])


def nearest(R: FloatArray) -> FloatArray:
    """Orthonormal matrices [..., 3, 3] nearest to almost orthonormal ones, by SVD."""
    u, _, vt = np.linalg.svd(R)
    return np.asarray(u @ vt)


def inverse_right_jacobian(v: FloatArray) -> FloatArray:
    """Matrices J [..., 3, 3] with log(exp(v) @ exp(d)) = v + J @ d to first order in d (Sola et al. 2018, eq. 144)."""
    square = np.sum(v * v, axis=-1)[..., None, None]
    angle = np.sqrt(square)
    small = angle < _SMALL
    safe = np.where(small, 1.0, angle)
    quotient = np.where(small, 1 / 12, 1 / safe**2 - 0.5 / (safe * np.tan(safe / 2)))
    K = skew(v)
    return np.asarray(np.eye(3) + 0.5 * K + quotient * (K @ K))
