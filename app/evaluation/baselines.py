"""Baselines of an evaluation: guesses that do not use the images.

They put a metric into proportion: a straight line has a small ATE on a forward drive, and a constant depth a fair
AbsRel in a room.
"""

import numpy as np

from stream_recon.app.core.transforms import FloatArray

RAMP_TOP, RAMP_BOTTOM = 2.0, 0.7
"""Relative depth of the first and last image row: in a level view of a room the wall is farther than the floor."""


def static(frames: int) -> FloatArray:
    """Poses [frames, 4, 4] of a camera that does not move."""
    return np.tile(np.eye(4), (frames, 1, 1))


def straight_line(frames: int) -> FloatArray:
    """Poses [frames, 4, 4] of a camera that moves forward by 1 a frame, without rotation."""
    poses = static(frames)
    poses[:, 2, 3] = np.arange(frames)
    return poses


def constant_velocity(frames: int, step: FloatArray) -> FloatArray:
    """Poses [frames, 4, 4] with the relative pose ``step`` [4, 4] from each frame to the next."""
    poses = static(frames)
    for i in range(1, frames):
        poses[i] = poses[i - 1] @ step
    return poses


def ramp_depth(height: int) -> FloatArray:
    """Depth of each image row [height], far at the top and near at the bottom."""
    return np.linspace(RAMP_TOP, RAMP_BOTTOM, height)
