"""Weights of measured depth behind the prior: a few pixels, as of a reflection, or many, as of a hole."""

import numpy as np
import pytest

from stream_recon.app.slam.dense.arrays import NumpyArrays
from stream_recon.app.slam.dense.config import ReflectionConfig
from stream_recon.app.slam.dense.interpolation import MeasuredRatios, without_reflections
from stream_recon.app.slam.dense.torch_arrays import TorchArrays

SIZE = (72, 96)
REFLECTION, BORDER, HOLE = np.s_[30:33, 70:73], np.s_[:, :24], np.s_[10:60, 30:60]


def weights(noise: float = 0.03, behind: float = 0.3, hole: bool = False, arrays=None) -> np.ndarray:
    """Weights where a border and a few pixels ``behind`` the prior are measured; ``noise``: error of the prior."""
    arrays = arrays or NumpyArrays()
    ratio, weight = np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)
    ratio[BORDER] = noise * np.where(np.arange(SIZE[0]) < SIZE[0] // 2, 1, -1)[:, None]
    weight[BORDER] = 1
    for part in (REFLECTION, HOLE) if hole else (REFLECTION,):
        ratio[part], weight[part] = behind, 1
    return arrays.numpy(
        without_reflections(arrays, MeasuredRatios(arrays.array(ratio), arrays.array(weight)), ReflectionConfig())
    )


@pytest.mark.parametrize("arrays", [NumpyArrays(), TorchArrays("cpu")])
def test_a_few_pixels_behind_a_good_prior_lose_their_weight(arrays):
    found = weights(arrays=arrays)
    assert found[REFLECTION].max() < 0.2
    assert found[30, 10] > 0.9, "what agrees with the prior keeps its weight"
    assert found[5, 80] == 0, "what is not measured has none"


def test_what_is_in_front_keeps_its_weight():
    assert weights(behind=-0.3)[REFLECTION].min() == 1


def test_a_large_hole_keeps_its_weight():
    assert weights(noise=0.0, behind=0.08, hole=True)[HOLE][7:-7, 7:-7].min() > 0.99


def test_where_the_prior_is_bad_weights_stay():
    assert weights(noise=0.4)[REFLECTION].min() > 0.95
