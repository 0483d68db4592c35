"""Rigid transforms and similarities: composition, inversion, application, fitting and conversion.

Poses are rigid [..., 4, 4] matrices named ``T_to_from``. Quaternions are ordered x, y, z, w, as in TUM files and scipy.
All is float64 except `transform_points`, which is for clouds.
"""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

RIGID_TOLERANCE = 1e-3
"""Largest deviation of a rotation from orthonormal; float32 rounding is a thousand times smaller."""


@dataclass(frozen=True)
class Similarity:
    """Similarity y = scale * rotation @ x + translation; rigid if ``scale`` is 1.

    ``a @ b`` applies ``b`` first; ``a.inverse()`` is the inverse of ``a``.
    """

    scale: float
    rotation: FloatArray  # [3, 3], proper: determinant 1
    translation: FloatArray  # [3]

    @classmethod
    def identity(cls) -> "Similarity":
        return cls.of_scale(1.0)

    @classmethod
    def of_scale(cls, scale: float) -> "Similarity":
        """Change of scale alone."""
        return cls(scale, np.eye(3), np.zeros(3))

    @classmethod
    def of_matrix(cls, matrix: NDArray[np.floating]) -> "Similarity":
        """Similarity of a matrix [3, 4] or [4, 4]. Raises ValueError if it mirrors, shears or flattens."""
        values = np.asarray(matrix, np.float64)
        scale = float(np.cbrt(np.linalg.det(values[:3, :3])))
        if not scale > 0:
            raise ValueError("not a similarity: it mirrors or flattens space")
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = values[:3, :3] / scale, values[:3, 3]
        if not is_rigid(T):
            raise ValueError("not a similarity: it does not keep angles")
        return cls(scale, T[:3, :3], T[:3, 3])

    @property
    def matrix(self) -> FloatArray:
        """Matrix [4, 4] for homogeneous points."""
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = self.scale * self.rotation, self.translation
        return T

    def __matmul__(self, inner: "Similarity") -> "Similarity":
        return Similarity(self.scale * inner.scale, self.rotation @ inner.rotation, self.apply(inner.translation))

    def inverse(self) -> "Similarity":
        """Raises ZeroDivisionError for scale 0, see `align`."""
        scale = 1.0 / self.scale
        return Similarity(scale, self.rotation.T, -scale * (self.rotation.T @ self.translation))

    def apply(self, points: FloatArray) -> FloatArray:
        """Transform points [..., 3]."""
        return np.asarray(self.scale * points @ self.rotation.T + self.translation)

    def move_pose(self, T_world_camera: FloatArray) -> FloatArray:
        """Rigid poses [..., 4, 4] in the new coordinate frame. Their depth has to be scaled separately."""
        T = np.zeros_like(T_world_camera)
        T[..., :3, :3] = self.rotation @ T_world_camera[..., :3, :3]
        T[..., :3, 3] = self.apply(T_world_camera[..., :3, 3])
        T[..., 3, 3] = 1.0
        return T


def align(source: FloatArray, target: FloatArray, weights: FloatArray | None = None) -> Similarity:
    """Least-squares similarity from points [N, 3] to points [N, 3] (Umeyama, PAMI 1991); ``weights``: of each [N].

    Coinciding source points get scale 0.
    """
    if weights is not None:
        # A weight counts like that number of equal points.
        share = weights / weights.mean()
        source_mean, target_mean = (share @ source) / len(source), (share @ target) / len(source)
        root = np.sqrt(share)[:, None]
        source_centred, target_centred = root * (source - source_mean), root * (target - target_mean)
    else:
        source_mean, target_mean = source.mean(axis=0), target.mean(axis=0)
        source_centred, target_centred = source - source_mean, target - target_mean
    u, singular, vt = np.linalg.svd(target_centred.T @ source_centred / len(source))
    signs = np.array([1.0, 1.0, np.sign(np.linalg.det(u) * np.linalg.det(vt))])
    rotation = (u * signs) @ vt
    variance = float(np.square(source_centred).sum() / len(source))
    extent = float(np.abs(source).max())
    # A variance at the level of rounding counts as zero: dividing by it would amplify noise.
    degenerate = variance <= (1e-12 * max(extent, 1e-12)) ** 2
    scale = 0.0 if degenerate else float(singular @ signs) / variance
    return Similarity(scale, rotation, target_mean - scale * rotation @ source_mean)


def align_poses(source: FloatArray, target: FloatArray, scale: float) -> Similarity:
    """Similarity of given ``scale`` from poses [N, 4, 4] to poses of the same cameras in another coordinate frame.

    The rotation is the mean of the cameras' relative rotations, the translation the median of the remaining offsets.
    Unlike `align` it needs no motion and tolerates a few outliers in position.
    """
    rotation = mean_rotation(target[:, :3, :3] @ np.swapaxes(source[:, :3, :3], 1, 2))
    translation = np.median(target[:, :3, 3] - scale * source[:, :3, 3] @ rotation.T, axis=0)
    return Similarity(scale, rotation, translation)


def mean_rotation(rotations: FloatArray) -> FloatArray:
    """Chordal mean [3, 3] of rotations [N, 3, 3], by SVD."""
    u, _, vt = np.linalg.svd(rotations.sum(axis=0))
    mean: FloatArray = (u * np.array([1.0, 1.0, np.linalg.det(u) * np.linalg.det(vt)])) @ vt
    return mean


def is_rigid(T: NDArray[np.floating], tolerance: float = RIGID_TOLERANCE) -> bool:
    """Whether all matrices [..., 4, 4] are rigid transforms and finite."""
    pose = np.asarray(T, np.float64)
    R = pose[..., :3, :3]
    deviation = np.abs(np.swapaxes(R, -1, -2) @ R - np.eye(3))
    last_row = np.array([0.0, 0.0, 0.0, 1.0])
    return bool(
        np.isfinite(pose).all()
        and (deviation <= tolerance).all()
        and (np.linalg.det(R) > 0).all()
        and (np.abs(pose[..., 3, :] - last_row) <= tolerance).all()
    )


def invert_pose(T: NDArray[np.floating]) -> FloatArray:
    """Inverses of rigid transforms [..., 4, 4]; wrong for transforms with scale."""
    pose = np.asarray(T, np.float64)
    inverse = np.zeros_like(pose)
    R_inverse = np.swapaxes(pose[..., :3, :3], -1, -2)
    inverse[..., :3, :3] = R_inverse
    inverse[..., :3, 3] = -np.einsum("...ij,...j->...i", R_inverse, pose[..., :3, 3])
    inverse[..., 3, 3] = 1.0
    return inverse


def transform_each(T: FloatArray, points: FloatArray) -> FloatArray:
    """Points [N, 3], each transformed by its own matrix [N, 4, 4]."""
    return np.asarray(np.einsum("nij,nj->ni", T[:, :3, :3], points) + T[:, :3, 3])


def transform_points(T: NDArray[np.floating], xyz: NDArray[np.floating]) -> NDArray[np.float32]:
    """Transform points [N, 3] by a rigid or similarity matrix [3, 4] or [4, 4], in float32."""
    if not len(xyz):
        return np.empty((0, 3), np.float32)
    # numpy's product of such thin matrices takes twenty times as long.
    points = np.ascontiguousarray(xyz, np.float32)[:, None]
    moved: NDArray[np.float32] = cv2.transform(points, np.asarray(T[:3], np.float32)).reshape(-1, 3)
    return moved


def rotation_angle_deg(R: NDArray[np.floating]) -> FloatArray:
    """Angles [...] in degrees of rotations [..., 3, 3]; unlike arccos of the trace accurate near 0 and 180."""
    m = np.asarray(R, np.float64)
    axis = np.stack([m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]], axis=-1)
    sine, cosine = np.linalg.norm(axis, axis=-1), np.trace(m, axis1=-2, axis2=-1) - 1.0
    angle: FloatArray = np.degrees(np.arctan2(sine, cosine))
    return angle


def quaternion_xyzw(R: NDArray[np.floating]) -> FloatArray:
    """Unit quaternions [..., 4] (x, y, z, w; w >= 0) of rotations [..., 3, 3].

    Of the four solutions the one with the largest divisor is used (Shepperd 1978).
    """
    m = np.asarray(R, np.float64)
    xx, yy, zz = m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]
    # Outer product 4 q q^T in terms of the matrix; the row with the largest diagonal is the best conditioned.
    outer = np.empty((*m.shape[:-2], 4, 4))
    outer[..., 0, 0], outer[..., 1, 1] = 1 + xx - yy - zz, 1 - xx + yy - zz
    outer[..., 2, 2], outer[..., 3, 3] = 1 - xx - yy + zz, 1 + xx + yy + zz
    for a, b, c in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):
        outer[..., a, b] = outer[..., b, a] = m[..., a, b] + m[..., b, a]
        # (c + 2) % 3 and (c + 1) % 3 are the other rows, in the order that gives +sin.
        outer[..., c, 3] = outer[..., 3, c] = m[..., (c + 2) % 3, (c + 1) % 3] - m[..., (c + 1) % 3, (c + 2) % 3]
    best = np.argmax(np.diagonal(outer, axis1=-2, axis2=-1), axis=-1)
    q = np.take_along_axis(outer, best[..., None, None], axis=-2)[..., 0, :]
    q /= np.linalg.norm(q, axis=-1, keepdims=True)
    signed: FloatArray = np.where(q[..., 3:] < 0, -q, q)
    return signed


def rotation_matrix(quaternion: NDArray[np.floating]) -> FloatArray:
    """Rotations [..., 3, 3] of quaternions [..., 4] (x, y, z, w) of any length except zero."""
    q = np.asarray(quaternion, np.float64)
    x, y, z, w = np.moveaxis(q / np.linalg.norm(q, axis=-1, keepdims=True), -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


MIN_PLANE_WEIGHT = 0.02
"""Least second eigenvalue of the cameras' x axes for them to span a plane: a deviation of heading of 8 degrees."""


def up_direction(R_world_camera: NDArray[np.floating]) -> FloatArray:
    """Up direction of the world as a unit vector [3], from rotations [n, 3, 3] of one or more cameras.

    A level camera's x axis is horizontal at any heading, so up is the normal of the plane of all x axes. Where the
    cameras hardly rotated about it, that plane is undefined, and up is the mean of the cameras' up axes.
    """
    axes = np.asarray(R_world_camera, np.float64)
    mean = -axes[:, :, 1].mean(axis=0)
    mean = mean / max(float(np.linalg.norm(mean)), 1e-9)
    weights, directions = np.linalg.eigh(axes[:, :, 0].T @ axes[:, :, 0] / len(axes))
    normal = directions[:, 0] * (1.0 if directions[:, 0] @ mean >= 0 else -1.0)
    is_plane = weights[1] > MIN_PLANE_WEIGHT and weights[1] > 4 * weights[0] and normal @ mean > 0.5
    return np.asarray(normal if is_plane else mean)


def upright_axes(up: FloatArray, forward: FloatArray) -> FloatArray:
    """Rotation [3, 3] from the world to axes x right, y down, z forward of an upright camera.

    ``forward``: its approximate direction; not parallel to ``up``.
    """
    down = -up / np.linalg.norm(up)
    ahead = forward - (forward @ down) * down
    if np.linalg.norm(ahead) < 1e-6 * max(float(np.linalg.norm(forward)), 1e-12):
        ahead = np.cross(down, np.eye(3)[np.argmin(np.abs(down))])
    ahead = ahead / np.linalg.norm(ahead)
    return np.stack([np.cross(down, ahead), down, ahead])


def level_axes(up: FloatArray, forward: FloatArray) -> FloatArray:
    """Rotation [3, 3] from the world to level axes x right, y up, z backward of a camera that looks ``forward``.

    Of the first camera they are the axes of the program's GLB files.
    """
    return np.asarray(np.diag([1.0, -1.0, -1.0]) @ upright_axes(up, forward))
