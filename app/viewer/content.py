"""Geometry of the scene as pages show it, for pointing, cutting and plans. Used from the viewer's thread."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.box import Box
from stream_recon.app.core.gltf import POINTS, Primitive
from stream_recon.app.core.subject import subject_box
from stream_recon.app.core.transforms import level_axes, up_direction
from stream_recon.app.viewer.chunks import ChunkStore
from stream_recon.app.viewer.panel import PageOptions
from stream_recon.app.viewer.picking import Hit, PointingRay, hit_points, hit_triangles, unevenness
from stream_recon.app.viewer.scene import ViewerScene
from stream_recon.app.viewer.scene_mesh import SceneMesh
from stream_recon.app.viewer.surfaces import SurfaceStore
from stream_recon.app.viewer.timeline import Timeline

SAMPLE = 40_000
"""Points from which the extent of the scene is measured."""
OUTLIERS = 0.01
"""Share of the points on each side that may lie outside `Extent.low` to `Extent.high`."""
MARGIN = 0.03
"""Border around them, as a share of their extent."""
EDGE_BLUR = 0.016
"""Error of edges of surfaces, as a share of their distance from the nearest camera: some pixels of a depth map."""
UPRIGHT = 0.3
"""Largest vertical part of a wall's normal."""


@dataclass(frozen=True)
class Extent:
    """Extent of the scene in some axes: without outliers, and of everything."""

    low: NDArray[np.float64]  # [3]
    high: NDArray[np.float64]  # [3]
    lowest: NDArray[np.float64]  # [3]
    highest: NDArray[np.float64]  # [3]

    @property
    def radius(self) -> float:
        return float(np.linalg.norm(self.high - self.low)) / 2


class SceneContent:
    """Triangles and points of the scene, in the world."""

    def __init__(self, timeline: Timeline, store: ChunkStore, surfaces: SurfaceStore, scene: ViewerScene) -> None:
        self.timeline = timeline
        self._store, self._surfaces, self._scene = store, surfaces, scene
        self._mesh: tuple[SceneMesh, list[Primitive]] | None = None

    @property
    def is_empty(self) -> bool:
        return not len(self.timeline)

    @property
    def has_mesh(self) -> bool:
        return self._scene.mesh is not None

    def axes(self) -> NDArray[np.float64]:
        """Rotation [3, 3] from the world to the axes of GLB files."""
        if self._scene.mesh is not None:
            return self._scene.mesh.R_world_mesh.T
        R = self.timeline.rotations(len(self.timeline))
        return level_axes(up_direction(R), R[0][:, 2])

    def surfaces(self) -> list[Primitive]:
        """The mesh, or the surfaces of keyframes."""
        mesh = self._scene.mesh
        if mesh is None:
            return [self._surface(ordinal) for ordinal in list(self._surfaces.surfaces)]
        if self._mesh is None or self._mesh[0] is not mesh:
            self._mesh = mesh, [moved(part, mesh.R_world_mesh, np.zeros(3)) for part in mesh.parts]
        return self._mesh[1]

    def points(self, options: PageOptions) -> Primitive:
        """The points that a page shows."""
        shown = self._store.world_points(options.points)
        return Primitive(np.asarray(shown.xyz, np.float32), rgb=shown.rgb, name="points", mode=POINTS)

    def shown(self, options: PageOptions) -> list[Primitive]:
        """What a page shows of the scene."""
        parts = self.surfaces() if options.shows_surfaces else []
        return [*parts, self.points(options)] if options.shows_points or not parts else parts

    def hit(self, ray: PointingRay, options: PageOptions) -> Hit | None:
        """The nearest place that a ray meets on what a page shows."""
        shown = self.shown(options)
        voxels = [chunk.voxel * chunk.S_world_chunk.scale for chunk in self._store.chunks]
        spacing = float(np.median(voxels)) if voxels else 1e-3
        corners = [part.xyz[part.faces] for part in shown if part.faces is not None and len(part.faces)]
        hits = [hit_triangles(ray, corners)] if corners else []
        hits += [hit_points(ray, part.xyz, spacing) for part in shown if part.faces is None and len(part.xyz)]
        hit = min((hit for hit in hits if hit is not None), key=lambda hit: hit.distance, default=None)
        if hit is None or not corners or hit is not hits[0]:
            return hit
        path = self.timeline.path(len(self.timeline))
        radius = EDGE_BLUR * float(np.linalg.norm(path - hit.point, axis=1).min())
        return replace(hit, spread=float(np.hypot(hit.spread, unevenness(ray, hit, corners, radius))))

    def extent(self, R: NDArray[np.floating]) -> Extent:
        """The extent of the scene in axes to which ``R`` [3, 3] rotates the world."""
        clouds = [*(part.xyz for part in self.surfaces()), self._store.world_points().xyz, self.timeline.path(SAMPLE)]
        parts = [part[:: max(1, len(part) // SAMPLE)] for part in clouds]
        xyz = np.concatenate(parts) @ np.asarray(R).T
        low, high = np.quantile(xyz, [OUTLIERS, 1 - OUTLIERS], axis=0)
        border = MARGIN * float((high - low).max()) + 1e-9
        everything = np.concatenate(clouds) @ np.asarray(R).T
        lowest, highest = np.minimum(everything.min(axis=0), low), np.maximum(everything.max(axis=0), high)
        return Extent(low - border, high + border, lowest - border, highest + border)

    def subject(self, turn_deg: float) -> Box | None:
        """The box of what the cameras look at, see `subject_box`."""
        timeline, count = self.timeline, len(self.timeline)
        cameras = [timeline.intrinsics(ordinal) for ordinal in range(count)]
        return subject_box(timeline.poses[:count], cameras, self._store.world_points().xyz, self.axes(), turn_deg)

    def wall_turn_deg(self) -> float:
        """Turn of a box about the vertical that aligns it with most of the walls, from -45 to 45 degrees."""
        R, total = self.axes(), 0j
        for part in self.surfaces():
            if part.faces is None:
                continue
            a, b, c = np.moveaxis(np.asarray(part.xyz, np.float64)[part.faces], 1, 0)
            normal = np.cross(b - a, c - a) @ R.T
            size = np.linalg.norm(normal, axis=1)
            wall = np.abs(normal[:, 1]) < UPRIGHT * size
            angle = np.arctan2(normal[wall, 2], normal[wall, 0])
            total += complex((size[wall] * np.exp(4j * angle)).sum())
        return round(float(np.degrees(np.angle(total) / 4)), 1) if total else 0.0

    def _surface(self, ordinal: int) -> Primitive:
        surface, pose = self._surfaces.surfaces[ordinal], self.timeline.poses[ordinal]
        t = surface.triangles
        xyz = (t.xyz * surface.scale(self.timeline)) @ pose[:3, :3].T + pose[:3, 3]
        return Primitive(np.asarray(xyz, np.float32), t.faces, uv=t.uv, texture=surface.jpeg)


def moved(part: Primitive, R: NDArray[np.floating], t: NDArray[np.floating]) -> Primitive:
    """A primitive under a rotation [3, 3] and a translation [3]."""
    return replace(part, xyz=np.asarray(part.xyz @ np.asarray(R).T + t, np.float32))
