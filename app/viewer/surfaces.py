"""The viewer's textured surfaces: one for each keyframe that shows something new, within fixed limits."""

from dataclasses import dataclass, field, replace
from itertools import count

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import depth_factors
from stream_recon.app.core.types import FrameResult, Intrinsics
from stream_recon.app.viewer.surface_grid import (
    TEXTURE_SIDE,
    SurfaceGrid,
    Triangles,
    surface_grid,
    texture,
    triangulate,
)
from stream_recon.app.viewer.timeline import Timeline, pinhole_vector

MIN_NEW = 0.06
"""Share of a keyframe's pixels that no earlier surface covers, below which it gets no surface."""
SAME_DEPTH = 0.05
"""Relative difference of depth below which two surfaces are the same thing."""
COARSER = 1.3
"""Ratio of depths from which on an earlier surface is too coarse to stand for a nearer view."""
IN_FRONT = 0.12
"""Relative difference of depth from which on a vertex lies in front of what an earlier camera saw.

A vertex that more cameras saw through than saw it is left out: of two contradicting surfaces the earlier one stays.
"""
MAX_OVERLAPS = 16
"""Earlier surfaces that a new one is compared with."""
FIELD_TOLERANCE = 0.015
"""Relative depth error that a surface may keep after a revision before its triangles are computed again."""
SHIFT_TOLERANCE = 0.004
"""Shift of the principal point, in focal lengths, that a surface may keep after a revision."""

VERSIONS = count()


@dataclass(frozen=True)
class SurfaceLimits:
    """Bounds of all surfaces together."""

    surfaces: int = 200
    """Surfaces, and so draw calls and messages: some laptops draw no more than 300 at 30 frames/s."""
    triangles: int = 600_000
    """A laptop draws more than a million at 30 frames/s."""
    bytes: int = 24_000_000
    """As sent to a page: some seconds on a home network."""
    texture_pixels: int = 40_000_000
    """213 MB on the graphics card with their smaller copies."""
    full: int = 24
    """Newest surfaces that are never thinned."""


@dataclass
class Surface:
    """The surface of a keyframe, in the axes of its camera at the time of its making."""

    ordinal: int
    grid: SurfaceGrid
    covered: NDArray[np.bool_]
    """Vertices [h, w] that an earlier surface shows."""
    jpeg: bytes
    pixels: int
    """Pixels of the texture."""
    is_dense: bool
    camera: NDArray[np.float64]
    """fx, fy, cx, cy [4] in pixels of the source, depth scale and depth field at the time of its making."""
    depth_scale: float
    depth_field: NDArray[np.float64]
    triangles: Triangles
    version: int = field(default_factory=VERSIONS.__next__)
    """Another number whenever the triangles or the texture change; moving the surface changes nothing."""
    thinned: bool = False

    @property
    def size(self) -> int:
        """Bytes of the GLB file, about."""
        t = self.triangles
        return len(self.jpeg) + t.xyz.nbytes + t.uv.nbytes + t.faces.nbytes + t.unsure.nbytes

    @property
    def slopes(self) -> tuple[float, float]:
        """Largest slopes of rays through the grid along x and y, about."""
        (h, w), k = self.grid.depth.shape, self.grid.camera
        return max(k.cx, w - k.cx) / k.fx, max(k.cy, h - k.cy) / k.fy

    def scale(self, timeline: Timeline) -> NDArray[np.float64]:
        """Factors [3] that take the surface to the frame's present depth and focal length, in camera axes."""
        now = timeline.intrinsics(self.ordinal)
        ratio = timeline.depth_scales[self.ordinal] / self.depth_scale
        ratio *= np.exp(float(np.mean(timeline.depth_fields[self.ordinal] - self.depth_field)))
        return float(ratio) * np.array([self.camera[0] / now.fx, self.camera[1] / now.fy, 1.0])

    def thin(self) -> None:
        """Halve the resolution of triangles and texture."""
        self.grid, self.covered, self.thinned = self.grid.thinned(), self.covered[::2, ::2], True
        image = cv2.cvtColor(cv2.imdecode(np.frombuffer(self.jpeg, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        self.jpeg, self.pixels = texture(np.asarray(image, np.uint8), TEXTURE_SIDE // 2), self.pixels // 4
        self._build()

    def remake(self, timeline: Timeline) -> None:
        """Compute the triangles again for the frame's present camera and depth."""
        now = np.array(pinhole_vector(timeline.intrinsics(self.ordinal)))
        scale, depth_field = float(timeline.depth_scales[self.ordinal]), np.array(timeline.depth_fields[self.ordinal])
        h, w = self.grid.depth.shape
        factors = depth_factors(np.asarray(depth_field - self.depth_field, np.float16), (h, w))
        k, (fx, fy) = self.grid.camera, now[:2] / self.camera[:2]
        cx, cy = np.array([k.cx, k.cy]) + (now[2:] - self.camera[2:]) * np.array([k.fx, k.fy]) / self.camera[:2]
        moved = self.grid.scaled(factors * np.float32(scale / self.depth_scale))
        self.grid = replace(moved, camera=Intrinsics(k.fx * fx, k.fy * fy, float(cx), float(cy)))
        self.camera, self.depth_scale, self.depth_field = now, scale, depth_field
        self._build()

    def is_bent(self, timeline: Timeline) -> bool:
        """Whether the frame's present camera and depth differ by more than pose and `scale`."""
        change = timeline.depth_fields[self.ordinal] - self.depth_field
        now = np.array(pinhole_vector(timeline.intrinsics(self.ordinal)))
        shift = np.abs((now[2:] - self.camera[2:]) / now[:2]).max()
        return bool(np.ptp(change) > 2 * FIELD_TOLERANCE or shift > SHIFT_TOLERANCE)

    def _build(self) -> None:
        self.triangles = triangulate(self.grid, self.covered)
        self.version = next(VERSIONS)


@dataclass
class SurfaceStore:
    """Surfaces by ordinal, within limits.

    Above a limit the oldest surfaces are thinned, and then those with the fewest triangles are dropped.
    """

    timeline: Timeline
    surfaces: dict[int, Surface] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    """Ordinals whose surfaces a limit has removed."""
    bent: set[int] = field(default_factory=set)
    """Ordinals whose triangles have to be computed again after a revision."""
    limits: SurfaceLimits = field(default_factory=SurfaceLimits)

    @property
    def triangles(self) -> int:
        return sum(len(s.triangles.faces) for s in self.surfaces.values())

    def add(self, ordinal: int, result: FrameResult, image: NDArray[np.uint8], *, causal: bool) -> None:
        """Add a keyframe's surface, or replace it.

        ``image`` [H, W, 3] shows the same as the depth map. A dense depth map is compared with other dense ones alone,
        which replace the others one by one. ``causal``: camera and depth are those before any revision, not the present
        ones.
        """
        self.surfaces.pop(ordinal, None)
        self.bent.discard(ordinal)
        self.dropped.discard(ordinal)
        grid, is_dense = surface_grid(result), result.certainty is not None
        if min(grid.depth.shape) < 2 or not (grid.depth > 0).any():
            return
        camera = np.array(pinhole_vector(self.timeline.intrinsics(ordinal)))
        scale, field_ = float(self.timeline.depth_scales[ordinal]), np.array(self.timeline.depth_fields[ordinal])
        if causal:
            camera, scale, field_ = np.array(pinhole_vector(result.intrinsics)), 1.0, np.zeros_like(field_)
        none = Triangles(
            np.empty((0, 3), np.float32),
            np.empty((0, 2), np.float32),
            np.empty((0, 3), np.int32),
            np.empty(0, np.float32),
        )
        jpeg, covered = b"", np.zeros(grid.depth.shape, np.bool_)
        surface = Surface(ordinal, grid, covered, jpeg, 0, is_dense, camera, scale, field_, none)
        self._cover(surface)
        if ((surface.grid.depth > 0) & ~surface.covered).mean() < MIN_NEW and self.surfaces:
            return
        surface.triangles = triangulate(surface.grid, surface.covered)
        if not len(surface.triangles.faces):
            return
        surface.jpeg = texture(image)
        shrink = min(1.0, TEXTURE_SIDE / max(image.shape[:2]))
        surface.pixels = round(image.shape[0] * image.shape[1] * shrink**2)
        self.surfaces[ordinal] = surface
        self._reduce()

    def clear(self) -> None:
        """Remove all surfaces."""
        self.surfaces.clear()
        self.bent.clear()
        self.dropped.clear()

    def revise(self, ordinals: NDArray[np.intp]) -> None:
        """Note which surfaces of these frames a move alone cannot correct."""
        for ordinal in ordinals.tolist():
            surface = self.surfaces.get(ordinal)
            if surface is not None and surface.is_bent(self.timeline):
                self.bent.add(ordinal)

    def is_bare(self, first: int, last: int) -> bool:
        """Whether limits have removed most surfaces of the frames from ``first`` to ``last``."""
        dropped = sum(first <= ordinal <= last for ordinal in self.dropped)
        return dropped > sum(first <= ordinal <= last for ordinal in self.surfaces)

    def update(self, limit: int) -> bool:
        """Remake bent surfaces up to ``limit`` bytes; False once nothing is left to do."""
        done = 0
        while self.bent and done < limit:
            surface = self.surfaces.get(self.bent.pop())
            if surface is not None:
                surface.remake(self.timeline)
                done += surface.size
        return bool(self.bent)

    def _cover(self, new: Surface) -> None:
        """Set which vertices of a new surface earlier ones show at the same depth and not much coarser.

        Vertices that more of their cameras saw through than saw are removed.
        """
        usable = new.grid.depth > 0
        local = new.grid.points[usable] * new.scale(self.timeline)
        T = self.timeline.poses[new.ordinal]
        world, depth = local @ T[:3, :3].T + T[:3, 3], local[:, 2]
        covered = np.zeros(len(world), bool)
        agreeing, seen_through = (np.zeros(len(world), np.int16) for _ in range(2))
        for old in self._overlapping(world, new.is_dense):
            inside, cell, z = self._cells(old, world)
            known = old.grid.depth[cell]
            agrees = (known > 0) & (np.abs(z - known) < SAME_DEPTH * known)
            agreeing[inside] += agrees
            seen_through[inside] += z < (1 - IN_FRONT) * known
            # Depths of the old camera in the unit of the new one.
            coarse = z * old.scale(self.timeline)[2] > COARSER * depth[inside]
            # Only what the old one draws: what it leaves to others may be theirs no longer.
            covered[inside] |= agrees & ~coarse & ~old.covered[cell]
        new.covered[usable] = covered
        depths = new.grid.depth.copy()
        wrong = seen_through > agreeing
        depths[usable] = np.where(wrong, np.float32(0), depths[usable])
        new.grid = replace(new.grid, depth=depths)

    def _overlapping(self, world: NDArray[np.float64], dense_only: bool) -> list[Surface]:
        """The surfaces with most of some points in view."""
        sample = world[:: max(1, len(world) // 48)]
        chosen = [s for s in self.surfaces.values() if s.is_dense or not dense_only]
        if not chosen:
            return []
        # All at once: poses are on the disk, and reading each would take most of the time.
        T = self.timeline.poses[np.array([s.ordinal for s in chosen], np.intp)]
        q = np.einsum("npi,nij->npj", sample - T[:, None, :3, 3], T[:, :3, :3])
        z = np.where(q[..., 2] > 1e-9, q[..., 2], np.inf)
        rays = np.abs(q[..., :2] / z[..., None])
        counts = np.isfinite(z) & (rays < np.array([s.slopes for s in chosen])[:, None]).all(axis=-1)
        counts = counts.sum(axis=1)
        order = np.argsort(counts, kind="stable")[::-1][:MAX_OVERLAPS]
        return [chosen[k] for k in order if counts[k]]

    def _cells(
        self, surface: Surface, world: NDArray[np.float64]
    ) -> tuple[NDArray[np.bool_], tuple[NDArray[np.intp], NDArray[np.intp]], NDArray[np.float64]]:
        """Which points [N] a surface's camera sees, with rows and columns of their cells, and depths."""
        T, k = self.timeline.poses[surface.ordinal], surface.grid.camera
        q = (world - T[:3, 3]) @ T[:3, :3] / surface.scale(self.timeline)
        h, w = surface.grid.depth.shape
        z = np.where(q[:, 2] > 1e-9, q[:, 2], np.inf)
        column, row = k.fx * q[:, 0] / z + k.cx, k.fy * q[:, 1] / z + k.cy
        inside = np.isfinite(z) & (column >= 0) & (column < w) & (row >= 0) & (row < h)
        return inside, (row[inside].astype(np.intp), column[inside].astype(np.intp)), q[inside, 2]

    def _reduce(self) -> None:
        while self._too_much():
            old = [s for s in list(self.surfaces.values())[: -self.limits.full] if not s.thinned]
            if old and len(self.surfaces) <= self.limits.surfaces:
                old[0].thin()
                if len(old[0].triangles.faces):
                    continue
                smallest = old[0]
            else:
                older = list(self.surfaces.values())[:-1]
                smallest = min(older, key=lambda s: len(s.triangles.faces))
            del self.surfaces[smallest.ordinal]
            self.dropped.add(smallest.ordinal)
            self.bent.discard(smallest.ordinal)

    def _too_much(self) -> bool:
        surfaces, limits = self.surfaces.values(), self.limits
        return len(surfaces) > 1 and (
            len(surfaces) > limits.surfaces
            or self.triangles > limits.triangles
            or sum(s.size for s in surfaces) > limits.bytes
            or sum(s.pixels for s in surfaces) > limits.texture_pixels
        )
