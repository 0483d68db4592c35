"""What is known before a refinement begins, beside what the network says."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.matching.features import Features

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class WarmStart:
    """Keyframes whose features are there already."""

    keyframes: list[int]
    """Positions among all frames, ascending."""
    features: list[Features]
    """Of the keyframes, in pixels of the refinement's working images."""


@dataclass(frozen=True)
class InitialPoses:
    """Frames where a stream has put them, in any world and unit: an adjustment that begins there has less to do."""

    T_world_camera: FloatArray  # [N, 4, 4]
    depth_scale: FloatArray  # [N], what the network's depth is multiplied with
    focal: float
    """In working pixels."""

    def beside(self, T_first: FloatArray, frames: list[int]) -> "InitialPoses":
        """Some of the frames: the first of them at a pose [4, 4], in a unit in which depth is usually the network's."""
        T, scale = self.T_world_camera[frames], self.depth_scale[frames]
        unit = float(np.median(scale))
        relative = invert_pose(T[0]) @ T
        relative[:, :3, 3] /= unit
        return InitialPoses(T_first @ relative, scale / unit, self.focal)
