import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "compare_images.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_images", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def smooth(noise: float, seed: int = 0) -> NDArray[np.uint8]:
    """A gradient under noise of that deviation, in 8 bits."""
    ramp = np.linspace(40, 200, 112)[None, :, None] * np.ones((84, 1, 3))
    image = ramp + np.random.default_rng(seed).normal(0, noise, (84, 112, 1))
    return np.clip(image, 0, 255).astype(np.uint8)


def test_statistics_say_what_was_done_to_an_image(script: ModuleType) -> None:
    plain, noisy = (script.statistics(smooth(noise), smooth(noise)) for noise in (0.0, 6.0))
    assert noisy["noise"] > 5 * plain["noise"] and noisy["fine detail"] > 5 * plain["fine detail"]
    assert plain["colour"] < 0.01 and plain["overexposed"] == 0 and plain["exposure change"] == 0
    red = smooth(0.0)
    red[..., 1:] //= 4
    assert script.statistics(red, red)["colour"] > 0.2
    brighter = np.clip(smooth(0.0).astype(int) + 30, 0, 255).astype(np.uint8)
    assert 0.1 < script.statistics(smooth(0.0), brighter)["exposure change"] < 0.4


def test_the_classifier_tells_apart_what_differs_and_nothing_else(script: ModuleType) -> None:
    random = np.random.default_rng(0)
    sequences = [random.normal(0, 1, (60, 5)) for _ in range(4)]
    same, shifted = random.normal(0, 1, (240, 5)), random.normal([0, 3, 0, 0, 0], 1, (240, 5))
    assert 0.4 < script.accuracy(sequences, same) < 0.6
    assert script.accuracy(sequences, shifted) > 0.9
