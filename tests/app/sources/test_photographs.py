"""Folders of photographs in no order, next to frames of a film."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.types import ImageTransform, PreparedFrame
from stream_recon.app.sources.exif import read_exif
from stream_recon.app.sources.photographs import are_unordered
from stream_recon.app.sources.segmentation import DiscontinuityDetector
from stream_recon.app.sources.source import open_source
from tests.app.sources.exif_files import jpeg, tiff

Image = NDArray[np.uint8]
COUNT = 16


@pytest.fixture(scope="module")
def pan() -> list[Image]:
    """Views along a long wall: neighbours share most of the image, others nothing."""
    random = np.random.default_rng(0)
    grain, shapes = (random.integers(0, 255, (240 // n, 6000 // n, 3)).astype(np.uint8) for n in (4, 24))
    wall = sum(0.5 * cv2.resize(layer, (6000, 240)).astype(np.float32) for layer in (grain, shapes))
    return [np.asarray(wall, np.uint8)[:, 40 * k * 3 : 40 * k * 3 + 320] for k in range(COUNT)]


def written(folder: Path, images: list[Image], start: datetime | None = None, seconds: float = 0.0) -> list[Path]:
    folder.mkdir()
    paths = []
    for number, image in enumerate(images):
        path = folder / f"{number:03d}.jpg"
        if start is None:
            cv2.imwrite(str(path), image)
        else:
            jpeg(path, image, tiff(26, taken=start + timedelta(seconds=seconds * number)))
        paths.append(path)
    return paths


def test_frames_of_a_film_are_in_order(tmp_path: Path, pan: list[Image]) -> None:
    assert not are_unordered(written(tmp_path / "film", pan))


def test_shuffled_photographs_are_found_out(tmp_path: Path, pan: list[Image]) -> None:
    shuffled = [pan[k] for k in np.random.default_rng(1).permutation(COUNT)]
    written(tmp_path / "photographs", shuffled)
    with open_source(str(tmp_path / "photographs")) as source:
        assert source.unordered


@pytest.mark.parametrize(("seconds", "unordered"), [(2.0, True), (-2.0, True), (0.0, False)])
def test_times_say_so(tmp_path: Path, pan: list[Image], seconds: float, unordered: bool) -> None:
    start = datetime(2026, 5, 1, 12, tzinfo=UTC)
    paths = written(tmp_path / "photographs", pan, start, seconds)
    assert read_exif(paths[0]).taken == start.timestamp()
    assert are_unordered(paths) is unordered


def frames(images: list[Image]) -> list[PreparedFrame]:
    transform = ImageTransform((320, 240), (0.0, 0.0, 320.0, 240.0), (320, 240))
    return [PreparedFrame(k, k / 30, image, transform) for k, image in enumerate(images)]


def test_photographs_in_no_order_have_no_cuts(pan: list[Image]) -> None:
    shuffled = [pan[k] for k in np.random.default_rng(1).permutation(COUNT)]
    dark = np.zeros_like(pan[0])
    watch = DiscontinuityDetector(names=[str(k) for k in range(COUNT + 1)], unordered=True)
    passed = list(watch.watch(frames([*shuffled[:8], dark, *shuffled[8:]])))
    assert [frame.index for frame in passed] == [k for k in range(COUNT + 1) if k != 8]
    assert not watch.segments and watch.blank_frames == 1


def test_a_cut_between_images_names_the_file(pan: list[Image]) -> None:
    images = [*[pan[0]] * 8, *[pan[-1]] * 8]
    watch = DiscontinuityDetector(names=[f"{k:03d}.jpg" for k in range(16)])
    assert len(list(watch.watch(frames(images)))) == 16
    assert [segment.reason for segment in watch.segments] == ["a cut at 008.jpg"]


def test_times_of_some_photographs_alone_are_told(tmp_path: Path, pan: list[Image]) -> None:
    paths = written(tmp_path / "photographs", pan[:3], datetime(2026, 5, 1, 12, tzinfo=UTC), -2.0)
    cv2.imwrite(str(paths[1]), pan[1])
    with open_source(str(tmp_path / "photographs")) as source:
        assert source.image_names == [path.name for path in paths]
        assert "2 of 3 images state when they were taken: the order is that of names" in source.warnings
