"""Means of views in textures."""

import numpy as np

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.mesh.blending import add_view, blend, image_texels, levelled_image
from stream_recon.app.mesh.config import BlendConfig
from stream_recon.app.mesh.fusion import SourceView
from stream_recon.app.mesh.surface import Mesh

WIDTH, HEIGHT = 96, 72
CAMERA = Intrinsics(80.0, 80.0, 48.0, 36.0)


def wall() -> Mesh:
    """A wall at distance 1 that fills the image, in one colour."""
    xyz = np.array([[-1, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1]], np.float32)
    return Mesh(xyz, np.full((4, 3), 120, np.uint8), np.array([[0, 2, 1], [0, 3, 2]], np.int32))


def view(image: np.ndarray) -> SourceView:
    return SourceView(image, CAMERA, np.eye(4), np.ones((HEIGHT, WIDTH), np.float32), np.zeros((HEIGHT, WIDTH), bool))


def stripes(noise: float, seed: int) -> np.ndarray:
    detail = 120 + 40 * np.sign(np.sin(np.arange(WIDTH)))[None, :, None]
    return (detail + np.random.default_rng(seed).normal(0, noise, (HEIGHT, WIDTH, 3))).clip(0, 255).astype(np.uint8)


def test_exposure_is_levelled_and_detail_stays() -> None:
    truth = stripes(0, 0).astype(np.float64)
    slope = np.linspace(-30, 20, HEIGHT)[:, None, None]
    exposed = view((truth + slope).astype(np.uint8))
    levelled = levelled_image(exposed, wall(), np.ones(2, bool), BlendConfig()).astype(np.float64)
    assert np.abs(levelled.mean(axis=(1, 2)) - 120).max() < 12 < np.abs(slope).max()
    assert np.corrcoef(levelled.ravel(), truth.ravel())[0, 1] > 0.98


def test_the_mean_of_views_has_less_noise_than_one() -> None:
    # An atlas that is the image itself: its pixels are the wall's.
    corners = np.array([[0, 0], [WIDTH, 0], [WIDTH, HEIGHT], [0, HEIGHT]], np.float32)
    rays = (corners - [CAMERA.cx, CAMERA.cy]) / [CAMERA.fx, CAMERA.fy]
    xyz = np.concatenate([rays, np.ones((4, 1))], axis=1).astype(np.float32)
    faces = np.array([[0, 1, 2], [0, 2, 3]], np.int32)
    texels = image_texels((WIDTH, HEIGHT), corners, faces, xyz, np.arange(2))
    assert len(texels.pixel) == WIDTH * HEIGHT
    for seed in range(9):
        add_view(texels, view(stripes(20, seed)), stripes(20, seed), np.ones(2, np.float32))
    add_view(texels, view(stripes(20, 9)), np.full((HEIGHT, WIDTH, 3), 255, np.uint8), np.zeros(2, np.float32))
    atlas = stripes(20, 0)
    before = np.abs(atlas - stripes(0, 0).astype(float)).mean()
    blend(atlas, texels, 2)
    assert np.abs(atlas - stripes(0, 0).astype(float)).mean() < 0.4 * before


def test_padding_moves_with_its_patch() -> None:
    corners = np.array([[8, 8], [24, 8], [24, 24], [8, 24]], np.float32)
    xyz = np.concatenate([corners, np.ones((4, 1))], axis=1).astype(np.float32)
    texels = image_texels((32, 32), corners, np.array([[0, 1, 2], [0, 2, 3]], np.int32), xyz, np.arange(2))
    texels.weight[:] = 1
    texels.sums[:] = 150
    atlas = np.full((32, 32, 3), 100, np.uint8)
    blend(atlas, texels, 3)
    assert (atlas[5:27, 8:24] == 150).all() and (atlas[:5] == 100).all() and (atlas[27:] == 100).all()
