"""Several sources as one: numbers, times, segments, and conversion to one camera."""

from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.joined import CameraChange, JoinedPart, JoinedReader
from stream_recon.app.sources.source import Source, open_source


def folder_of(path: Path, size: tuple[int, int], levels: list[int]) -> Path:
    path.mkdir()
    for number, level in enumerate(levels):
        cv2.imwrite(str(path / f"{number:03d}.png"), np.full((size[1], size[0], 3), level, np.uint8))
    return path


def test_frames_follow_each_other(tmp_path: Path) -> None:
    one, two = folder_of(tmp_path / "one", (32, 24), [10, 20]), folder_of(tmp_path / "two", (32, 24), [30, 40, 50])
    parts = [JoinedPart(partial(open_source, str(one)), 0, 0.0), JoinedPart(partial(open_source, str(two)), 7, 5.0)]
    with Source(JoinedReader(parts, "one + two")) as source:
        frames = list(source)
        segments = source.segments
    assert [(f.index, f.segment, int(f.rgb[0, 0, 0])) for f in frames] == [
        (0, 0, 10),
        (1, 0, 20),
        (7, 1, 30),
        (8, 1, 40),
        (9, 1, 50),
    ]
    assert frames[2].timestamp == 5.0
    assert [(s.index, s.timestamp) for s in segments] == [(7, 5.0)]


def test_images_of_another_camera_are_converted(tmp_path: Path) -> None:
    """A grid of dots, seen by a lens of twice the focal length and with distortion, lands where a pinhole sees it."""
    source, target = CameraModel(200, 100, 80, -0.1), Intrinsics(100, 100, 60, 50)
    change = CameraChange(source, target, (120, 100))
    image = np.zeros((160, 200, 3), np.uint8)
    for x, y in [(0.0, 0.0), (0.2, 0.1), (-0.3, -0.2)]:
        radial = 1 - 0.1 * (x * x + y * y)
        centre = (200 * x * radial + 100, 200 * y * radial + 80)
        cv2.circle(image, (round(centre[0] - 0.5), round(centre[1] - 0.5)), 4, (255, 255, 255), -1)
    seen = np.asarray(change.map(image, (200.0, 160.0), change.size, cv2.INTER_LINEAR))[..., 0]
    for x, y in [(0.0, 0.0), (0.2, 0.1), (-0.3, -0.2)]:
        u, v = 100 * x + 60, 100 * y + 50
        patch = seen[int(v) - 1 : int(v) + 2, int(u) - 1 : int(u) + 2]
        assert patch.mean() > 150
    assert (seen > 100).sum() < 100, "half the size: a quarter of the dots' area"


def test_a_change_survives_json_and_odd_ones_are_refused() -> None:
    change = CameraChange(CameraModel(200, 100, 80, -0.1), Intrinsics(100, 100, 60, 50), (120, 100))
    assert CameraChange.from_json(change.to_json()) == change
    for key, value in (
        ("size", [0, 100]),
        ("source", {**change.to_json()["source"], "k1": float("nan")}),
        ("target", {"fx": -1}),
    ):
        with pytest.raises((ValueError, TypeError, KeyError)):
            CameraChange.from_json({**change.to_json(), key: value})


@pytest.mark.parametrize("is_converted", [False, True])
def test_masks_of_the_parts_stay(tmp_path: Path, is_converted: bool) -> None:
    path = folder_of(tmp_path / "one", (32, 24), [10, 20])
    masks = folder_of(tmp_path / "masks", (32, 24), [255, 255])
    cv2.imwrite(str(masks / "001.png"), np.hstack([np.zeros((24, 8), np.uint8), np.full((24, 24), 255, np.uint8)]))
    change = CameraChange(CameraModel(30, 16, 12), Intrinsics(30, 30, 16, 12), (32, 24)) if is_converted else None
    opened = partial(open_source, str(path), FrameChoice(masks=str(masks)))
    with Source(JoinedReader([JoinedPart(opened, 0, 0.0, change)], "one")) as source:
        found = [None if frame.mask is None else int(frame.mask.sum()) for frame in source]
    assert found == [0, 8 * 24]
