"""Printed markers in pictures whose camera is known."""

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray, invert_pose

BORDER = 0.25
"""White paper around a marker, as a share of its side."""
FINER = 4


def corners(place: FloatArray, right: FloatArray, down: FloatArray, side: float) -> FloatArray:
    """A square [4, 3] around ``place``; ``right`` and ``down`` are unit vectors."""
    half = side / 2
    return np.array([place + half * (a * right + b * down) for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1))])


def pasted(
    rgb: NDArray[np.uint8],
    T_world_camera: FloatArray,
    focal: float,
    square: FloatArray,
    number: int = 7,
    dictionary: int = cv2.aruco.DICT_6X6_250,
) -> NDArray[np.uint8]:
    """The image [h, w, 3] with a marker of that square [4, 3] in the world, in front of all else."""
    marker = cv2.aruco.generateImageMarker(cv2.aruco.getPredefinedDictionary(dictionary), number, 80)
    edge = round(BORDER * 80)
    paper = cv2.copyMakeBorder(marker, edge, edge, edge, edge, cv2.BORDER_CONSTANT, value=255)
    height, width = rgb.shape[:2]
    T = invert_pose(T_world_camera)
    local = square @ T[:3, :3].T + T[:3, 3]
    if local[:, 2].min() < 0.05:
        return rgb
    pixels = local[:, :2] / local[:, 2:] * focal + (width / 2, height / 2)
    if (pixels < -width).any() or (pixels > 2 * width).any():
        return rgb
    inner = np.array([[edge, edge], [edge + 80, edge], [edge + 80, edge + 80], [edge, edge + 80]], np.float32)
    # Pixel (0, 0) covers [0, 1): half a pixel off what OpenCV has, on both sides.
    H = cv2.getPerspectiveTransform(inner - 0.5, (FINER * pixels - 0.5).astype(np.float32))
    size = FINER * width, FINER * height
    warped = cv2.warpPerspective(np.dstack([paper, np.full_like(paper, 255)]), H, size, flags=cv2.INTER_LINEAR)
    small = cv2.resize(warped, (width, height), interpolation=cv2.INTER_AREA).astype(np.float32)
    cover = small[..., 1:] / 255
    # What lies beside the paper was blended in as black.
    return np.asarray(np.rint(rgb * (1 - cover) + small[..., :1]).clip(0, 255), np.uint8)
