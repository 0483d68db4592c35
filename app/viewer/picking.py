"""Points of surfaces and clouds that a user points at: a narrow bundle of rays, whose nearest hits are taken."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

RINGS, SPOKES = (1.0, 2.0), 8
"""Rays of the bundle: circles about the middle one, in pixels, and rays on each."""
REACH_PX = 2.5
"""Distance in pixels up to which a point of a cloud counts as hit."""
IN_FRONT = 0.03
"""Relative difference of distance from which on a hit of the bundle lies in front of the middle one."""
SUPPORT = 3
"""Rays that must hit what lies in front before it is taken: the edge of a thing is meant, not what is behind it."""


@dataclass(frozen=True)
class PointingRay:
    """The ray of a pixel, in the world."""

    origin: FloatArray  # [3]
    direction: FloatArray  # [3], unit vector
    pixel: float
    """Tangent of the angle of one pixel."""
    planes: FloatArray
    """Planes [P, 4] behind which nothing can be pointed at, see `Box.planes`."""

    def bundle(self) -> FloatArray:
        """Unit vectors [R, 3] around the direction; the first one is the direction."""
        side = np.cross(self.direction, np.eye(3)[np.argmin(np.abs(self.direction))])
        side /= np.linalg.norm(side)
        other = np.cross(self.direction, side)
        angles = np.arange(SPOKES) * (2 * np.pi / SPOKES)
        offsets = [np.zeros((1, 3))]
        for radius in RINGS:
            spokes = np.cos(angles)[:, None] * side + np.sin(angles)[:, None] * other
            offsets.append(radius * self.pixel * spokes)
        rays = self.direction + np.concatenate(offsets)
        return np.asarray(rays / np.linalg.norm(rays, axis=1, keepdims=True))

    def is_shown(self, points: NDArray[np.floating]) -> NDArray[np.bool_]:
        """Which points [..., 3] are in front of all planes."""
        return np.asarray((points @ self.planes[:, :3].T + self.planes[:, 3] >= 0).all(axis=-1))


@dataclass(frozen=True)
class Hit:
    """A place on a surface."""

    point: FloatArray  # [3]
    distance: float
    """From the origin of the ray."""
    spread: float
    """Distance from the neighbouring hits, or between points of a cloud: how exactly the place is known."""


def hit_triangles(ray: PointingRay, triangles: Sequence[NDArray[np.floating]]) -> Hit | None:
    """The place that a ray meets on triangles, each array [M, 3, 3], which are solid on their front sides only."""
    rays = ray.bundle()
    nearest = _nearest(ray, rays, triangles)
    return _chosen(ray, rays, nearest)


def unevenness(ray: PointingRay, hit: Hit, triangles: Sequence[NDArray[np.floating]], radius: float) -> float:
    """How much the distance of a surface changes within a ``radius`` about a hit, as the root of a mean square.

    Edges of a reconstruction lie about as far from where they should be as its depth maps are coarse, so that beside an
    edge either side may be meant. A surface that ends there counts as uneven by the radius.
    """
    around = PointingRay(ray.origin, ray.direction, radius / max(hit.distance, 1e-9) / max(RINGS), ray.planes)
    nearest = _nearest(around, around.bundle(), triangles)
    change = np.where(np.isfinite(nearest), nearest - hit.distance, radius)
    return float(np.sqrt(np.mean(np.minimum(np.abs(change), 2 * hit.distance) ** 2)))


def hit_points(ray: PointingRay, xyz: NDArray[np.floating], spacing: float) -> Hit | None:
    """The place that a ray meets in a cloud [N, 3], whose points are about ``spacing`` apart."""
    offset = np.asarray(xyz, np.float64) - ray.origin
    along = offset @ ray.direction
    from_ray = np.linalg.norm(offset - along[:, None] * ray.direction, axis=1)
    near = (along > 0) & (from_ray < np.maximum(REACH_PX * ray.pixel * along, spacing)) & ray.is_shown(xyz)
    if not near.any():
        return None
    along, from_ray, points = along[near], from_ray[near], np.asarray(xyz, np.float64)[near]
    front = along < along.min() + max(2 * spacing, IN_FRONT * along.min())
    middle = int(np.argmin(np.where(front, from_ray, np.inf)))
    distance = float(np.median(along[front]))
    spread = max(float(np.std(along[front])), spacing / 2)
    return Hit(ray.origin + distance * ray.direction if front.sum() >= SUPPORT else points[middle], distance, spread)


def _nearest(ray: PointingRay, rays: FloatArray, triangles: Sequence[NDArray[np.floating]]) -> FloatArray:
    """Distances [R] of the nearest hits of rays on any of the triangles; inf where there is none."""
    nearest = np.full(len(rays), np.inf)
    for corners in triangles:
        nearest = np.minimum(nearest, _distances(ray, rays, corners))
    return nearest


def _distances(ray: PointingRay, rays: FloatArray, corners: NDArray[np.floating]) -> FloatArray:
    """Distances [R] of the nearest hits of rays from one origin; inf where there is none."""
    nearest = np.full(len(rays), np.inf)
    a, b, c = np.moveaxis(np.asarray(corners, np.float64) - ray.origin, 1, 0)
    # Only triangles that the cone of all rays may meet: by the sphere around each.
    centre = (a + b + c) / 3
    radius = np.sqrt(np.max([((part - centre) ** 2).sum(axis=1) for part in (a, b, c)], axis=0))
    along = centre @ ray.direction
    from_axis = np.linalg.norm(centre - along[:, None] * ray.direction, axis=1)
    near = (along > -radius) & (from_axis < radius + 1.1 * max(RINGS) * ray.pixel * np.maximum(along + radius, 0))
    a, b, c = a[near], b[near], c[near]
    if not len(a):
        return nearest
    # Moeller and Trumbore (1997), all triangles by all rays.
    first, second = b - a, c - a
    normal = np.cross(first, second)
    slope = rays @ normal.T  # [R, M]; below 0: the front side
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = (normal * a).sum(axis=1) / slope
        point = distance[..., None] * rays[:, None] - a
        size = (normal * normal).sum(axis=1)
        u = (np.cross(point, second) * normal).sum(axis=2) / size
        v = (np.cross(first, point) * normal).sum(axis=2) / size
        hits = (slope < 0) & (distance > 0) & (u >= -1e-9) & (v >= -1e-9) & (u + v <= 1 + 1e-9)
        hits &= ray.is_shown(np.nan_to_num(point + a + ray.origin))
    return np.asarray(np.where(hits, distance, np.inf).min(axis=1))


def _chosen(ray: PointingRay, rays: FloatArray, distances: FloatArray) -> Hit | None:
    """The middle hit, or the nearest one of those that lie in front of it."""
    known = np.isfinite(distances)
    if not known.any():
        return None
    nearest = distances[known].min()
    front = known & (distances < nearest * (1 + IN_FRONT))
    which = 0
    if not front[0]:
        if known[0] and front.sum() < SUPPORT:
            front = known & (np.abs(distances - distances[0]) < IN_FRONT * distances[0])
        else:
            which = int(np.argmax(front))  # rays are in the order of their distance from the middle
    points = ray.origin + distances[front, None] * rays[front]
    point = ray.origin + distances[which] * rays[which]
    spread = float(np.sqrt(np.mean(((points - point) ** 2).sum(axis=1))))
    return Hit(point, float(distances[which]), spread)
