"""How well each view shows each triangle of a mesh, and the choice of a few views that together show all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.mesh.fusion import Report, SourceView, source_view
from stream_recon.app.mesh.rasterizer import (
    Projection,
    of_all,
    of_two,
    project_vertices,
    rasterize,
    signed_areas,
)
from stream_recon.app.mesh.surface import Mesh
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.folder import ResultFolder
from stream_recon.configs.errors import OutputError

MAX_VIEWS = 160
"""Most views that are scored. Where there are more, the sharpest of each group of neighbours is taken."""
DEPTH_SIDE = 400
"""Longer side in pixels of the depth buffer for occlusions."""
BORDER = 0.01
"""Border of an image that is not used, as a share of its longer side: undistorted images end there."""
OUTLINE = 3
"""Side in pixels of the depth buffer's window in which the nearest surface counts: outlines in meshes are narrow."""
TOLERANCE = 0.02
"""Share of the depth by which a visible vertex may be behind the depth buffer."""
IN_FRONT = 0.08
"""Share of the depth by which a view's depth map may be in front of a visible vertex: more than its noise, less than
what stands in front and is not in the mesh."""
MIN_COSINE = 0.15
"""Least cosine between normal and direction of view: flatter images are stretched."""
INCOMPLETE = 0.05
"""Factor of the quality of a view that shows two of a triangle's vertices."""
SHARPNESS_SIDE = 320
"""Longer side in pixels of the image whose sharpness is measured."""
SHARPNESS_WINDOW = 8
"""Views on each side that a view's sharpness is compared with: they show the same."""
MIN_GAIN = 0.002
"""Least share of the mesh's area by which another view improves a choice."""
MOST_CHOSEN = 80
"""Most views that a texture is made of."""


@dataclass(frozen=True)
class ScoredViews:
    """Views of a mesh and the quality of each triangle in each one."""

    cameras: list[Camera]  # [V]
    scores: NDArray[np.float16]  # [V, M] 0 where a triangle is not visible, else higher is better
    colours: NDArray[np.uint8]  # [V, M, 3] mean colour of the triangle in the view


Opened = Callable[[Camera], SourceView]


def score_views(
    result: ResultFolder, cameras: Sequence[Camera], mesh: Mesh, voxel: float, report: Report = lambda share: None
) -> ScoredViews:
    """Score all triangles in each of these frames, or in the sharpest ones; unreadable frames are left out."""
    normals, areas = normals_and_areas(mesh)
    sharpest = list(_sharpest(result, cameras, lambda share: report(0.3 * share)))
    count = len(sharpest)
    scores = np.zeros((count, len(mesh.faces)), np.float16)
    colours = np.zeros((count, len(mesh.faces), 3), np.uint8)
    centres = mesh.xyz[mesh.faces].mean(axis=1)
    scale = 0.0
    for number, (camera, sharpness) in enumerate(sharpest):
        report(0.3 + 0.7 * (number + 1) / count)
        view = source_view(result, camera)
        projection = project_vertices(mesh.xyz, view.T_world_camera, view.camera)
        vertices = visible_vertices(projection, mesh.faces, view, 2 * voxel)
        complete = of_all(vertices, mesh.faces)
        # A triangle on the outline of something in front: better than none, if no other view shows it.
        visible = complete | of_two(vertices, mesh.faces)
        direction = view.T_world_camera[:3, 3].astype(np.float32) - centres
        length = np.sqrt(np.einsum("ij,ij->i", direction, direction))
        cosine = np.einsum("ij,ij->i", direction, normals) / np.maximum(length, 1e-12)
        visible &= cosine > MIN_COSINE
        chosen = np.flatnonzero(visible)
        if not len(chosen):
            continue
        pixels = signed_areas(projection, mesh.faces[chosen]).clip(0) / areas[chosen]
        # Texels per length times the cosine: the square root of the area has one factor sqrt(cosine) already.
        quality = np.sqrt(pixels * cosine[chosen]) * np.where(complete[chosen], sharpness, INCOMPLETE * sharpness)
        scale = scale or max(float(np.median(quality)), 1e-9)
        scores[number, chosen] = (quality / scale).clip(1e-3, 1e3)
        colours[number, chosen] = _mean_colours(view, projection, mesh.faces[chosen])
    return ScoredViews([camera for camera, _ in sharpest], scores, colours)


def normals_and_areas(mesh: Mesh) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Unit normals [M, 3] and areas [M] of the triangles."""
    a, b, c = (mesh.xyz[mesh.faces[:, k]] for k in range(3))
    normals = np.cross(b - a, c - a)
    length = np.linalg.norm(normals, axis=1)
    return normals / np.maximum(length, 1e-20)[:, None], np.maximum(length / 2, 1e-20)


def visible_vertices(
    projection: Projection, faces: NDArray[np.int32], view: SourceView, margin: float
) -> NDArray[np.bool_]:
    """Which vertices [N] a view shows: within its image, not behind the mesh, and not behind its own depth map.

    ``margin``: distance by which a vertex may be behind the depth buffer, in addition to `TOLERANCE`.
    """
    height, width = view.image.shape[:2]
    border = BORDER * max(height, width)
    xy, z = projection.xy, projection.z
    visible = (
        (z > 0)
        & (xy[:, 0] >= border)
        & (xy[:, 1] >= border)
        & (xy[:, 0] < width - border)
        & (xy[:, 1] < height - border)
    )
    factor = min(DEPTH_SIDE / max(height, width), 1.0)
    size = (max(round(width * factor), 1), max(round(height * factor), 1))
    _, inverse = rasterize(projection.scaled(factor), faces, size)
    # The nearest of the neighbours: a vertex next to the outline of something in front is not visible.
    inverse = cv2.dilate(inverse, np.ones((OUTLINE, OUTLINE), np.uint8))
    chosen = np.flatnonzero(visible)
    column, row = (xy[chosen] * np.float32(factor)).astype(np.intp).T
    nearest = 1 / np.maximum(inverse[row.clip(0, size[1] - 1), column.clip(0, size[0] - 1)], 1e-12)
    kept = z[chosen] < nearest * (1 + TOLERANCE) + margin
    rows, columns = view.depth.shape
    column = (xy[chosen, 0] * (columns / width)).astype(np.intp).clip(0, columns - 1)
    row = (xy[chosen, 1] * (rows / height)).astype(np.intp).clip(0, rows - 1)
    depth = view.depth[row, column]
    kept &= (depth == 0) | (z[chosen] < depth * (1 + IN_FRONT) + margin)
    kept &= ~view.masked[row, column]
    visible[chosen] = kept
    return np.asarray(visible)


def _mean_colours(view: SourceView, projection: Projection, faces: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Colours [K, 3] at the centres of triangles, in an image reduced to a quarter."""
    height, width = view.image.shape[:2]
    small = cv2.resize(view.image, (max(width // 4, 1), max(height // 4, 1)), interpolation=cv2.INTER_AREA)
    total = projection.xy[faces[:, 0]] + projection.xy[faces[:, 1]] + projection.xy[faces[:, 2]]
    centre = total / 3 * np.array([small.shape[1] / width, small.shape[0] / height], np.float32)
    column = centre[:, 0].astype(np.intp).clip(0, small.shape[1] - 1)
    row = centre[:, 1].astype(np.intp).clip(0, small.shape[0] - 1)
    return np.asarray(small[row, column], np.uint8)


def _sharpest(result: ResultFolder, cameras: Sequence[Camera], report: Report) -> Iterator[tuple[Camera, float]]:
    """The cameras to score with their images' sharpness, relative to that of neighbours, at most 1."""
    readable, sharpness = [], []
    for done, camera in enumerate(cameras, start=1):
        report(done / len(cameras))
        try:
            image = source_view(result, camera).image
        except OutputError:
            continue
        factor = min(SHARPNESS_SIDE / max(image.shape[:2]), 1.0)
        grey = cv2.resize(
            cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA
        )
        readable.append(camera)
        sharpness.append(float(np.std(cv2.Laplacian(grey, cv2.CV_32F))))
    values = np.array(sharpness)
    relative = np.array(
        [
            min(value / max(float(np.quantile(near, 0.75)), 1e-6), 1.0)
            for value, near in (
                (value, values[max(k - SHARPNESS_WINDOW, 0) : k + SHARPNESS_WINDOW + 1])
                for k, value in enumerate(values)
            )
        ]
    )
    groups = np.array_split(np.arange(len(readable)), min(len(readable), MAX_VIEWS)) if readable else []
    for group in groups:
        best = int(group[np.argmax(relative[group])])
        yield readable[best], float(relative[best])


def choose_views(scores: NDArray[np.float16], areas: NDArray[np.float32]) -> list[int]:
    """Numbers of the views whose best scores come near those of all views, the most useful first.

    Greedy: each time the view that adds most to the sum over all triangles of area times relative score.
    """
    best = scores.max(axis=0, initial=0).astype(np.float32)
    seen = np.flatnonzero(best > 0)
    if not len(seen):
        return []
    relative = scores[:, seen].astype(np.float32)
    relative *= areas[seen] / best[seen]
    total, reached, chosen = float(areas[seen].sum()), np.zeros(len(seen), np.float32), list[int]()
    while len(chosen) < min(MOST_CHOSEN, len(scores)):
        gains = np.array([float(np.maximum(row, reached).sum()) for row in relative]) - float(reached.sum())
        view = int(np.argmax(gains))
        if gains[view] < MIN_GAIN * total and chosen:
            break
        chosen.append(view)
        reached = np.maximum(reached, relative[view])
    return chosen
