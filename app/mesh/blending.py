"""Colours of a texture's pixels, as means over all views that show them, weighted by their quality.

The image of one view has that view's errors of pose and depth; a mean of many has few. Exposure differs between and
within images, so each image is first brought to the mean colours of the mesh by a smooth correction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.mesh.fusion import SourceView
from stream_recon.app.mesh.rasterizer import Projection, barycentric, project_vertices, rasterize, sampled
from stream_recon.app.mesh.surface import Mesh

FloatArray = NDArray[np.float32]
LEVEL_SIDE = 200
"""Longer side in pixels of the picture in which exposure is compared."""
LEVEL_BLUR = 10.0
"""Standard deviation in its pixels of the window that corrections are averaged over: wider than misalignments."""
MOST_STEP = 60.0
"""Largest difference in levels of 255 that is compared: a larger one is something else, not exposure."""
FADE = 0.05
"""Share of the window that must be known for a full correction."""
POWER = 2
"""Power of a view's quality that is its weight in the mean."""


@dataclass(frozen=True)
class Texels:
    """Pixels of a page that show triangles, and the sums of their colours."""

    place: NDArray[np.int32]  # [K] row * width + column
    triangle: NDArray[np.int32]  # [K] number in the mesh
    xyz: FloatArray  # [K, 3]
    sums: FloatArray  # [K, 3] weighted colours
    weight: FloatArray  # [K]


def page_texels(
    size: tuple[int, int], pixels: FloatArray, faces: NDArray[np.int32], xyz: FloatArray, numbers: NDArray[np.intp]
) -> Texels:
    """The pixels of a page of this width and height.

    Args:
        pixels: [N, 2] place of each vertex in the page.
        faces: [M, 3] triangles of the page.
        xyz: [N, 3] position of each vertex.
        numbers: [M] the triangles' numbers in the mesh.
    """
    projection = Projection(pixels, np.ones(len(pixels), np.float32))
    owner, _ = rasterize(projection, faces, size)
    rows, columns, shares = barycentric(projection, faces, owner, perspective=False)
    local = owner[rows, columns]
    corners = faces[local]
    points = np.zeros((len(rows), 3), np.float32)
    for k in range(3):
        points += shares[:, k, None] * xyz[corners[:, k]]
    zeros = np.zeros(len(rows), np.float32)
    place = (rows * size[0] + columns).astype(np.int32)
    return Texels(place, numbers[local].astype(np.int32), points, np.zeros_like(points), zeros)


def levelled_image(view: SourceView, mesh: Mesh, shown: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The view's image with a smooth correction to the colours of the triangles ``shown`` [M]."""
    height, width = view.image.shape[:2]
    factor = min(LEVEL_SIDE / max(height, width), 1.0)
    size = (max(round(width * factor), 1), max(round(height * factor), 1))
    projection = project_vertices(mesh.xyz, view.T_world_camera, view.camera).scaled(factor)
    owner, _ = rasterize(projection, mesh.faces, size, shown)
    rows, columns, shares = barycentric(projection, mesh.faces, owner)
    corners = mesh.faces[owner[rows, columns]]
    mean = np.einsum("kc,kcj->kj", shares, mesh.rgb[corners].astype(np.float32))
    small = cv2.resize(view.image, size, interpolation=cv2.INTER_AREA).astype(np.float32)
    step, known = np.zeros_like(small), np.zeros(small.shape[:2], np.float32)
    step[rows, columns] = (mean - small[rows, columns]).clip(-MOST_STEP, MOST_STEP)
    known[rows, columns] = 1
    amount = cv2.GaussianBlur(step, (0, 0), LEVEL_BLUR)
    amount /= np.maximum(cv2.GaussianBlur(known, (0, 0), LEVEL_BLUR), np.float32(FADE))[..., None]
    amount = cv2.resize(amount, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.asarray(np.rint(view.image + amount).clip(0, 255), np.uint8)


def add_view(
    pages: Sequence[Texels], view: SourceView, image: NDArray[np.uint8], quality: NDArray[np.floating]
) -> None:
    """Add a view's levelled image to the sums. ``quality``: [M] of each triangle of the mesh, 0 where not shown."""
    weight = np.asarray(quality, np.float32) ** POWER
    limit = np.array(image.shape[1::-1], np.float32) - 1
    for page in pages:
        some = np.flatnonzero(weight[page.triangle] > 0)
        if not len(some):
            continue
        projection = project_vertices(page.xyz[some], view.T_world_camera, view.camera)
        factor = weight[page.triangle[some]]
        page.sums[some] += sampled(image, projection.xy.clip(0, limit)) * factor[:, None]
        page.weight[some] += factor


def blend(page: NDArray[np.uint8], texels: Texels, padding: int) -> None:
    """Replace the page's pixels by their means, and move the ``padding`` pixels around them by as much."""
    some = np.flatnonzero(texels.weight > 0)
    rows, columns = np.divmod(texels.place[some], page.shape[1])
    difference = np.zeros(page.shape, np.float32)
    difference[rows, columns] = texels.sums[some] / texels.weight[some, None] - page[rows, columns]
    known = np.zeros(page.shape[:2], np.float32)
    known[rows, columns] = 1
    for _ in range(padding):
        near = cv2.blur(known, (3, 3), borderType=cv2.BORDER_CONSTANT)
        grown = cv2.blur(difference, (3, 3), borderType=cv2.BORDER_CONSTANT)
        new = (known == 0) & (near > 1e-6)
        difference[new] = grown[new] / near[new][:, None]
        known[new] = 1
    page[:] = np.rint(page + difference).clip(0, 255)
