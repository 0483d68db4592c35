"""Colours of a texture's pixels, as means over all views that show them, weighted by their quality.

The image of one view has that view's errors of pose and depth; a mean of many has few. Exposure differs between and
within images, so each image is first brought to the mean colours of the mesh by a smooth correction.
"""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.mesh.config import BlendConfig
from stream_recon.app.mesh.fusion import SourceView
from stream_recon.app.mesh.rasterizer import Projection, barycentric, project_vertices, rasterize, sampled
from stream_recon.app.mesh.surface import Mesh

FloatArray = NDArray[np.float32]


BAND = 512
"""Rows of an image that are blended at a time: bounds memory."""


@dataclass(frozen=True)
class Texels:
    """Pixels of an image of the atlas that show triangles, and the sums of their colours."""

    pixel: NDArray[np.int32]  # [K] row * width + column
    triangle: NDArray[np.int32]  # [K] number in the mesh
    xyz: FloatArray  # [K, 3]
    sums: FloatArray  # [K, 3] weighted colours
    weight: FloatArray  # [K]

    def split(self, count: int) -> "list[Texels]":
        """Parts that share their sums with this one."""
        arrays = (self.pixel, self.triangle, self.xyz, self.sums, self.weight)
        return [Texels(*part) for part in zip(*(np.array_split(values, count) for values in arrays), strict=True)]


def image_texels(
    size: tuple[int, int], pixels: FloatArray, faces: NDArray[np.int32], xyz: FloatArray, numbers: NDArray[np.intp]
) -> Texels:
    """The pixels of an image of this width and height.

    Args:
        pixels: [N, 2] of each vertex in the image.
        faces: [M, 3] triangles of the image.
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
    pixel = (rows * size[0] + columns).astype(np.int32)
    return Texels(pixel, numbers[local].astype(np.int32), points, np.zeros_like(points), zeros)


def levelled_image(view: SourceView, mesh: Mesh, shown: NDArray[np.bool_], config: BlendConfig) -> NDArray[np.uint8]:
    """The view's image with a smooth correction to the colours of the triangles ``shown`` [M]."""
    height, width = view.image.shape[:2]
    factor = min(config.level_side / max(height, width), 1.0)
    size = (max(round(width * factor), 1), max(round(height * factor), 1))
    projection = project_vertices(mesh.xyz, view.T_world_camera, view.camera).scaled(factor)
    owner, _ = rasterize(projection, mesh.faces, size, shown)
    rows, columns, shares = barycentric(projection, mesh.faces, owner)
    corners = mesh.faces[owner[rows, columns]]
    mean = np.einsum("kc,kcj->kj", shares, mesh.rgb[corners].astype(np.float32))
    small = cv2.resize(view.image, size, interpolation=cv2.INTER_AREA).astype(np.float32)
    step, known = np.zeros_like(small), np.zeros(small.shape[:2], np.float32)
    step[rows, columns] = (mean - small[rows, columns]).clip(-config.max_step, config.max_step)
    known[rows, columns] = 1
    amount = cv2.GaussianBlur(step, (0, 0), config.level_blur)
    amount /= np.maximum(cv2.GaussianBlur(known, (0, 0), config.level_blur), np.float32(config.fade))[..., None]
    amount = cv2.resize(amount, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.asarray(np.rint(view.image + amount).clip(0, 255), np.uint8)


def add_view(texels: Texels, view: SourceView, image: NDArray[np.uint8], weight: FloatArray) -> None:
    """Add a view's levelled image to the sums. ``weight``: [M] of each triangle of the mesh, 0 where not shown."""
    limit = np.array(image.shape[1::-1], np.float32) - 1
    factor = weight[texels.triangle]
    some = np.flatnonzero(factor > 0)
    if len(some):
        # `take` is twice as fast as an index.
        projection = project_vertices(texels.xyz.take(some, axis=0), view.T_world_camera, view.camera)
        factor = factor[some]
        colours = sampled(image, projection.xy.clip(0, limit)) * factor[:, None]
        texels.sums[some] = texels.sums.take(some, axis=0) + colours
        texels.weight[some] += factor


def blend(image: NDArray[np.uint8], texels: Texels, padding: int) -> None:
    """Replace the image's pixels by their means, and move the ``padding`` pixels around them by as much."""
    height, width = image.shape[:2]
    blended = np.empty_like(image)
    for top in range(0, height, BAND):
        first, last = max(top - padding, 0), min(top + BAND + padding, height)
        some = slice(*np.searchsorted(texels.pixel, [first * width, last * width]))  # in order
        known = np.flatnonzero(texels.weight[some] > 0)
        means = texels.sums[some][known] / texels.weight[some][known, None]
        places = np.divmod(texels.pixel[some][known] - first * width, width)
        moved = _moved(image[first:last], places, means, padding)
        blended[top : top + BAND] = moved[top - first :][:BAND]
    image[:] = blended


def _moved(
    image: NDArray[np.uint8], places: tuple[NDArray[np.int32], ...], means: FloatArray, padding: int
) -> NDArray[np.uint8]:
    """The image with means [K, 3] at rows and columns [K], and the pixels around them moved by as much."""
    difference = np.zeros(image.shape, np.float32)
    difference[places] = means - image[places]
    known = np.zeros(image.shape[:2], np.float32)
    known[places] = 1
    for _ in range(padding):
        near = cv2.blur(known, (3, 3), borderType=cv2.BORDER_CONSTANT)
        grown = cv2.blur(difference, (3, 3), borderType=cv2.BORDER_CONSTANT)
        new = (known == 0) & (near > 1e-6)
        difference[new] = grown[new] / near[new][:, None]
        known[new] = 1
    return np.asarray(np.rint(image + difference).clip(0, 255), np.uint8)
