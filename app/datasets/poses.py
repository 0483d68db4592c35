"""Readers of camera poses in the formats of data sets; all are camera-to-world with axes right, down, forward."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray, rotation_matrix
from stream_recon.app.datasets.text import number_rows, numbers, read_text
from stream_recon.configs.errors import InputError

ASSOCIATION_SECONDS = 0.02
"""Largest difference of associated timestamps, as in the tools of the TUM benchmark."""
ROTATION_TOLERANCE = 0.02
"""Largest deviation of singular values of a rotation from 1: files round their numbers."""
OPENCV_FROM_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])
"""From camera axes right, up, backward to right, down, forward; its own inverse."""


def rigid(pose: FloatArray, where: str) -> FloatArray:
    """A pose [3, 4] or [4, 4] as [4, 4] with the nearest rotation. Raises InputError: not a rigid transform."""
    u, singular, vt = np.linalg.svd(pose[:3, :3])
    if np.abs(singular - 1).max() > ROTATION_TOLERANCE or np.linalg.det(u @ vt) < 0:
        raise InputError(f"{where} is not a rotation and a translation")
    result = np.eye(4)
    result[:3, :3], result[:3, 3] = u @ vt, pose[:3, 3]
    return result


def pose_from_quaternion(translation: FloatArray, xyzw: FloatArray, where: str) -> FloatArray:
    """The pose [4, 4] of a translation [3] and a quaternion [4] of any length.

    Raises InputError: the quaternion is zero, or a number is not finite.
    """
    if not (1e-6 <= np.linalg.norm(xyzw) < np.inf and np.isfinite(translation).all()):
        raise InputError(f"{where}: the quaternion is zero, or a number is inf or nan")
    pose = np.eye(4)
    pose[:3, :3] = rotation_matrix(xyzw)
    pose[:3, 3] = translation
    return pose


def associate(times: FloatArray, others: FloatArray, within: float = ASSOCIATION_SECONDS) -> NDArray[np.intp]:
    """Positions [N] in ``others`` [M] (in any order) nearest to ``times`` [N]; -1 beyond ``within`` seconds."""
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
    """Poses with timestamps in any order."""

    times: FloatArray  # [N] seconds
    poses: FloatArray  # [N, 4, 4]

    def nearest(self, times: FloatArray) -> dict[int, FloatArray]:
        """The nearest pose to each of ``times`` within `ASSOCIATION_SECONDS`, if any, by position in ``times``."""
        matches = associate(times, self.times)
        return {i: self.poses[match] for i, match in enumerate(matches) if match >= 0}


def read_tum_trajectory(path: Path) -> Trajectory:
    """A trajectory of lines ``timestamp tx ty tz qx qy qz qw``; lines with inf or nan are lost frames, left out."""
    rows = number_rows(path, 8)
    rows = rows[np.isfinite(rows).all(axis=1)]
    poses = [pose_from_quaternion(row[1:4], row[4:8], f"{path}, timestamp {row[0]:.6f}") for row in rows]
    return Trajectory(rows[:, 0], np.array(poses, dtype=np.float64).reshape(-1, 4, 4))


def read_pose_lines(path: Path, columns: int) -> dict[int, FloatArray]:
    """Poses of lines with row-major matrices (12 or 16 numbers), by line number from 0.

    A blank line, or one with inf or nan, is a frame without a pose.
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
    """Poses of text files with a 4x4 matrix each; a missing file, or one with inf or nan, is a frame without a pose."""
    poses = {}
    for index, path in files.items():
        if path.is_file():
            values = np.array(numbers(read_text(path), str(path), 16)[:16], dtype=np.float64)
            if np.isfinite(values).all():
                poses[index] = rigid(values.reshape(4, 4), str(path))
    return poses
