"""A view from which everything is to be seen."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TILT_DEG = 25.0
"""How far the view looks down."""
LEFT_OUT = 0.01
"""Share of the points, the furthest out on each side, that need not be in view."""
MARGIN = 1.05
LEAST_RIGHT = 0.3
"""Of the width right of the view's axis, what is taken to be free however narrow the page is."""


@dataclass(frozen=True)
class FreeView:
    """What of a page is free: tangents of the angles from the view's axis to its borders."""

    left: float
    right: float
    upright: float

    @classmethod
    def of_page(cls, fov: float, width: float, height: float, panel: float) -> "FreeView":
        """``fov``: from top to bottom, in radians; sizes in pixels, ``panel`` at the right."""
        upright = float(np.tan(fov / 2))
        aside = upright * width / height
        return cls(aside, aside * max(1 - 2 * panel / width, LEAST_RIGHT), upright)


def overview(
    points: NDArray[np.floating],
    path: NDArray[np.floating],
    forward: NDArray[np.floating],
    up: NDArray[np.floating],
    free: FreeView,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Position and target [3] of a view from behind and above that has nearly all ``points`` [N, 3], and the whole of
    ``path`` [M, 3], within the ``free`` part of the page.

    ``forward``: where the view looks, seen from above; ``up``: [3], of length one.
    """
    level = forward - (forward @ up) * up
    if np.linalg.norm(level) < 1e-6:  # straight up or down: any direction is as good
        level = np.cross(up, np.eye(3)[np.argmin(np.abs(up))])
    level = level / np.linalg.norm(level)
    tilt = np.radians(TILT_DEG)
    ahead = np.cos(tilt) * level - np.sin(tilt) * up
    right = np.cross(ahead, up)
    right /= np.linalg.norm(right)
    axes = np.stack([right, np.cross(right, ahead), ahead])
    seen = np.asarray(points, np.float64) @ axes.T
    if len(seen):
        low, high = np.quantile(seen, [LEFT_OUT, 1 - LEFT_OUT], axis=0)
        seen = seen[((seen >= low) & (seen <= high)).all(axis=1)]
    seen = np.concatenate([seen, np.asarray(path, np.float64) @ axes.T])
    centre = (seen.min(axis=0) + seen.max(axis=0)) / 2
    x, y, z = (seen - centre).T
    # Left of the middle there may be more room than right of it: the axis then lies right of the centre, by `shift` for
    # each unit of distance, and both borders are `half` from the centre.
    half, shift = (free.left + free.right) / 2, (free.left - free.right) / 2
    needed = [(-x - free.left * z) / half, (x - free.right * z) / half, np.abs(y) / free.upright - z]
    distance = MARGIN * max(float(np.max(need)) for need in needed)
    target = (centre + np.array([shift * distance, 0, 0])) @ axes
    return target - distance * ahead, target
