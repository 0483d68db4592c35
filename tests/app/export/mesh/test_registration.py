import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.export.mesh.fusion import SourceView
from stream_recon.app.export.mesh.rasterizer import project_vertices
from stream_recon.app.export.mesh.registration import offsets
from stream_recon.app.export.mesh.surface import Mesh
from tests.app.export.mesh.signed_wall import SIZE, intrinsics, view

SCALE = 4


def painted_wall() -> Mesh:
    """The part of the wall that a camera at the origin sees, with its picture as colours of vertices."""
    image = view(np.eye(4), SCALE)[0]
    x, y = np.meshgrid(np.arange(2, SIZE[0] * SCALE, 3), np.arange(2, 200, 3))
    k = intrinsics(SCALE)
    xyz = np.stack([(x + 0.5 - k.cx) / k.fx * 2, (y + 0.5 - k.cy) / k.fy * 2, np.full(x.shape, 2.0)], axis=-1)
    number = np.arange(x.size).reshape(x.shape)
    a, b, c, d = number[:-1, :-1], number[:-1, 1:], number[1:, :-1], number[1:, 1:]
    faces = np.concatenate([np.stack([a, c, b], -1).reshape(-1, 3), np.stack([b, c, d], -1).reshape(-1, 3)])
    return Mesh(xyz.reshape(-1, 3).astype(np.float32), image[y, x].reshape(-1, 3), faces.astype(np.int32))


def found(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Offsets at the letters."""
    mesh, depth = painted_wall(), np.full((SIZE[1], SIZE[0]), 2.0, np.float32)
    seen = SourceView(image, intrinsics(SCALE), np.eye(4), depth, np.zeros(depth.shape, bool))
    projection = project_vertices(mesh.xyz, np.eye(4), seen.camera)
    moved = offsets(mesh, projection, seen)
    assert moved.shape == (len(mesh.xyz), 2) and np.isfinite(moved).all()
    blue = mesh.rgb[:, 2].astype(int) - mesh.rgb[:, 0] > 40
    return moved[blue]


@pytest.mark.parametrize("shift", [(0.0, 0.0), (2.0, -1.0), (-3.0, 2.0)])
def test_a_shifted_image_is_registered_whatever_its_exposure(shift: tuple[float, float]) -> None:
    image = view(np.eye(4), SCALE)[0]
    matrix = np.array([[1, 0, shift[0]], [0, 1, shift[1]]])
    moved = cv2.warpAffine(image, matrix, image.shape[1::-1], borderMode=cv2.BORDER_REPLICATE)
    dark = np.asarray(moved * 0.7 + 12, np.uint8)
    assert np.median(found(dark), axis=0) == pytest.approx(shift, abs=0.5)


def test_another_scene_moves_little() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (SIZE[1] * SCALE, SIZE[0] * SCALE, 3)).astype(np.uint8)
    assert np.abs(found(cv2.GaussianBlur(noise, (0, 0), 4))).max() < 0.015 * SIZE[0] * SCALE
