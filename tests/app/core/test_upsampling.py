"""Depth maps made finer by the image."""

import numpy as np
import pytest

from stream_recon.app.export.depth import upsample_depth


def picture(edge: float, size: tuple[int, int] = (96, 128)) -> tuple[np.ndarray, np.ndarray]:
    """An image [H, W, 3] of something dark and near before something light, and its depth [H, W]."""
    height, width = size
    near = np.arange(width) < edge * width
    rng = np.random.default_rng(0)
    image = np.where(near, 60, 180)[None, :, None] + rng.normal(0, 4, (height, width, 3))
    return image.astype(np.uint8), np.broadcast_to(np.where(near, 1.0, 3.0), size).astype(np.float32)


@pytest.mark.parametrize("edge", [0.5, 0.37, 0.701])
def test_an_edge_of_depth_goes_to_the_edge_of_colour(edge: float) -> None:
    image, truth = picture(edge)
    fine = upsample_depth(truth[1::4, 1::4].copy(), image)
    assert fine.shape == truth.shape and fine.dtype == np.float32
    assert np.abs(fine / truth - 1).max() < 0.02


def test_a_plane_stays_one_up_to_the_border() -> None:
    rows, columns = np.meshgrid(np.arange(96) + 0.5, np.arange(128) + 0.5, indexing="ij")
    truth = (1 / (0.3 + 0.004 * columns - 0.002 * rows)).astype(np.float32)
    coarse = truth.reshape(24, 4, 32, 4)[:, 1:3, :, 1:3].mean((1, 3))
    fine = upsample_depth(coarse, np.full((96, 128, 3), 90, np.uint8))
    assert np.abs(fine / truth - 1).max() < 1e-3


def test_where_there_is_no_depth_none_is_made() -> None:
    image, truth = picture(0.5)
    coarse = truth[1::4, 1::4].copy()
    coarse[:6] = 0
    fine = upsample_depth(coarse, image)
    assert not fine[:22].any() and (fine[26:] > 0).all()
    assert np.isin(np.round(fine[fine > 0], 1), (1.0, 3.0)).all(), "what is left out has no say"
    assert not upsample_depth(np.zeros_like(coarse), image).any()


def test_an_image_of_the_same_size_keeps_depth() -> None:
    image, truth = picture(0.4)
    assert np.allclose(upsample_depth(truth, image), truth, rtol=0.02)
