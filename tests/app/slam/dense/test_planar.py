"""Planes between measured pixels: a board without texture, of which only the border is measured."""

import numpy as np

from stream_recon.app.slam.dense.arrays import NumpyArrays
from stream_recon.app.slam.dense.config import StereoConfig
from stream_recon.app.slam.dense.planar import Anchors, flattened
from stream_recon.app.slam.dense.torch_arrays import TorchArrays

WIDTH, HEIGHT = 96, 72


def board() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A slanted board before a far wall: image, true depth [h, w], and which pixels are on the board."""
    x, y = np.meshgrid(np.arange(WIDTH, dtype=np.float32), np.arange(HEIGHT, dtype=np.float32))
    is_board = (x > 16) & (x < 80) & (y > 12) & (y < 60)
    depth = np.where(is_board, 1 / (0.4 + 0.004 * x - 0.002 * y), np.float32(4)).astype(np.float32)
    grey = np.where(is_board, np.float32(60), np.float32(180))
    return grey, depth, is_board


def dented(depth: np.ndarray, is_board: np.ndarray) -> np.ndarray:
    """The depth with a dent of a fifth in the middle of the board."""
    x, y = np.meshgrid(np.arange(WIDTH) - WIDTH / 2, np.arange(HEIGHT) - HEIGHT / 2)
    dent = 1 + 0.2 * np.exp(-(x**2 + y**2) / (2 * 14**2))
    return np.where(is_board, depth * dent, depth).astype(np.float32)


def border_of(is_board: np.ndarray) -> np.ndarray:
    """The pixels of the board within three pixels of its edges."""
    shifted = [np.roll(is_board, shift, axis) for axis in (0, 1) for shift in (-3, 3)]
    return is_board & ~np.logical_and.reduce(shifted)


def flat(prior: np.ndarray, known: np.ndarray, error: float, arrays=None) -> np.ndarray:
    """The depth found from a prior and true depth at known pixels; ``error``: log error of the prior there."""
    arrays = arrays or NumpyArrays()
    grey, truth, _ = board()
    weight = known.astype(np.float32)
    given = [arrays.array(np.asarray(a, np.float32)) for a in (grey, prior, error * weight, truth, weight)]
    return arrays.numpy(flattened(arrays, *given[:3], Anchors(*given[3:]), StereoConfig()))


def test_a_board_is_flat_between_its_measured_edges():
    _, truth, is_board = board()
    prior = dented(truth, is_board)
    found = flat(prior, border_of(is_board) | ~is_board, 0.08)
    inside = is_board & ~border_of(is_board)
    before, after = (np.abs(z / truth - 1)[inside] for z in (prior, found))
    assert before.max() > 0.15
    assert after.mean() < 0.5 * before.mean()
    assert after.max() < 0.5 * before.max()


def test_a_surface_without_measurements_keeps_its_distance():
    _, truth, is_board = board()
    prior = dented(truth, is_board)
    found = flat(prior, ~is_board, 0.08)
    assert abs(np.mean(found[is_board]) / np.mean(prior[is_board]) - 1) < 0.05


def test_a_good_prior_is_kept():
    _, truth, is_board = board()
    prior = dented(truth, is_board)
    found = flat(prior, border_of(is_board) | ~is_board, 0.01)
    assert np.abs(found / prior - 1)[is_board].max() < 0.04


def test_planes_end_at_edges():
    _, truth, is_board = board()
    found = flat(truth, border_of(is_board), 0.08)
    assert np.abs(found / truth - 1).max() < 0.04


def test_torch_gives_the_same():
    _, truth, is_board = board()
    prior, known = dented(truth, is_board), border_of(is_board) | ~is_board
    a, b = (flat(prior, known, 0.08, arrays) for arrays in (NumpyArrays(), TorchArrays("cpu")))
    assert np.abs(a / b - 1).max() < 1e-3


def test_nothing_measured_changes_nothing():
    _, truth, is_board = board()
    prior = dented(truth, is_board)
    np.testing.assert_allclose(flat(prior, np.zeros_like(is_board), 0.0), prior, rtol=1e-6)
