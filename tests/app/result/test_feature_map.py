"""The feature map of a result: compression of descriptors, checks of what is read."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.result.feature_map import (
    FeatureMap,
    packed_descriptors,
    read_map,
    unpacked_descriptors,
    write_map,
)
from stream_recon.configs.errors import OutputError

ID = "0a1b2c3d4e5f6071"


def feature_map() -> FeatureMap:
    return FeatureMap(
        refinement=np.frombuffer(ID.encode(), np.uint8),
        frame=np.array([0, 4], np.int32),
        start=np.array([0, 2, 3], np.int64),
        uv=np.arange(6, dtype=np.uint16).reshape(3, 2),
        z=np.array([1, 0, 2.5], np.float32),
        descriptors=np.zeros((3, 64), np.uint8),
        words=np.zeros((4, 128), np.float16),
        vectors=np.zeros((2, 512), np.int8),
        lens=np.array([300.0, 160, 120, 0.01, 0, 0]),
        size=np.array([320, 240], np.int32),
    )


def test_descriptors_survive_compression() -> None:
    sift = np.random.default_rng(0).gamma(0.4, 1.0, (50, 128)).astype(np.float32)
    sift = np.minimum(sift / np.linalg.norm(sift, axis=1, keepdims=True), 0.2)
    root = np.sqrt(sift / sift.sum(axis=1, keepdims=True))
    again = unpacked_descriptors(packed_descriptors(root))
    cosine = (root * again).sum(axis=1)
    assert cosine.min() > 0.985
    assert np.linalg.norm(again, axis=1) == pytest.approx(1, abs=1e-5)


def test_a_map_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_map(tmp_path, feature_map())
    found = read_map(tmp_path, ID)
    assert found is not None
    for field in dataclasses.fields(FeatureMap):
        written, read = getattr(feature_map(), field.name), getattr(found, field.name)
        assert written.dtype == read.dtype and np.array_equal(written, read)
    assert read_map(tmp_path, None) is None, "of another refinement"
    assert read_map(tmp_path / "none", ID) is None


@pytest.mark.parametrize(
    "damage",
    [
        {"start": np.array([0, 3, 2], np.int64)},
        {"start": np.array([0, 2, 4], np.int64)},
        {"frame": np.array([4, 0], np.int32)},
        {"z": np.array([1, np.nan, 2], np.float32)},
        {"lens": np.array([0.0, 1, 1, 0, 0, 0])},
        {"descriptors": np.zeros((3, 63), np.uint8)},
        {"vectors": np.zeros((2, 512), np.float32)},
    ],
)
def test_a_map_that_does_not_fit_together_is_refused(tmp_path: Path, damage: dict[str, np.ndarray]) -> None:
    write_map(tmp_path, dataclasses.replace(feature_map(), **damage))
    with pytest.raises(OutputError, match="damaged"):
        read_map(tmp_path, ID)
