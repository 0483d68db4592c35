"""One batch of clean clips shared by the tests of rendering."""

import pytest
import torch

from training.synthetic import ClipBatch, SceneGenerator


@pytest.fixture(scope="session")
def clean() -> ClipBatch:
    """Nine undegraded clips of all kinds, of three frames each."""
    torch.set_num_threads(1)
    return SceneGenerator("cpu", 3, degrade=False).render(clips=9, frames=3, height=42, width=56)
