"""Shrinkage of depth scales."""

import numpy as np

from stream_recon.app.slam.evidence.depth_scales import shrunk


def test_noise_is_removed() -> None:
    random = np.random.default_rng(0)
    value = 0.3 + random.normal(0, 0.02, 200)
    found = shrunk(value, np.full(200, 0.02**2))
    assert np.std(found) < 0.3 * np.std(value)
    assert abs(found.mean() - 0.3) < 0.01


def test_certain_values_stay() -> None:
    value = np.linspace(-0.5, 0.5, 50)
    assert np.abs(shrunk(value, np.full(50, 1e-4)) - value).max() < 0.01


def test_uncertain_values_move_further_to_the_mean() -> None:
    value = np.array([-0.2, -0.1, 0.0, 0.1, 0.2, 0.5])
    variance = np.array([1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 0.1])
    found = shrunk(value, variance)
    assert abs(found[4] - 0.2) < 0.02 and found[5] < 0.25


def test_the_unknown_stays_unknown() -> None:
    found = shrunk(np.array([0.1, np.nan, 0.3]), np.array([1e-4, np.nan, 1e-4]))
    assert np.isnan(found[1]) and np.isfinite(found[[0, 2]]).all()
    assert shrunk(np.array([0.1]), np.array([1e-4]))[0] == 0.1
