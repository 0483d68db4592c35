"""Cameras of the viewer's clients: the first view, the overview of everything, and views that follow a camera."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.viewer.chunks import ChunkStore
from stream_recon.app.viewer.timeline import Timeline

TILT_DEG = 25.0
"""Angle by which the overview looks down."""
OUTLIER_SHARE = 0.01
"""Share of the points on each side that may lie outside the overview."""
MARGIN = 1.05
"""Factor of the overview's distance, which leaves a border around the points."""
MIN_FREE_RIGHT = 0.3
"""Share of the width to the right of the axis that counts as free in a narrow window."""
START_BACKS = (0.6, 0.4, 0.25, 0.15, 0.08)
"""Distances of the first view behind the first camera (and half of it above); the largest with a clear view is used."""
START_SLOPE = 0.6
"""Radius per length of the cone toward the first camera in which points block the view."""
MAX_POINTS_IN_WAY = 10
"""Number of points in that cone from which on the view is blocked."""
GROWTH = 1.2
"""Growth of the number of points after which the first view is tested again."""
OVERVIEW_POINTS = 20_000
"""Points from which the overview is computed."""
PANEL_WIDTH = 335
"""Width of viser's panel in pixels."""
USUAL_WINDOW = (1280, 720)
"""Assumed window size in pixels of clients that are not connected yet."""
UNMOVED = 1e-3
"""Distance, as a share of the typical depth, below which a client's view counts as not moved by its user."""


@dataclass(frozen=True)
class FreeView:
    """Part of the window that the panel leaves free: tangents of the angles from the view's axis to its borders."""

    left: float
    right: float
    upright: float

    @classmethod
    def of_window(cls, fov: float, width: float, height: float, panel: float) -> "FreeView":
        """``fov``: vertical field of view in radians; sizes in pixels, with the panel at the right."""
        upright = float(np.tan(fov / 2))
        sideways = upright * width / height
        return cls(sideways, sideways * max(1 - 2 * panel / width, MIN_FREE_RIGHT), upright)


def overview(
    points: NDArray[np.floating],
    path: NDArray[np.floating],
    forward: NDArray[np.floating],
    up: NDArray[np.floating],
    free: FreeView,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Position and target [3] of a view from behind and above, with nearly all points [N, 3] in the ``free`` part.

    The camera positions ``path`` [M, 3] are all in view. ``forward``: horizontal direction of the view; ``up``: unit
    vector.
    """
    level = forward - (forward @ up) * up
    if np.linalg.norm(level) < 1e-6:  # straight up or down: any direction serves
        level = np.cross(up, np.eye(3)[np.argmin(np.abs(up))])
    level = level / np.linalg.norm(level)
    tilt = np.radians(TILT_DEG)
    ahead = np.cos(tilt) * level - np.sin(tilt) * up
    right = np.cross(ahead, up)
    right /= np.linalg.norm(right)
    axes = np.stack([right, np.cross(right, ahead), ahead])
    seen = np.asarray(points, np.float64) @ axes.T
    if len(seen):
        low, high = np.quantile(seen, [OUTLIER_SHARE, 1 - OUTLIER_SHARE], axis=0)
        seen = seen[((seen >= low) & (seen <= high)).all(axis=1)]
    seen = np.concatenate([seen, np.asarray(path, np.float64) @ axes.T])
    centre = (seen.min(axis=0) + seen.max(axis=0)) / 2
    x, y, z = (seen - centre).T
    # The panel is at the right, so the axis lies right of the points' centre, by `offset` per unit of distance, and
    # both borders are `half` from the centre.
    half, offset = (free.left + free.right) / 2, (free.left - free.right) / 2
    needed = [(-x - free.left * z) / half, (x - free.right * z) / half, np.abs(y) / free.upright - z]
    distance = MARGIN * max(float(np.max(need)) for need in needed)
    target = (centre + np.array([offset * distance, 0, 0])) @ axes
    return target - distance * ahead, target


class ViewerCameras:
    """Moves the clients' views; distances are shares of the typical depth."""

    def __init__(self, server: Any, timeline: Timeline) -> None:
        self._server = server
        self._timeline = timeline
        self._start: int | None = None
        self._first_typical_depth = 1.0
        self._cleared_at = 0
        """Number of points at the last test of the first view."""
        self._back = START_BACKS[0]
        self._initial_view = np.zeros((2, 3))
        """Position and target of new clients."""
        self._last_position: dict[int, NDArray[np.float64]] = {}
        """Where the program last put each client's view, by client id."""
        # A new client's own report may be older than the first view that it is sent.
        server.on_client_connect(lambda client: self._last_position.update({client.client_id: self._initial_view[0]}))
        server.on_client_disconnect(lambda client: self._last_position.pop(client.client_id, None))

    @property
    def typical_depth(self) -> float:
        """Typical depth, in the world's present unit."""
        scale = 1.0 if self._start is None else float(self._timeline.depth_scales[self._start])
        return self._first_typical_depth * scale

    def start(self, ordinal: int, typical_depth: float) -> None:
        """Set the typical depth, the up direction and the first view by the first frame with points."""
        self._start, self._first_typical_depth = ordinal, typical_depth
        self._cleared_at = 0
        pose = self._timeline.poses[ordinal]
        up = -pose[:3, 1]
        self._server.scene.set_up_direction(up)
        self._server.initial_camera.up = up
        back = START_BACKS[0]
        self._set_start_view(pose, back)
        for client in self._server.get_clients().values():
            with client.atomic():
                client.camera.up_direction = up
            self.look_from(client, pose, back, back / 2)
            self._last_position[client.client_id] = np.array(client.camera.position)

    def update_start(self, store: ChunkStore) -> None:
        """Move the first view of new clients in front of points behind the first camera."""
        if self._start is None:
            return
        pose = self._timeline.poses[self._start]
        if store.total >= GROWTH * self._cleared_at:
            self._cleared_at = store.total
            for back in START_BACKS:
                eye, _ = self._viewpoint(pose, back, back / 2)
                if store.count_in_cone(eye, pose[:3, 3], START_SLOPE) < MAX_POINTS_IN_WAY:
                    break
            self._set_start_view(pose, back)
        elif not np.array_equal(self._initial_view, self._viewpoint(pose, self._back, self._back / 2)):
            self._set_start_view(pose, self._back)  # a revision moved the first camera

    def start_with_overview(self, store: ChunkStore, compared: NDArray[np.float32]) -> None:
        """Make the overview the first view of new clients, and of those whose users have not moved the view."""
        if self._start is None:
            return
        untouched = [client for client in self._server.get_clients().values() if self._is_unmoved(client)]
        free = FreeView.of_window(self._server.initial_camera.fov, *USUAL_WINDOW, PANEL_WIDTH)
        points = _shown(store, compared)
        self._set_initial_camera(*self._overview(self._start, points, free))
        for client in untouched:
            _move_to(client, *self._overview(self._start, points, _free_view(client)))
            self._last_position[client.client_id] = np.array(client.camera.position)

    def look_from(self, client: Any, T_world_camera: NDArray[np.float64], back: float, lift: float) -> None:
        """Move a client's view behind (``back``) and above (``lift``) a camera."""
        _move_to(client, *self._viewpoint(T_world_camera, back, lift))

    def show_all(self, client: Any, store: ChunkStore, compared: NDArray[np.float32]) -> None:
        """Move a client's view to the overview. ``compared``: points [n, 3] of the comparison layer."""
        if self._start is None:
            return
        _move_to(client, *self._overview(self._start, _shown(store, compared), _free_view(client)))

    def _overview(
        self, start: int, points: NDArray[np.float32], free: FreeView
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Position and target of the overview in the viewing direction of frame ``start``."""
        first, path = self._timeline.poses[start], self._timeline.path(OVERVIEW_POINTS)
        return overview(points, path, first[:3, 2], -first[:3, 1], free)

    def _is_unmoved(self, client: Any) -> bool:
        last = self._last_position.get(client.client_id)
        if last is None:
            return False
        return bool(np.linalg.norm(np.asarray(client.camera.position) - last) < UNMOVED * self.typical_depth)

    def _viewpoint(
        self, T_world_camera: NDArray[np.float64], back: float, lift: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Position and target of a view behind and above a camera."""
        R, centre = T_world_camera[:3, :3], T_world_camera[:3, 3]
        position = centre + R @ np.array([0.0, -lift, -back]) * self.typical_depth
        return position, centre + R @ np.array([0.0, 0.0, 1.0]) * self.typical_depth

    def _set_start_view(self, T_world_camera: NDArray[np.float64], back: float) -> None:
        self._back = back
        self._set_initial_camera(*self._viewpoint(T_world_camera, back, back / 2))

    def _set_initial_camera(self, position: NDArray[np.float64], target: NDArray[np.float64]) -> None:
        self._initial_view = np.stack([position, target])
        camera = self._server.initial_camera
        camera.position, camera.look_at = position, target


def _shown(store: ChunkStore, compared: NDArray[np.float32]) -> NDArray[np.float32]:
    """A sample of all points that clients show."""
    return np.concatenate([store.sample(OVERVIEW_POINTS), compared])


def _free_view(client: Any) -> FreeView:
    camera = client.camera
    return FreeView.of_window(camera.fov, camera.image_width, camera.image_height, PANEL_WIDTH)


def _move_to(client: Any, position: NDArray[np.float64], target: NDArray[np.float64]) -> None:
    with client.atomic():
        client.camera.position, client.camera.look_at = position, target
