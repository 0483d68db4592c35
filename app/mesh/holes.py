"""Closing of holes: small ones, and those in planar surfaces."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from stream_recon.app.mesh.config import HoleConfig, VisibilityConfig
from stream_recon.app.mesh.surface import Mesh
from stream_recon.app.mesh.tsdf import FusionView
from stream_recon.app.mesh.visibility import in_free_space, vertex_normals

FloatArray = NDArray[np.float64]


def closed_holes(
    mesh: Mesh, views: Sequence[FusionView], config: HoleConfig, visibility: VisibilityConfig
) -> tuple[Mesh, int]:
    """The mesh with small and planar holes closed, and their number.

    The outer borders of sheets stay open, and so do holes, such as doorways, that the depth maps ``views`` see through.
    """
    normals = vertex_normals(mesh)
    fillings = []
    for border in borders(mesh.faces, config):
        filling = _filling(mesh.xyz[border].astype(np.float64), normals[border], mesh.rgb[border], config)
        if filling is not None:
            fillings.append((border, *filling))
    points = [np.concatenate([mesh.xyz[border].mean(axis=0)[None], inner]) for border, inner, _, _ in fillings]
    if not points:
        return mesh, 0
    is_free = in_free_space(np.concatenate(points), views, visibility)
    free = np.split(is_free, np.cumsum([len(some) for some in points])[:-1])
    vertices, faces, colours = [mesh.xyz], [mesh.faces], [mesh.rgb]
    count, closed = len(mesh.xyz), 0
    for (border, inner, rgb, triangles), through in zip(fillings, free, strict=True):
        if through.mean() > visibility.free_share:
            continue
        numbers = np.concatenate([border, np.arange(count, count + len(inner))])
        vertices.append(inner.astype(np.float32))
        colours.append(rgb)
        faces.append(numbers[triangles].astype(np.int32))
        count += len(inner)
        closed += 1
    return Mesh(np.concatenate(vertices), np.concatenate(colours), np.concatenate(faces)), closed


def borders(faces: NDArray[np.int32], config: HoleConfig) -> list[NDArray[np.intp]]:
    """Closed borders of holes, as vertices in the order in which triangles that close them would run along them.

    Borders that pass a vertex twice, or have too many edges, are left out.
    """
    if not len(faces):
        return []
    begin = faces.reshape(-1).astype(np.int64)
    end = faces[:, [1, 2, 0]].reshape(-1).astype(np.int64)
    edges, count = np.arange(len(begin)), int(begin.max()) + 1
    codes, reverse = begin * count + end, end * count + begin
    order, reverse_order = np.argsort(codes, kind="stable"), np.argsort(reverse)
    row = np.empty_like(order)
    row[reverse_order] = np.searchsorted(codes[order], reverse[reverse_order])  # in order: many times as fast
    row = row.clip(0, len(codes) - 1)
    twin = np.where(codes[order][row] == reverse, order[row], -1)
    following = 3 * (edges // 3) + (edges + 1) % 3
    # From an open edge around its end through all triangles there, to the open edge that leaves it: borders that meet
    # in a vertex stay apart.
    opened = np.flatnonzero(twin < 0)
    after = following[opened]
    for _ in range(config.max_around):
        inner = twin[after] >= 0
        if not inner.any():
            break
        after[inner] = following[twin[after[inner]]]
    successor = np.full(len(begin), -1, np.int64)
    successor[opened] = np.where(twin[after] < 0, after, -1)
    visited, loops = np.zeros(len(begin), bool), []
    for start in opened.tolist():
        loop, edge = [], start
        while edge >= 0 and not visited[edge]:
            visited[edge] = True
            loop.append(edge)
            edge = int(successor[edge])
        vertices = begin[loop][::-1]
        if edge == start and 3 <= len(loop) <= config.max_planar and len(np.unique(vertices)) == len(vertices):
            loops.append(vertices.astype(np.intp))
    return loops


def _filling(
    border: FloatArray, normals: FloatArray, rgb: NDArray[np.uint8], config: HoleConfig
) -> tuple[FloatArray, NDArray[np.uint8], NDArray[np.intp]] | None:
    """New vertices [K, 3], their colours, and triangles of border vertices and these; None where it stays open."""
    centre = border.mean(axis=0)
    # Area vector of the border: its direction is the normal of the closing surface.
    following = np.roll(border, -1, axis=0)
    area = 0.5 * np.cross(border - centre, following - centre).sum(axis=0)
    size = float(np.linalg.norm(area))
    steps = np.linalg.norm(following - border, axis=1)
    step = float(steps.mean())
    if size < 1e-12 * max(step, 1e-12) ** 2 or step <= 0:
        return None
    normal = area / size
    height = (border - centre) @ normal
    small = len(border) <= config.max_small
    facing = float((normals @ normal).mean())
    if facing < (config.min_small_cosine if small else config.min_planar_cosine):
        return None
    if not small and float(np.sqrt(np.mean(height**2))) > config.max_roughness * step:
        return None
    across = np.linalg.svd(border - centre, full_matrices=False)[2][0]
    across = across - (across @ normal) * normal
    if np.linalg.norm(across) < 1e-9:
        return None
    across /= np.linalg.norm(across)
    upward = np.cross(normal, across)
    flat = np.stack([(border - centre) @ across, (border - centre) @ upward], axis=1)
    inner = _inner_points(flat, config.spacing * step)
    triangles = _triangulated(flat, inner)
    if triangles is None:
        inner, triangles = inner[:0], ears(flat)
    if triangles is None:
        return None
    tree = cKDTree(flat)
    distance, near = tree.query(inner, k=min(8, len(flat))) if len(inner) else (np.empty((0, 1)), np.empty((0, 1), int))
    weight = 1 / np.maximum(distance, 1e-12) ** 2
    weight /= weight.sum(axis=1, keepdims=True)
    lifted = (weight * height[near]).sum(axis=1)
    colours = (weight[..., None] * rgb[near]).sum(axis=1).round().clip(0, 255).astype(np.uint8)
    xyz = centre + inner[:, :1] * across + inner[:, 1:] * upward + lifted[:, None] * normal
    return xyz, colours, triangles


def _inner_points(polygon: FloatArray, spacing: float) -> FloatArray:
    """Points [K, 2] of a grid within a polygon, at least half of ``spacing`` from its vertices."""
    low, high = polygon.min(axis=0), polygon.max(axis=0)
    x, y = (np.arange(a + spacing / 2, b, spacing) for a, b in zip(low, high, strict=True))
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    if not len(grid):
        return grid
    grid = grid[_inside(grid, polygon)]
    return grid[cKDTree(polygon).query(grid)[0] > 0.5 * spacing] if len(grid) else grid


def _inside(points: FloatArray, polygon: FloatArray) -> NDArray[np.bool_]:
    """Which points [N, 2] are inside a polygon [K, 2]."""
    (ax, ay), (bx, by) = polygon.T[:, :, None], np.roll(polygon, -1, axis=0).T[:, :, None]
    x, y = points.T
    spans = (ay > y) != (by > y)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = spans & (x < (bx - ax) * (y - ay) / (by - ay) + ax)
    return np.asarray(crossing.sum(axis=0) % 2 == 1)


def _triangulated(polygon: FloatArray, inner: FloatArray) -> NDArray[np.intp] | None:
    """Triangles [T, 3] of a polygon with points inside, of polygon then inner numbers; None where that fails.

    A Delaunay triangulation is taken where it has all edges of the polygon.
    """
    from scipy.spatial import Delaunay, QhullError

    points = np.concatenate([polygon, inner])
    try:
        triangles: NDArray[np.intp] = Delaunay(points).simplices.astype(np.intp)
    except (QhullError, ValueError):
        return None
    a, b, c = (points[triangles[:, k]] for k in range(3))
    u, v = b - a, c - a
    turned = u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0] < 0
    triangles[turned] = triangles[turned][:, [0, 2, 1]]
    triangles = triangles[_inside(points[triangles].mean(axis=1), polygon)]
    edges = triangles[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2)
    count = len(points)
    codes = edges[:, 0] * count + edges[:, 1]
    reverse = edges[:, 1] * count + edges[:, 0]
    outer = codes[~np.isin(codes, reverse)]
    border = np.arange(len(polygon)) * count + np.roll(np.arange(len(polygon)), -1)
    if len(outer) != len(border) or not np.isin(border, outer).all():
        return None
    return triangles


def ears(polygon: FloatArray) -> NDArray[np.intp] | None:
    """Triangles [K - 2, 3] of a counter-clockwise polygon [K, 2] by ear clipping; None where it crosses itself."""
    left, triangles = list(range(len(polygon))), []
    position = 0
    failed = 0
    while len(left) > 3:
        if failed >= len(left):
            return None
        position %= len(left)
        a, b, c = left[position - 1], left[position], left[(position + 1) % len(left)]
        if _is_ear(polygon, left, (a, b, c)):
            triangles.append((a, b, c))
            del left[position]
            # The next ear is looked for elsewhere, so that triangles do not become a fan.
            position += 1
            failed = 0
        else:
            position += 1
            failed += 1
    a, b, c = (polygon[vertex] for vertex in left)
    if _turn(a, b, c[None])[0] <= _flat(polygon):
        return None
    return np.array([*triangles, tuple(left)], np.intp)


def _is_ear(polygon: FloatArray, left: list[int], corner: tuple[int, int, int]) -> bool:
    """Whether a corner is convex and no other vertex is in its triangle."""
    a, b, c = (polygon[vertex] for vertex in corner)
    if _turn(a, b, c[None])[0] <= _flat(polygon):
        return False
    others = polygon[[vertex for vertex in left if vertex not in corner]]
    inside = (_turn(a, b, others) >= 0) & (_turn(b, c, others) >= 0) & (_turn(c, a, others) >= 0)
    return not bool(inside.any())


def _flat(polygon: FloatArray) -> float:
    """Area below which a triangle counts as a line."""
    return 1e-9 * float(np.square(np.ptp(polygon, axis=0)).sum())


def _turn(a: FloatArray, b: FloatArray, points: FloatArray) -> FloatArray:
    """Twice the signed areas [N] of the triangles of two points and ``points`` [N, 2]."""
    return np.asarray((b[0] - a[0]) * (points[:, 1] - a[1]) - (b[1] - a[1]) * (points[:, 0] - a[0]))
