"""Registration of images to a mesh: offsets that remove what errors of depth and pose leave.

The mesh with the mean colours of all views, drawn as a view sees it, is compared with the view's image by optical flow
(Kroeger et al., 2016). Views then show the same detail at the same point of the mesh, as in colour map optimization
(Zhou and Koltun, 2014).
"""

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.export.mesh.fusion import SourceView
from stream_recon.app.export.mesh.rasterizer import Projection, barycentric, of_all, rasterize
from stream_recon.app.export.mesh.surface import Mesh

FloatArray = NDArray[np.float32]
SIDE = 480
"""Longer side in pixels of the images that are compared."""
LOCAL = 8.0
"""Standard deviation in pixels of the window that brightness is compared within: exposure does not count."""
WINDOW = 15
"""Side in pixels of the window over which an offset has to make the images more alike."""
LARGEST = 0.015
"""Largest offset as a share of the longer side: a larger one is an error of flow, or of another surface."""
SMOOTH = 3.0
"""Standard deviation in pixels by which offsets are smoothed, so that textures are not bent."""
CONTRAST = 4.0
"""Contrast in levels of 255 of an area without texture, where noise must not decide."""


def offsets(mesh: Mesh, projection: Projection, view: SourceView) -> FloatArray:
    """What to add to the pixels [N, 2] of the vertices in the view's image; 0 where nothing is known."""
    height, width = view.image.shape[:2]
    factor = min(SIDE / max(height, width), 1.0)
    size = (max(round(width * factor), 1), max(round(height * factor), 1))
    small = projection.scaled(factor)
    drawn, covered = _drawn(mesh, small, size)
    image = cv2.resize(view.image, size, interpolation=cv2.INTER_AREA)
    first, second = (_normalized(values, covered) for values in (drawn, image))
    flow = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_FAST).calc(first, second, None)
    x, y = np.meshgrid(np.arange(size[0], dtype=np.float32), np.arange(size[1], dtype=np.float32))
    moved = cv2.remap(second, x + flow[..., 0], y + flow[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    before, after = (_difference(first, other, covered) for other in (second, moved))
    good = (after < before) & (np.hypot(flow[..., 0], flow[..., 1]) < LARGEST * max(size)) & covered
    # Means of the good offsets around; where there are few of them, towards 0.
    weight = cv2.GaussianBlur(good.astype(np.float32), (0, 0), SMOOTH)
    total = cv2.GaussianBlur(np.where(good[..., None], flow, np.float32(0)), (0, 0), SMOOTH)
    smooth = total / np.maximum(weight, 0.5)[..., None]
    column = small.xy[:, 0].clip(0, size[0] - 1).astype(np.intp)
    row = small.xy[:, 1].clip(0, size[1] - 1).astype(np.intp)
    return np.asarray(smooth[row, column] / np.float32(factor), np.float32)


def _drawn(mesh: Mesh, projection: Projection, size: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """The mesh with its vertex colours [h, w, 3], and which pixels show it."""
    owner, _ = rasterize(projection, mesh.faces, size, of_all(projection.z > 0, mesh.faces))
    rows, columns, shares = barycentric(projection, mesh.faces, owner)
    image = np.zeros((size[1], size[0], 3), np.uint8)
    colours = mesh.rgb[mesh.faces[owner[rows, columns]]].astype(np.float32)
    image[rows, columns] = np.rint(np.einsum("kc,kcj->kj", shares, colours))
    return image, owner >= 0


def _normalized(image: NDArray[np.uint8], covered: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Grey image [h, w] with equal local mean and contrast, constant where it is not covered."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
    weight = np.maximum(cv2.GaussianBlur(covered.astype(np.float32), (0, 0), LOCAL), np.float32(1e-3))
    mean = cv2.GaussianBlur(np.where(covered, grey, np.float32(0)), (0, 0), LOCAL) / weight
    centred = np.where(covered, grey - mean, np.float32(0))
    deviation = np.sqrt(cv2.GaussianBlur(centred * centred, (0, 0), LOCAL) / weight)
    return np.asarray((128 + 48 * centred / (deviation + CONTRAST)).clip(0, 255), np.uint8)


def _difference(first: NDArray[np.uint8], second: NDArray[np.uint8], covered: NDArray[np.bool_]) -> FloatArray:
    """Mean difference [h, w] over a window around each pixel."""
    difference = np.where(covered, np.abs(first.astype(np.float32) - second), np.float32(0))
    return np.asarray(cv2.blur(difference, (WINDOW, WINDOW)), np.float32)
