"""The viewer's 3D scene: chunks, trajectory and cameras as nodes of a viser server. Used from one thread."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.transforms import quaternion_xyzw, rotation_angle_deg
from stream_recon.app.viewer.chunks import Chunk, ChunkPoints, ChunkStore
from stream_recon.app.viewer.overview import FreeView, overview
from stream_recon.app.viewer.timeline import Timeline, View

CAMERA = (122, 132, 150)
CURRENT = (255, 176, 46)
SELECTED = (64, 200, 255)
PATH_COLORS = (np.array([52, 120, 246], np.float32), np.array([255, 176, 46], np.float32))
MAX_FRUSTA = 48
FRUSTUM_SIZE = 0.05
"""In units of the typical depth, as is the next."""
FRUSTUM_SPACING = 0.1
FRUSTUM_TURN_DEG = 30.0
START_BACKS = (0.6, 0.4, 0.25, 0.15, 0.08)
"""How far behind the first camera, and half of that above it, a browser's first view may be; the furthest clear one."""
START_SLOPE = 0.6
"""What is in the way lies in a cone toward the first camera, so wide for each unit of its length."""
IN_THE_WAY = 10
"""Points in that cone from which on a view is not clear."""
GROWN = 1.2
"""Points by now over those at the last look for a clear view, from which on it is worth another."""
MAX_PATH_VERTICES = 2000
OVERVIEW_POINTS = 20_000
PANEL_PIXELS = 335
"""Of the page's width, under viser's panel."""


@dataclass(frozen=True)
class SceneOptions:
    """What the panel asks for."""

    min_rank: int = 0
    """Points whose confidence rank (percent within their frame) is lower are hidden."""
    point_size: float = 1.0
    """Edge of a point in voxels of its chunk."""
    last_frame: int | None = None
    """Ordinal of the last frame whose points are shown; None: all."""
    selected: int | None = None
    """Ordinal of the frame picked with the scrubber."""
    cameras: bool = True
    path: bool = True


def wxyz_position(T: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A 4x4 rigid transform as viser wants it."""
    return np.roll(quaternion_xyzw(T[:3, :3]), 1), T[:3, 3].copy()


class _ChunkNode:
    """One point cloud on the page; points are sent again only if they or the filter changed."""

    def __init__(self, server: Any, chunk: Chunk) -> None:
        self._server = server
        self._name = f"/points/{chunk.first}"
        self.handle: Any = None
        self.sent = 0
        """Times that points were sent."""
        self.shown = 0
        self._signature: tuple[int, int, int] | None = None
        self._pose = chunk.T_world_anchor

    def sync(self, chunk: Chunk, options: SceneOptions) -> None:
        last = chunk.last if options.last_frame is None else min(options.last_frame, chunk.last)
        signature = (chunk.version, options.min_rank, last)
        if signature != self._signature:
            self._signature = signature
            self._send(chunk, chunk.points.shown(options.min_rank, last), options)
        if self.handle is None:
            return
        if self._pose is not chunk.T_world_anchor:
            self._pose = chunk.T_world_anchor
            self.handle.wxyz, self.handle.position = wxyz_position(chunk.T_world_anchor)
        self.handle.point_size = chunk.voxel * options.point_size

    def _send(self, chunk: Chunk, points: ChunkPoints, options: SceneOptions) -> None:
        self.shown = len(points)
        if not len(points):
            self.remove()
            return
        # Half precision has 11 bits: beyond 1024 voxels from the anchor its steps would exceed a voxel's half.
        near = float(np.abs(points.xyz).max()) <= 1024 * chunk.voxel
        self._pose = chunk.T_world_anchor
        wxyz, position = wxyz_position(chunk.T_world_anchor)
        # The same name replaces the node: an update would stay in the server's memory beside the first message.
        self.handle = self._server.scene.add_point_cloud(
            self._name,
            points.xyz,
            points.rgb,
            point_size=chunk.voxel * options.point_size,
            point_shape="rounded",
            point_shading="flat",
            precision="float16" if near else "float32",
            wxyz=wxyz,
            position=position,
        )
        self.sent += 1

    def remove(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


class _Frustum:
    """One camera on the page."""

    def __init__(self, server: Any, name: str, color: tuple[int, int, int], emphasis: bool) -> None:
        self._server = server
        self._name = name
        self._color = color
        self._emphasis = emphasis
        self._view: View | None = None
        self._pose: NDArray[np.float64] | None = None
        self.handle: Any = None

    def show(self, view: View, T_world_camera: NDArray[np.float64], scale: float) -> None:
        wxyz, position = wxyz_position(T_world_camera)
        if self.handle is None or self._view is not view:
            self.handle = self._server.scene.add_camera_frustum(
                self._name,
                view.fov,
                view.aspect,
                scale=scale * (1.6 if self._emphasis else 1.0),
                thickness=2.0 if self._emphasis else 1.0,
                thickness_units="screen",
                color=self._color,
                image=view.image,
                jpeg_quality=80,
                wxyz=wxyz,
                position=position,
                cast_shadow=False,
                receive_shadow=False,
            )
        elif self._pose is None or not np.array_equal(self._pose, T_world_camera):
            self.handle.wxyz, self.handle.position = wxyz, position
        self._view, self._pose = view, T_world_camera.copy()

    def hide(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


class ViewerScene:
    """Brings the page in line with the store and the timeline; sends only what changed."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.nodes: dict[int, _ChunkNode] = {}
        """By the ordinal of the chunk's first frame."""
        self.frusta: dict[int, _Frustum] = {}
        self._current = _Frustum(server, "/cameras/current", CURRENT, emphasis=True)
        self._selected = _Frustum(server, "/cameras/selected", SELECTED, emphasis=True)
        self._path: Any = None
        self._path_sent = np.empty((0, 3), np.float32)
        self.unit = 1.0
        """Typical depth; sizes of cameras and distances of the view follow it."""
        self._first: NDArray[np.float64] | None = None
        self._cleared_at = 0
        """Points there were at the last look for a clear view."""

    @property
    def shown(self) -> int:
        """Points on the page."""
        return sum(node.shown for node in self.nodes.values())

    def sync(self, store: ChunkStore, timeline: Timeline, options: SceneOptions) -> None:
        # One atomic block a chunk: a node and its pose go together, yet no large batch holds up the rest.
        present = {chunk.first for chunk in store.chunks}
        for first in [f for f in self.nodes if f not in present]:
            self.nodes.pop(first).remove()
        for chunk in store.chunks:
            node = self.nodes.setdefault(chunk.first, _ChunkNode(self._server, chunk))
            with self._server.atomic():
                node.sync(chunk, options)
        with self._server.atomic():
            self._sync_path(timeline.path(MAX_PATH_VERTICES) if options.path else np.empty((0, 3), np.float32))
            self._sync_cameras(timeline, options)

    def _sync_path(self, path: NDArray[np.float32]) -> None:
        if np.array_equal(path, self._path_sent):
            return
        self._path_sent = path
        if len(path) < 2:
            if self._path is not None:
                self._path.remove()
                self._path = None
            return
        blend = np.linspace(0, 1, len(path), dtype=np.float32)[:, None]
        colors = ((1 - blend) * PATH_COLORS[0] + blend * PATH_COLORS[1]).astype(np.uint8)
        self._path = self._server.scene.add_line_segments(
            "/trajectory",
            np.stack([path[:-1], path[1:]], axis=1),
            np.stack([colors[:-1], colors[1:]], axis=1),
            thickness=3.0,
            thickness_units="screen",
        )

    def _sync_cameras(self, timeline: Timeline, options: SceneOptions) -> None:
        scale = FRUSTUM_SIZE * self.unit
        wanted = self._spaced_views(timeline) if options.cameras else {}
        for ordinal in [o for o in self.frusta if o not in wanted]:
            self.frusta.pop(ordinal).hide()
        for ordinal, view in wanted.items():
            frustum = self.frusta.setdefault(
                ordinal, _Frustum(self._server, f"/cameras/{ordinal}", CAMERA, emphasis=False)
            )
            frustum.show(view, timeline.poses[ordinal], scale)
        self._sync_special(self._current, timeline, len(timeline) - 1 if options.cameras else None, scale)
        self._sync_special(self._selected, timeline, options.selected, scale)

    def _spaced_views(self, timeline: Timeline) -> dict[int, View]:
        """Views whose cameras stand or look apart from the one before, so that a slow camera is no thicket."""
        chosen: dict[int, View] = {}
        last = None
        for view in timeline.thinned_views(MAX_FRUSTA):
            pose = timeline.poses[view.ordinal]
            if last is not None:
                away = float(np.linalg.norm(pose[:3, 3] - last[:3, 3]))
                turned = float(rotation_angle_deg(last[:3, :3].T @ pose[:3, :3]))
                if away < FRUSTUM_SPACING * self.unit and turned < FRUSTUM_TURN_DEG:
                    continue
            chosen[view.ordinal] = view
            last = pose
        return chosen

    @staticmethod
    def _sync_special(frustum: _Frustum, timeline: Timeline, ordinal: int | None, scale: float) -> None:
        view = None if ordinal is None or ordinal < 0 else timeline.nearest_view(ordinal)
        if view is None or ordinal is None:
            frustum.hide()
        else:
            frustum.show(view, timeline.poses[ordinal], scale)

    def look(self, client: Any, T_world_camera: NDArray[np.float64], back: float, lift: float) -> None:
        """Put a browser's view behind (``back``) and above (``lift``) a camera, in units of the typical depth."""
        _place(client, *self.viewpoint(T_world_camera, back, lift))

    def show_all(self, client: Any, store: ChunkStore, timeline: Timeline) -> None:
        """Put a browser's view where it has nearly all points and cameras in it."""
        if self._first is None:
            return
        camera = client.camera
        free = FreeView.of_page(camera.fov, camera.image_width, camera.image_height, PANEL_PIXELS)
        points, path = store.sample(OVERVIEW_POINTS), timeline.path(OVERVIEW_POINTS)
        _place(client, *overview(points, path, self._first[:3, 2], -self._first[:3, 1], free))

    def viewpoint(
        self, T_world_camera: NDArray[np.float64], back: float, lift: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Position and target of a view behind and above a camera."""
        R, centre = T_world_camera[:3, :3], T_world_camera[:3, 3]
        position = centre + R @ np.array([0.0, -lift, -back]) * self.unit
        return position, centre + R @ np.array([0.0, 0.0, 1.0]) * self.unit

    def start_view(self, T_world_camera: NDArray[np.float64], unit: float) -> None:
        """Set sizes, the up direction and everybody's first view from the first camera."""
        self.unit = unit
        self._first = T_world_camera
        self._cleared_at = 0
        up = -T_world_camera[:3, 1]
        self._server.scene.set_up_direction(up)
        self._server.initial_camera.up = up
        back = START_BACKS[0]
        self._begin_at(back)
        for client in self._server.get_clients().values():
            with client.atomic():
                client.camera.up_direction = up
            self.look(client, T_world_camera, back, back / 2)

    def clear_start(self, store: ChunkStore) -> None:
        """Bring the first view of browsers still to come before what has been found behind the first camera."""
        if self._first is None or store.total < GROWN * self._cleared_at:
            return
        self._cleared_at = store.total
        centre = self._first[:3, 3]
        for back in START_BACKS:
            eye, _ = self.viewpoint(self._first, back, back / 2)
            if store.count_in_cone(eye, centre, START_SLOPE) < IN_THE_WAY:
                break
        self._begin_at(back)

    def _begin_at(self, back: float) -> None:
        assert self._first is not None
        position, target = self.viewpoint(self._first, back, back / 2)
        camera = self._server.initial_camera
        camera.position, camera.look_at = position, target


def _place(client: Any, position: NDArray[np.float64], target: NDArray[np.float64]) -> None:
    with client.atomic():
        client.camera.position, client.camera.look_at = position, target
