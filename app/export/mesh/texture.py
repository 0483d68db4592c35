"""Texture of a mesh from the images of a result's frames."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.export.mesh.atlas import (
    Placement,
    copy_patches,
    correct_page,
    encoded_page,
    place_patches,
)
from stream_recon.app.export.mesh.exposure import seam_corrections, view_gains
from stream_recon.app.export.mesh.fusion import Report, source_view
from stream_recon.app.export.mesh.labelling import neighbours, patches_of, view_labels
from stream_recon.app.export.mesh.rasterizer import project_vertices, sampled
from stream_recon.app.export.mesh.surface import Mesh, subset
from stream_recon.app.export.mesh.view_scores import choose_views, normals_and_areas, score_views
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.folder import ResultFolder

FloatArray = NDArray[np.float32]
SEAM_BLUR = 5
"""Side in pixels of the window that colours at seams are averaged over: views are aligned to about a pixel."""


@dataclass(frozen=True)
class AtlasPage:
    """Triangles that share an image."""

    xyz: FloatArray  # [N, 3]
    faces: NDArray[np.int32]  # [M, 3]
    uv: FloatArray  # [N, 2] as in glTF, see `Primitive`
    jpeg: bytes


@dataclass(frozen=True)
class TexturedMesh:
    """A mesh whose triangles have an image where a frame shows them, and else colours at vertices."""

    pages: list[AtlasPage]
    rest: Mesh
    """Triangles that no frame shows."""
    views: int
    """Number of frames whose images are used."""

    @property
    def triangles(self) -> int:
        return sum(len(page.faces) for page in self.pages) + len(self.rest.faces)


@dataclass(frozen=True)
class _Patches:
    """Textured triangles with vertices of their own for each patch."""

    view: NDArray[np.int32]  # [P] view of each patch
    patch: NDArray[np.intp]  # [M] patch of each triangle
    source: NDArray[np.intp]  # [N] vertex of the mesh
    owner: NDArray[np.intp]  # [N] patch of each vertex
    faces: NDArray[np.int32]  # [M, 3]


def textured(
    result: ResultFolder, cameras: Sequence[Camera], mesh: Mesh, voxel: float, report: Report = lambda share: None
) -> TexturedMesh:
    """Texture a mesh with the images of these frames. Raises OutputError where one cannot be read."""
    scored = score_views(result, cameras, mesh, voxel, lambda share: report(0.7 * share))
    chosen = choose_views(scored.scores, normals_and_areas(mesh)[1])
    scores, colours = scored.scores[chosen], scored.colours[chosen]
    mean = mesh.rgb[mesh.faces].mean(axis=1, dtype=np.float32)
    gains = view_gains(colours, scores > 0, mean)
    levelled = colours.copy()
    for view, gain in zip(levelled, gains, strict=True):
        view[:] = (view * gain).clip(0, 255)
    labels = view_labels(mesh, scores, levelled)
    report(0.8)
    shown = labels >= 0
    rest = subset(mesh, ~shown)
    if not shown.any():
        return TexturedMesh([], rest, 0)
    patches = _patches(subset_faces(mesh, shown), labels[shown], len(mesh.xyz))
    used = [scored.cameras[number] for number in chosen]
    pixels = _pixels(result, used, mesh, patches)
    placement = _placement(patches, pixels)
    atlas = [np.full((height, width, 3), 127, np.uint8) for width, height in placement.pages]
    vertex_colours = np.zeros((len(patches.source), 3), np.float32)
    for view in np.unique(patches.view).tolist():
        report(0.8 + 0.15 * view / len(used))
        image = _gained(source_view(result, used[view]).image, gains[view])
        copy_patches(atlas, placement, np.flatnonzero(patches.view == view), image)
        of_view = np.flatnonzero(patches.view[patches.owner] == view)
        vertex_colours[of_view] = _sampled(image, pixels[of_view])
    # Triangles without texture take part as one more patch, so that their colours fit.
    source = np.concatenate([patches.source, np.unique(mesh.faces[~shown])])
    faces = np.concatenate([patches.faces, rest.faces + np.int32(len(patches.source))])
    before = np.concatenate([vertex_colours, rest.rgb.astype(np.float32)])
    corrections = seam_corrections(before, mesh.rgb[source].astype(np.float32), _seams(source), _edges(faces))
    report(0.97)
    rest = replace(rest, rgb=_rounded(rest.rgb + corrections[len(patches.source) :]))
    pages = _pages(mesh, patches, placement, pixels, atlas, corrections)
    report(1.0)
    return TexturedMesh(pages, rest, len(np.unique(patches.view)))


def _seams(source: NDArray[np.integer]) -> NDArray[np.intp]:
    """Pairs of vertices [N] of patches at one vertex ``source`` of the mesh."""
    order = np.argsort(source, kind="stable")
    same = np.flatnonzero(source[order][1:] == source[order][:-1])
    return np.stack([order[same], order[same + 1]], axis=1)


def _edges(faces: NDArray[np.int32]) -> NDArray[np.intp]:
    """Pairs of vertices of triangles [M, 3] that have an edge, each once."""
    edges = np.sort(faces[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1).astype(np.int64)
    count = int(edges.max(initial=0)) + 1
    return np.stack(np.divmod(np.unique(edges[:, 0] * count + edges[:, 1]), count), axis=1)


def _rounded(colours: NDArray[np.floating]) -> NDArray[np.uint8]:
    return np.asarray(np.rint(colours).clip(0, 255), np.uint8)


def subset_faces(mesh: Mesh, shown: NDArray[np.bool_]) -> Mesh:
    """The mesh with some of its triangles and all of its vertices."""
    return Mesh(mesh.xyz, mesh.rgb, mesh.faces[shown])


def _patches(mesh: Mesh, labels: NDArray[np.int32], count: int) -> _Patches:
    pairs, _ = neighbours(mesh)
    _, patch = np.unique(patches_of(labels, pairs), return_inverse=True)
    view = np.zeros(int(patch.max()) + 1, np.int32)
    view[patch] = labels
    codes, faces = np.unique((patch[:, None] * count + mesh.faces).ravel(), return_inverse=True)
    owner, source = np.divmod(codes, count)
    return _Patches(view, patch, source, owner, faces.reshape(-1, 3).astype(np.int32))


def _pixels(result: ResultFolder, used: Sequence[Camera], mesh: Mesh, patches: _Patches) -> FloatArray:
    """Pixel [N, 2] of each vertex in the image of its patch's view."""
    pixels = np.zeros((len(patches.source), 2), np.float32)
    view_of = patches.view[patches.owner]
    for view in np.unique(patches.view).tolist():
        of_view = np.flatnonzero(view_of == view)
        shown = source_view(result, used[view])
        projection = project_vertices(mesh.xyz[patches.source[of_view]], shown.T_world_camera, shown.camera)
        pixels[of_view] = projection.xy
    return pixels


def _placement(patches: _Patches, pixels: FloatArray) -> Placement:
    low = np.full((len(patches.view), 2), np.inf, np.float32)
    high = np.full((len(patches.view), 2), -np.inf, np.float32)
    np.minimum.at(low, patches.owner, pixels)
    np.maximum.at(high, patches.owner, pixels)
    return place_patches(low, high)


def _gained(image: NDArray[np.uint8], gain: FloatArray) -> NDArray[np.uint8]:
    return _rounded(image * gain)


def _sampled(image: NDArray[np.uint8], pixels: FloatArray) -> FloatArray:
    """Colours [N, 3] of an image at pixels [N, 2], averaged over a small window."""
    smooth = np.asarray(cv2.blur(image, (SEAM_BLUR, SEAM_BLUR)), np.uint8)
    return sampled(smooth, pixels).astype(np.float32)


def _pages(
    mesh: Mesh,
    patches: _Patches,
    placement: Placement,
    pixels: FloatArray,
    atlas: Sequence[NDArray[np.uint8]],
    corrections: FloatArray,
) -> list[AtlasPage]:
    place = placement.corner[patches.owner] + (pixels - placement.origin[patches.owner]) * np.float32(placement.scale)
    place = place.astype(np.float32)
    pages = []
    for number, page in enumerate(atlas):
        faces = patches.faces[placement.page[patches.patch] == number]
        if not len(faces):
            continue
        vertices, numbers = np.unique(faces, return_inverse=True)
        local: NDArray[np.int32] = numbers.reshape(-1, 3).astype(np.int32)
        corrected = correct_page(page, place[vertices], local, corrections[vertices])
        uv = place[vertices] / np.array([page.shape[1], page.shape[0]], np.float32)
        pages.append(AtlasPage(mesh.xyz[patches.source[vertices]], local, uv, encoded_page(corrected)))
    return pages
