"""How well each view shows each triangle of a mesh, and the choice of a few views that together show all."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.cores import usable_cores
from stream_recon.app.core.ply import uniform_indices
from stream_recon.app.mesh.config import ViewConfig
from stream_recon.app.mesh.fusion import Report, SourceView, source_view
from stream_recon.app.mesh.rasterizer import Projection, of_all, of_two, project_vertices, rasterize, signed_areas
from stream_recon.app.mesh.surface import Mesh
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.files import in_order
from stream_recon.app.result.folder import ResultFolder
from stream_recon.configs.errors import OutputError


@dataclass(frozen=True)
class ScoredViews:
    """Views of a mesh and the quality of each triangle in each one."""

    cameras: list[FrameCamera]  # [V]
    scores: NDArray[np.float16]  # [V, M] 0 where a triangle is not visible, else higher is better
    covered: float
    """Share of the views' pixels of known depth that show the mesh."""


@dataclass(frozen=True)
class _Score:
    """The K triangles that a view shows."""

    chosen: NDArray[np.intp]  # [K]
    quality: NDArray[np.float64]  # [K]
    covered: tuple[int, int]
    """Pixels of known depth that show the mesh, and all."""


def score_views(
    result: ResultFolder,
    cameras: Sequence[FrameCamera],
    mesh: Mesh,
    voxel: float,
    config: ViewConfig,
    report: Report = lambda share: None,
) -> ScoredViews:
    """Score all triangles in each of these frames, or in some of them; unreadable frames are left out."""
    normals, areas = normals_and_areas(mesh)
    some = [cameras[number] for number in uniform_indices(len(cameras), config.max_scored)]
    scores = np.zeros((len(some), len(mesh.faces)), np.float16)
    centres = mesh.xyz[mesh.faces].mean(axis=1)

    def scored(camera: FrameCamera) -> _Score | None:
        try:
            view = source_view(result, camera)
        except OutputError:
            return None
        projection = project_vertices(mesh.xyz, view.T_world_camera, view.camera)
        inverse = _inverse_depth(projection, mesh.faces, view, config)
        filmed = cv2.resize(((view.depth > 0) & ~view.masked).astype(np.uint8), inverse.shape[::-1], None, 0, 0, 0) > 0
        vertices = visible_vertices(projection, inverse, view, 2 * voxel, config)
        complete = of_all(vertices, mesh.faces)
        # A triangle on the outline of something in front: better than none, if no other view shows it.
        visible = complete | of_two(vertices, mesh.faces)
        direction = view.T_world_camera[:3, 3].astype(np.float32) - centres
        length = np.sqrt(np.einsum("ij,ij->i", direction, direction))
        cosine = np.einsum("ij,ij->i", direction, normals) / np.maximum(length, 1e-12)
        visible &= cosine > config.min_cosine
        chosen = np.flatnonzero(visible)
        pixels = signed_areas(projection, mesh.faces[chosen]).clip(0) / areas[chosen]
        # Texels per length times the cosine: the square root of the area has one factor sqrt(cosine) already.
        quality = np.sqrt(pixels * cosine[chosen]) * np.where(complete[chosen], 1.0, config.incomplete)
        drawn = (int((inverse[filmed] > 0).sum()), int(filmed.sum()))
        return _Score(chosen, quality, drawn)

    scale, covered, readable = 0.0, np.zeros(2), list[int]()
    threads = min(usable_cores(), 4)  # each has its image in memory
    with ThreadPoolExecutor(threads, "views") as pool:
        for number, score in enumerate(in_order(pool, scored, ((camera,) for camera in some), ahead=threads)):
            report((number + 1) / len(some))
            if score is None:
                continue
            readable.append(number)
            covered += score.covered
            if len(score.chosen):
                scale = scale or max(float(np.median(score.quality)), 1e-9)
                scores[number, score.chosen] = (score.quality / scale).clip(1e-3, 1e3)
    return ScoredViews([some[n] for n in readable], scores[readable], float(covered[0] / max(covered[1], 1)))


def normals_and_areas(mesh: Mesh) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Unit normals [M, 3] and areas [M] of the triangles."""
    a, b, c = (mesh.xyz[mesh.faces[:, k]] for k in range(3))
    normals = np.cross(b - a, c - a)
    length = np.linalg.norm(normals, axis=1)
    return normals / np.maximum(length, 1e-20)[:, None], np.maximum(length / 2, 1e-20)


def _inverse_depth(
    projection: Projection, faces: NDArray[np.int32], view: SourceView, config: ViewConfig
) -> NDArray[np.float32]:
    """Inverse depth [h, w] of the mesh in a view, 0 where it is not."""
    height, width = view.image.shape[:2]
    factor = min(config.depth_side / max(height, width), 1.0)
    size = (max(round(width * factor), 1), max(round(height * factor), 1))
    return rasterize(projection.scaled(factor), faces, size)[1]


def visible_vertices(
    projection: Projection, inverse: NDArray[np.float32], view: SourceView, margin: float, config: ViewConfig
) -> NDArray[np.bool_]:
    """Which vertices [N] a view shows: within its image, not behind the mesh, and not behind its own depth map.

    ``inverse``: of the mesh, see `_inverse_depth`. ``margin``: distance by which a vertex may be behind it, in addition
    to the tolerance.
    """
    height, width = view.image.shape[:2]
    border = config.border * max(height, width)
    xy, z = projection.xy, projection.z
    visible = (
        (z > 0)
        & (xy[:, 0] >= border)
        & (xy[:, 1] >= border)
        & (xy[:, 0] < width - border)
        & (xy[:, 1] < height - border)
    )
    factor = min(config.depth_side / max(height, width), 1.0)
    # The nearest of the neighbours: a vertex next to the outline of something in front is not visible.
    inverse = cv2.dilate(inverse, np.ones((config.outline, config.outline), np.uint8))
    chosen = np.flatnonzero(visible)
    column, row = (xy[chosen] * np.float32(factor)).astype(np.intp).T
    nearest = 1 / np.maximum(inverse[row.clip(0, inverse.shape[0] - 1), column.clip(0, inverse.shape[1] - 1)], 1e-12)
    unhidden = z[chosen] < nearest * (1 + config.tolerance) + margin
    rows, columns = view.depth.shape
    column = (xy[chosen, 0] * (columns / width)).astype(np.intp).clip(0, columns - 1)
    row = (xy[chosen, 1] * (rows / height)).astype(np.intp).clip(0, rows - 1)
    depth = view.depth[row, column]
    unhidden &= (depth == 0) | (z[chosen] < depth * (1 + config.in_front) + margin)
    unhidden &= ~view.masked[row, column]
    visible[chosen] = unhidden
    return np.asarray(visible)


def choose_views(scores: NDArray[np.float16], areas: NDArray[np.float32], config: ViewConfig) -> list[int]:
    """Numbers of the views whose best scores come near those of all views, the most useful first.

    Greedy: each time the view that adds most to the sum over all triangles of area times relative score.
    """
    best = scores.max(axis=0, initial=0).astype(np.float32)
    shown = np.flatnonzero(best > 0)
    if not len(shown):
        return []
    relative = scores[:, shown].astype(np.float32)
    relative *= areas[shown] / best[shown]
    total, reached, chosen = float(areas[shown].sum()), np.zeros(len(shown), np.float32), list[int]()
    # No gain grows as views are chosen: only those are computed anew whose last one exceeds all that are.
    gains = np.full(len(scores), np.inf)
    while len(chosen) < min(config.max_chosen, len(scores)):
        is_new, base = np.zeros(len(scores), bool), float(reached.sum())
        while not is_new[view := int(np.argmax(gains))]:
            gains[view], is_new[view] = float(np.maximum(relative[view], reached).sum()) - base, True
        if gains[view] < config.min_gain * total and chosen:
            break
        chosen.append(view)
        reached = np.maximum(reached, relative[view])
    return chosen
