"""The opening view: from behind and above what the cameras looked at, in the part of the window that is free."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TILT_DEG = 25.0
"""Angle by which the opening view looks down."""
ROUND_TILT_DEG = 38.0
"""The same where the cameras looked all around: over the walls that face away, which are not drawn."""
ROUND = 0.35
"""Length of the mean viewing direction below which the cameras looked all around."""
DIRECTIONS = 24
"""Directions that the opening view is chosen from."""
OUTLIER_SHARE = 0.04
"""Share of the points on each side that may lie outside the opening view."""
MARGIN = 1.05
"""Factor of the opening view's distance, which leaves a border around the points."""
MIN_FREE_RIGHT = 0.3
"""Share of the width to the right of the axis that counts as free in a narrow window."""
MAX_TRIED = 64
"""Most cameras of the path among which the view from inside is chosen."""
MAX_PATH = 2000
"""Camera positions that the opening view takes in."""
PANEL_WIDTH = 335
"""Width of viser's panel in pixels."""
PANEL_SHARE = 0.2
"""Least share of a window's width that the panel takes: on dense displays a pixel of it has several of the canvas."""
UPRIGHT = 0.9
"""Aspect below which a window counts as a phone's: its panel is a bar below."""
PHONE_SHARE = 0.85
"""Share of a phone's width for what cameras looked at, so that what is around it fits, too."""
BAR_SHARE = 0.07
"""Share of a phone's height that the bar takes."""
USUAL_WINDOW = (1280, 720)
"""Assumed window size in pixels of clients that are not connected yet."""
UNMOVED = 1e-3
"""Distance, as a share of the view's distance, below which a client's camera is where the program put it."""


@dataclass(frozen=True)
class FreeView:
    """Part of the window that the panel leaves free: tangents of the angles from the view's axis to its borders."""

    left: float
    right: float
    upright: float

    @classmethod
    def of_window(cls, fov: float, width: float, height: float) -> "FreeView":
        """``fov``: vertical field of view in radians; sizes in pixels, with the panel at the right or a bar below."""
        upright = float(np.tan(fov / 2))
        sideways = upright * width / height
        if width < UPRIGHT * height:
            return cls(PHONE_SHARE * sideways, PHONE_SHARE * sideways, upright * (1 - 2 * BAR_SHARE))
        panel = max(PANEL_WIDTH / width, PANEL_SHARE)
        return cls(sideways, sideways * max(1 - 2 * panel, MIN_FREE_RIGHT), upright)


def overview(
    points: NDArray[np.floating],
    path: NDArray[np.floating],
    forward: NDArray[np.floating],
    up: NDArray[np.floating],
    free: FreeView,
    tilt_deg: float = TILT_DEG,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Position and target [3] of a view from behind and above, with nearly all points [N, 3] in the ``free`` part.

    The camera positions ``path`` [M, 3] are all in view. ``forward``: horizontal direction of the view; ``up``: unit
    vector; ``tilt_deg``: angle by which it looks down.
    """
    level = _level(forward, up)
    tilt = np.radians(tilt_deg)
    ahead = np.cos(tilt) * level - np.sin(tilt) * up
    right = np.cross(ahead, up)
    right /= np.linalg.norm(right)
    axes = np.stack([right, np.cross(right, ahead), ahead])
    local = np.asarray(points, np.float64) @ axes.T
    if len(local):
        low, high = np.quantile(local, [OUTLIER_SHARE, 1 - OUTLIER_SHARE], axis=0)
        local = local[((local >= low) & (local <= high)).all(axis=1)]
    local = np.concatenate([local, np.asarray(path, np.float64) @ axes.T])
    centre = (local.min(axis=0) + local.max(axis=0)) / 2
    x, y, z = (local - centre).T
    # The panel is at the right, so the axis lies right of the points' centre, by `offset` per unit of distance, and
    # both borders are `half` from the centre.
    half, offset = (free.left + free.right) / 2, (free.left - free.right) / 2
    needed = [(-x - free.left * z) / half, (x - free.right * z) / half, np.abs(y) / free.upright - z]
    distance = MARGIN * max(float(np.max(need)) for need in needed)
    distance = max(distance, 1e-6)
    target = (centre + np.array([offset * distance, 0, 0])) @ axes
    return target - distance * ahead, target


def opening_direction(
    rays: NDArray[np.floating], first: NDArray[np.floating], up: NDArray[np.floating]
) -> tuple[NDArray[np.float64], float]:
    """Horizontal direction [3] and tilt in degrees of the opening view.

    Of all directions it is the one that sees most of what the cameras saw from the side on which they were.

    Args:
        rays: unit vectors [N, 3] from the cameras to what they looked at.
        first: direction [3] of the first camera, which decides where others see as much.
        up: unit vector.
    """
    level = _level(first, up)
    if not len(rays):
        return level, TILT_DEG
    mean = rays.mean(axis=0)
    is_round = float(np.linalg.norm(mean - (mean @ up) * up)) < ROUND
    tilt = np.radians(ROUND_TILT_DEG if is_round else TILT_DEG)
    side = np.cross(up, level)
    angles = np.arange(DIRECTIONS) * (2 * np.pi / DIRECTIONS)
    directions = np.cos(angles)[:, None] * level + np.sin(angles)[:, None] * side
    views = np.cos(tilt) * directions - np.sin(tilt) * up
    share = np.clip(np.asarray(rays) @ views.T, 0, None).mean(axis=0)
    best = int(np.argmax(share + 0.03 * np.cos(angles)))
    return np.asarray(directions[best]), float(np.degrees(tilt))


@dataclass(frozen=True)
class View:
    """A camera: position, target and up direction [3] each."""

    position: NDArray[np.float64]
    target: NDArray[np.float64]
    up: NDArray[np.float64]

    def is_at(self, position: NDArray[np.floating]) -> bool:
        distance = max(float(np.linalg.norm(self.target - self.position)), 1e-9)
        return bool(np.linalg.norm(position - self.position) < UNMOVED * distance)


def opening_view(
    points: NDArray[np.floating],
    rays: NDArray[np.floating],
    path: NDArray[np.floating],
    first: NDArray[np.floating],
    up: NDArray[np.float64],
    free: FreeView,
) -> View:
    """The opening view: from behind and above what cameras looked at.

    Args:
        points, rays: of a `Subject` [N, 3]; there may be more points.
        path: camera positions [M, 3].
        first: direction [3] of the first camera.
        up: unit vector.
    """
    direction, tilt_deg = opening_direction(rays, first, up)
    position, target = overview(points, path, direction, up, free, tilt_deg)
    return View(position, target, up)


def inner_view(
    points: NDArray[np.floating], poses: NDArray[np.floating], up: NDArray[np.float64], free: FreeView
) -> View:
    """The view of the camera that has most of the points in it: from outside, splats hide what is behind walls.

    Args:
        points: of a `Subject` [N, 3].
        poses: T_world_camera [M, 4, 4], up to `MAX_TRIED`.
        up: unit vector.
    """
    depths = [float(np.median(np.linalg.norm(points - pose[:3, 3], axis=1))) for pose in poses]
    views = [View(T[:3, 3], T[:3, 3] + depth * T[:3, 2], up) for T, depth in zip(poses, depths, strict=True)]
    return max(views, key=lambda view: share_in_view(points, view, free))


def share_in_view(points: NDArray[np.floating], view: View, free: FreeView) -> float:
    """Share of points [N, 3] in the free part of a view."""
    ahead = view.target - view.position
    ahead = ahead / np.linalg.norm(ahead)
    right = np.cross(ahead, view.up)
    right = right / max(float(np.linalg.norm(right)), 1e-9)
    axes = np.stack([right, np.cross(right, ahead), ahead])
    x, y, z = axes @ (np.asarray(points) - view.position).T
    inside = (z > 0) & (x > -free.left * z) & (x < free.right * z) & (np.abs(y) < free.upright * z)
    return float(inside.mean())


def _level(direction: NDArray[np.floating], up: NDArray[np.floating]) -> NDArray[np.float64]:
    """The horizontal unit vector of a direction [3]; any where it is straight up or down."""
    level = direction - (direction @ up) * up
    if np.linalg.norm(level) < 1e-6:
        level = np.cross(up, np.eye(3)[np.argmin(np.abs(up))])
    return np.asarray(level / np.linalg.norm(level), np.float64)
