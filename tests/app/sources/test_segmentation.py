"""Segmentation of a rendered video with cuts, blank frames and covered lenses, and with blur, rotation and neither."""

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.types import Frame, PreparedFrame
from stream_recon.app.sources.preprocess import plan_image, prepare
from stream_recon.app.sources.segmentation import DiscontinuityDetector
from stream_recon.app.sources.source import open_source
from stream_recon.configs.schema import load_preset

Image = NDArray[np.uint8]
SAMPLE = Path(__file__).parents[3] / "app" / "sample" / "walkthrough.mp4"


@pytest.fixture(scope="module")
def walk() -> list[Image]:
    """120 frames of a walk through a rendered room, at the network's size."""
    preset = load_preset("small")
    transform = plan_image((640, 480), preset.image, 14)
    with open_source(str(SAMPLE)) as source:
        return [prepare(Frame(f.index, f.timestamp, cv2.resize(f.rgb, (640, 480))), transform).rgb for f in source]


@pytest.fixture(scope="module")
def elsewhere(walk: list[Image]) -> list[Image]:
    """Another place: the walk mirrored, upside down, and with its light turned about."""
    return [np.ascontiguousarray(255 - image[::-1, ::-1]) for image in walk[::-1]]


def watched(images: list[Image]) -> tuple[DiscontinuityDetector, list[PreparedFrame]]:
    transform = plan_image((64, 48), load_preset("small").image, 14)
    watch = DiscontinuityDetector()
    frames = [PreparedFrame(n, n / 20, image, transform) for n, image in enumerate(images)]
    return watch, list(watch.watch(frames))


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_a_walk_without_breaks_is_passed_on_as_it_is(walk: list[Image], stride: int) -> None:
    watch, frames = watched(walk[::stride])
    assert watch.segments == [] and watch.blank_frames == 0
    assert [frame.index for frame in frames] == list(range(len(walk[::stride])))
    assert all(frame.segment == 0 for frame in frames)


def test_cuts_are_noticed_where_they_are(walk: list[Image], elsewhere: list[Image]) -> None:
    found = 0
    for n in range(20):
        cut = 5 + n % 7
        watch, frames = watched([*walk[3 * n : 3 * n + cut], *elsewhere[2 * n : 2 * n + 12]])
        assert [frame.index for frame in frames] == list(range(cut + 12))
        assert len(watch.segments) <= 1
        if watch.segments:
            assert abs(watch.segments[0].index - cut) <= 3
            begin = watch.segments[0].index
            assert [frame.segment for frame in frames] == [0] * begin + [1] * (cut + 12 - begin)
            assert watch.segments[0].reason == f"a cut at {begin / 20:.2f} s"
            found += 1
    assert found >= 19, "95 in a hundred"


@pytest.mark.parametrize(("level", "reason"), [(0, "dark"), (6, "dark"), (90, "covered")])
def test_what_shows_nothing_is_left_out_and_what_follows_elsewhere_is_new(
    walk: list[Image], elsewhere: list[Image], level: int, reason: str
) -> None:
    noise = np.random.default_rng(0)
    blind = [np.clip(level + noise.normal(0, 2, walk[0].shape), 0, 255).astype(np.uint8) for _ in range(15)]
    watch, frames = watched([*walk[:10], *blind, *elsewhere[:10]])
    assert watch.blank_frames == 15 and len(frames) == 20
    (segment,) = watch.segments
    assert segment.index == 25 and segment.reason == f"the picture was {reason} from 0.50 s to 1.25 s"
    watch, frames = watched([*walk[:10], *blind[:3], *walk[11:20]])
    assert watch.blank_frames == 3 and watch.segments == [], "the same place again"
    watch, frames = watched([*blind, *walk[:10]])
    assert len(frames) == 25 and [frame.segment for frame in frames] == [0] * 15 + [1] * 10


@pytest.mark.slow
def test_cuts_between_fast_walks_are_told_by_colour(walk: list[Image], elsewhere: list[Image]) -> None:
    rng = np.random.default_rng(3)
    shaken = [[np.roll(image, rng.integers(-40, 40, 2), (0, 1)) for image in images] for images in (walk, elsewhere)]
    found = 0
    for n in range(20):
        images = [*shaken[0][3 * n : 3 * n + 12], *shaken[1][2 * n : 2 * n + 12]]
        watch, frames = watched(images)
        assert [frame.index for frame in frames] == list(range(24))
        found += [segment.index for segment in watch.segments] == [12]
        assert watched(shaken[0][3 * n : 3 * n + 24])[0].segments == []
    assert found >= 19


def test_what_fades_into_the_dark_and_comes_back_elsewhere_is_new(walk: list[Image], elsewhere: list[Image]) -> None:
    noise, light = np.random.default_rng(0), np.geomspace(0.7, 0.01, 8)

    def dim(image: Image, gain: float) -> Image:
        return np.clip(gain * image + noise.normal(0, 2, image.shape), 0, 255).astype(np.uint8)

    for n in range(10):
        fading = [dim(walk[4 * n + 10 + i], gain) for i, gain in enumerate(light)]
        coming = [dim(elsewhere[3 * n + i], gain) for i, gain in enumerate(light[::-1])]
        night = [dim(walk[0], 0.0)] * 6
        images = [*walk[4 * n : 4 * n + 10], *fading, *night, *coming, *elsewhere[3 * n + 8 : 3 * n + 20]]
        watch, frames = watched(images)
        (segment,) = watch.segments
        assert 24 <= segment.index <= 34 and segment.reason.startswith("the picture was dark from 0.")
        assert watch.blank_frames >= 6 and len(frames) == len(images) - watch.blank_frames


def test_who_asks_is_told_while_nothing_is_to_be_seen(walk: list[Image]) -> None:
    transform = plan_image((64, 48), load_preset("small").image, 14)
    black = np.zeros_like(walk[0])
    images = [*walk[:5], *[black] * 5, *walk[10:15]]
    frames = (PreparedFrame(n, n / 20, image, transform) for n, image in enumerate(images))
    watch, blind = DiscontinuityDetector(), []

    def asking() -> Iterator[PreparedFrame]:
        for frame in frames:
            blind.append(watch.blank_since)
            yield frame

    assert len(list(watch.watch(asking()))) == 10
    assert blind[:6] == [None] * 6 and blind[6:11] == [(0.25, "dark")] * 5 and blind[-1] is None


def test_a_moment_of_blur_is_no_cut(walk: list[Image]) -> None:
    images = list(walk[:30])
    images[12:14] = [cv2.GaussianBlur(image, (0, 0), 15) for image in images[12:14]]
    images[20] = np.random.default_rng(0).integers(0, 255, images[20].shape, dtype=np.uint8)
    watch, frames = watched(images)
    assert watch.segments == [] and [frame.index for frame in frames] == list(range(30))


def test_videos_without_any_texture_pass() -> None:
    watch, frames = watched([np.full((48, 64, 3), 8 * n, np.uint8) for n in range(30)])
    assert len(frames) == 30 and watch.segments == []
    noise = np.random.default_rng(0)
    watch, frames = watched([noise.integers(0, 255, (48, 64, 3), dtype=np.uint8) for _ in range(30)])
    assert len(frames) == 30 and watch.segments == []


def test_gaps_that_the_source_knows_are_counted_on(walk: list[Image], elsewhere: list[Image]) -> None:
    transform = plan_image((64, 48), load_preset("small").image, 14)
    images = [*walk[:10], *elsewhere[:10], *walk[:10]]
    watch = DiscontinuityDetector()
    frames = [PreparedFrame(n, n / 20, image, transform, segment=int(n >= 20)) for n, image in enumerate(images)]
    assert [frame.segment for frame in watch.watch(frames)] == [0] * 10 + [1] * 10 + [2] * 10
