"""Texture of a mesh from the images of a result's frames."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.cores import usable_cores
from stream_recon.app.mesh.atlas import Packing, copy_patches, pack_patches
from stream_recon.app.mesh.blending import Texels, add_view, blend, image_texels, levelled_image
from stream_recon.app.mesh.config import AtlasConfig, TextureConfig
from stream_recon.app.mesh.fusion import Report, SourceView, source_view
from stream_recon.app.mesh.labelling import neighbours, patches_of, view_labels
from stream_recon.app.mesh.rasterizer import project_vertices
from stream_recon.app.mesh.surface import Mesh, subset
from stream_recon.app.mesh.view_scores import choose_views, normals_and_areas, score_views
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.depth import jpeg_of
from stream_recon.app.result.files import in_order
from stream_recon.app.result.folder import ResultFolder

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class TexturedPart:
    """Triangles that share an image of the atlas."""

    xyz: FloatArray  # [N, 3]
    faces: NDArray[np.int32]  # [M, 3]
    uv: FloatArray  # [N, 2] as in glTF, see `Primitive`
    jpeg: bytes


@dataclass(frozen=True)
class TexturedMesh:
    """A mesh whose triangles have an image where a frame shows them, and else colours at vertices."""

    parts: list[TexturedPart]
    untextured: Mesh
    """Triangles that no frame shows."""
    views: int
    """Number of frames whose images are used."""
    covered: float
    """Share of what the frames show of known depth that the mesh covers."""

    @property
    def triangles(self) -> int:
        return sum(len(part.faces) for part in self.parts) + len(self.untextured.faces)


@dataclass(frozen=True)
class _Patches:
    """Textured triangles with vertices of their own for each patch."""

    view: NDArray[np.int32]  # [P] view of each patch
    patch: NDArray[np.intp]  # [M] patch of each triangle
    source: NDArray[np.intp]  # [N] vertex of the mesh
    owner: NDArray[np.intp]  # [N] patch of each vertex
    faces: NDArray[np.int32]  # [M, 3]


@dataclass(frozen=True)
class _Part:
    """The textured triangles on one image of the atlas."""

    image: int
    pixel: FloatArray  # [K, 2] pixel in the image
    xyz: FloatArray  # [K, 3]
    faces: NDArray[np.int32]  # [M, 3] of these vertices
    numbers: NDArray[np.intp]  # [M] the triangles' numbers in the mesh


def textured(
    result: ResultFolder,
    cameras: Sequence[FrameCamera],
    mesh: Mesh,
    voxel: float,
    config: TextureConfig,
    report: Report = lambda share: None,
) -> TexturedMesh:
    """Texture a mesh with the images of these frames. Raises OutputError where one cannot be read."""
    scored = score_views(result, cameras, mesh, voxel, config.views, lambda share: report(0.7 * share))
    chosen = choose_views(scored.scores, normals_and_areas(mesh)[1], config.views)
    labels = view_labels(mesh, scored.scores[chosen], config.labels)
    report(0.8)
    shown = labels >= 0
    untextured = subset(mesh, ~shown)
    if not shown.any():
        return TexturedMesh([], untextured, 0, scored.covered)
    patches = _patches(Mesh(mesh.xyz, mesh.rgb, mesh.faces[shown]), labels[shown], len(mesh.xyz))
    used = [scored.cameras[number] for number in chosen]
    pixels = _pixels(result, used, mesh, patches)
    packing = _packing(patches, pixels, config.atlas)
    atlas = [np.full((height, width, 3), 127, np.uint8) for width, height in packing.sizes]
    parts = _parts(mesh, patches, packing, pixels, np.flatnonzero(shown))

    def prepared(number: int, camera: FrameCamera) -> tuple[SourceView, NDArray[np.uint8]]:
        view = source_view(result, camera)
        return view, levelled_image(view, mesh, scored.scores[number] > 0, config.blend)

    def finished(part: _Part, some: Texels) -> TexturedPart:
        blend(atlas[part.image], some, config.atlas.padding)
        return _textured_part(part, atlas[part.image], config.atlas.jpeg_quality)

    with ThreadPoolExecutor(usable_cores(), "texture") as pool:
        texels = list(
            pool.map(lambda p: image_texels(packing.sizes[p.image], p.pixel, p.faces, p.xyz, p.numbers), parts)
        )
        chunks = [chunk for some in texels for chunk in some.split(usable_cores())]
        # Two views at once: one of 12 megapixels takes .5 GB.
        for number, (view, image) in enumerate(in_order(pool, prepared, enumerate(scored.cameras), ahead=1)):
            report(0.8 + 0.18 * number / len(scored.cameras))
            if number in chosen:
                copy_patches(atlas, packing, np.flatnonzero(patches.view == chosen.index(number)), image)
            weight = np.asarray(scored.scores[number], np.float32) ** config.blend.power
            list(pool.map(add_view, chunks, repeat(view), repeat(image), repeat(weight)))
        textured_parts = list(pool.map(finished, parts, texels))
    report(1.0)
    return TexturedMesh(textured_parts, untextured, len(np.unique(patches.view)), scored.covered)


def _patches(mesh: Mesh, labels: NDArray[np.int32], count: int) -> _Patches:
    pairs, _ = neighbours(mesh)
    _, patch = np.unique(patches_of(labels, pairs), return_inverse=True)
    view = np.zeros(int(patch.max()) + 1, np.int32)
    view[patch] = labels
    codes, faces = np.unique((patch[:, None] * count + mesh.faces).ravel(), return_inverse=True)
    owner, source = np.divmod(codes, count)
    return _Patches(view, patch, source, owner, faces.reshape(-1, 3).astype(np.int32))


def _pixels(result: ResultFolder, used: Sequence[FrameCamera], mesh: Mesh, patches: _Patches) -> FloatArray:
    """Pixel [N, 2] of each vertex in the image of its patch's view."""
    pixels = np.zeros((len(patches.source), 2), np.float32)
    view_of = patches.view[patches.owner]
    for view in np.unique(patches.view).tolist():
        of_view = np.flatnonzero(view_of == view)
        shown = source_view(result, used[view])
        projection = project_vertices(mesh.xyz[patches.source[of_view]], shown.T_world_camera, shown.camera)
        pixels[of_view] = projection.xy
    return pixels


def _packing(patches: _Patches, pixels: FloatArray, config: AtlasConfig) -> Packing:
    low = np.full((len(patches.view), 2), np.inf, np.float32)
    high = np.full((len(patches.view), 2), -np.inf, np.float32)
    np.minimum.at(low, patches.owner, pixels)
    np.maximum.at(high, patches.owner, pixels)
    return pack_patches(low, high, config)


def _parts(
    mesh: Mesh, patches: _Patches, packing: Packing, pixels: FloatArray, numbers: NDArray[np.intp]
) -> list[_Part]:
    """The parts of the mesh on the images of the atlas. ``numbers``: [M] of the triangles in the mesh."""
    pixel = packing.corner[patches.owner] + (pixels - packing.origin[patches.owner]) * np.float32(packing.scale)
    parts = []
    for image in range(len(packing.sizes)):
        some = np.flatnonzero(packing.image[patches.patch] == image)
        if len(some):
            vertices, local = np.unique(patches.faces[some], return_inverse=True)
            faces: NDArray[np.int32] = local.reshape(-1, 3).astype(np.int32)
            xyz = mesh.xyz[patches.source[vertices]]
            parts.append(_Part(image, pixel[vertices].astype(np.float32), xyz, faces, numbers[some]))
    return parts


def _textured_part(part: _Part, image: NDArray[np.uint8], quality: int) -> TexturedPart:
    uv = part.pixel / np.array([image.shape[1], image.shape[0]], np.float32)
    return TexturedPart(part.xyz, part.faces, np.asarray(uv, np.float32), jpeg_of(image, quality))
