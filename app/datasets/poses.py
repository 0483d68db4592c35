"""Camera poses out of the forms that data sets give them in. All are camera-to-world with axes right, down, forward."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray, rotation_matrix
from stream_recon.app.datasets.text import number_rows, numbers, read_text
from stream_recon.configs.errors import InputError

ASSOCIATION_SECONDS = 0.02
"""Largest difference of timestamps that belong together, as in the tools of the TUM benchmark."""
ROTATION_TOLERANCE = 0.02
"""How far a pose's axes may be from unit length."""
OPENCV_FROM_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])
"""Camera axes right, up, backward to right, down, forward; its own inverse."""


def rigid(pose: FloatArray, where: str) -> FloatArray:
    """A [3, 4] or [4, 4] pose as [4, 4] with the nearest rotation; files round theirs.

    Raises:
        InputError: not a rotation and a translation.
    """
    u, singular, vt = np.linalg.svd(pose[:3, :3])
    if np.abs(singular - 1).max() > ROTATION_TOLERANCE or np.linalg.det(u @ vt) < 0:
        raise InputError(f"{where} is not a rotation and a translation")
    result = np.eye(4)
    result[:3, :3], result[:3, 3] = u @ vt, pose[:3, 3]
    return result


def from_quaternion(translation: FloatArray, xyzw: FloatArray, where: str) -> FloatArray:
    """A pose [4, 4] of a position [3] and a quaternion [4] of any length.

    Raises:
        InputError: the quaternion is zero, or one of the numbers inf or nan.
    """
    if not (1e-6 <= np.linalg.norm(xyzw) < np.inf and np.isfinite(translation).all()):
        raise InputError(f"{where}: the quaternion is zero, or a number is inf or nan")
    pose = np.eye(4)
    pose[:3, :3] = rotation_matrix(xyzw)
    pose[:3, 3] = translation
    return pose


def associate(times: FloatArray, others: FloatArray, within: float = ASSOCIATION_SECONDS) -> NDArray[np.intp]:
    """For each of ``times`` [N] the position of the nearest of ``others`` [M] (any order); -1 beyond ``within``."""
    if not len(others):
        return np.full(len(times), -1, dtype=np.intp)
    order = np.argsort(others, kind="stable")
    ordered = others[order]
    after = np.clip(np.searchsorted(ordered, times), 0, len(others) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(ordered[before] - times) <= np.abs(ordered[after] - times), before, after)
    return np.where(np.abs(ordered[nearest] - times) < within, order[nearest], -1).astype(np.intp)


@dataclass(frozen=True)
class Trajectory:
    """Poses with timestamps, in any order."""

    times: FloatArray  # [N] seconds
    poses: FloatArray  # [N, 4, 4]

    def at(self, times: FloatArray) -> dict[int, FloatArray]:
        """The nearest pose within 0.02 s for each of ``times``, by position; those without one are missing."""
        matches = associate(times, self.times)
        return {i: self.poses[match] for i, match in enumerate(matches) if match >= 0}


def read_tum_trajectory(path: Path) -> Trajectory:
    """Lines ``timestamp tx ty tz qx qy qz qw``; lines with inf or nan are lost frames and left out."""
    rows = number_rows(path, 8)
    rows = rows[np.isfinite(rows).all(axis=1)]
    poses = [from_quaternion(row[1:4], row[4:8], f"{path}, timestamp {row[0]:.6f}") for row in rows]
    return Trajectory(rows[:, 0], np.array(poses, dtype=np.float64).reshape(-1, 4, 4))


def read_pose_lines(path: Path, columns: int) -> dict[int, FloatArray]:
    """A row-major matrix (12 or 16 numbers) a line, by line number from 0.

    A blank line, or one with inf or nan, is a frame without a pose; it keeps its number.
    """
    poses = {}
    for index, line in enumerate(read_text(path).splitlines()):
        where = f"{path} line {index + 1}"
        if not line.strip():
            continue
        values = np.array(numbers(line, where, columns)[:columns], dtype=np.float64)
        if np.isfinite(values).all():
            poses[index] = rigid(values.reshape(-1, 4), where)
    return poses


def read_pose_files(files: Mapping[int, Path]) -> dict[int, FloatArray]:
    """One text file with a 4x4 matrix for each frame; a missing file, or inf or nan in it, is a frame without pose."""
    poses = {}
    for index, path in files.items():
        if path.is_file():
            values = np.array(numbers(read_text(path), str(path), 16)[:16], dtype=np.float64)
            if np.isfinite(values).all():
                poses[index] = rigid(values.reshape(4, 4), str(path))
    return poses
