"""Interlaced video: combs are found, one field stays, and what is not decoded is refused."""

from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.sources.interlacing import DecodingCheck, deinterlaced, is_combed
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import InputError

SAMPLE = Path(__file__).parents[3] / "app" / "sample" / "walkthrough.mp4"


def sample_frames(count: int, step: int = 1) -> list[NDArray[np.uint8]]:
    with open_source(str(SAMPLE)) as source:
        found = [frame.rgb for frame, _ in zip(source, range(count * step), strict=False)]
    return found[::step]


def woven(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A frame whose odd lines are from a later moment."""
    frame = first.copy()
    frame[1::2] = second[1::2]
    return frame


def test_combs_are_found_and_pictures_are_none() -> None:
    frames = sample_frames(8, 3)
    pairs = list(pairwise(frames))
    assert not any(is_combed(frame) for frame in frames)
    assert all(is_combed(woven(*pair)) for pair in pairs)
    assert not any(is_combed(woven(frame, frame)) for frame in frames), "a still scene has no combs"


def test_stripes_and_noise_are_no_combs() -> None:
    noise = np.random.default_rng(0).normal(128, 4, (96, 128, 3)).astype(np.uint8)
    assert not is_combed(noise)
    dithered = cv2.cvtColor(sample_frames(1)[0], cv2.COLOR_RGB2GRAY) > np.kron(
        np.ones((144, 192)), np.array([[40, 170], [210, 90]])
    )
    assert not is_combed(np.repeat((dithered * 200).astype(np.uint8)[..., None], 3, axis=2))
    blind = np.full((96, 128, 3), 90, np.uint8)
    blind[(np.arange(96) // 2) % 2 == 0] = 160
    assert not is_combed(blind)


def test_one_field_stays_where_it_was() -> None:
    first, second = sample_frames(2, 3)[:2]
    field = deinterlaced(woven(first, second))
    assert (field[::2] == first[::2]).all()
    # Lines between are close to those of the same moment, not of the other.
    here, other = (np.abs(field[1:-1:2].astype(int) - frame[1:-1:2]).mean() for frame in (first, second))
    assert here < 0.5 * other
    assert not is_combed(field)


def test_a_film_with_combs_is_read_with_a_warning(tmp_path: Path) -> None:
    frames = sample_frames(9, 3)
    size = (frames[0].shape[1], frames[0].shape[0])
    writer = cv2.VideoWriter(str(tmp_path / "a.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, size)
    for pair in pairwise(frames):
        writer.write(woven(*pair)[..., ::-1])
    writer.release()
    with open_source(str(tmp_path / "a.avi")) as source:
        read = [frame.rgb for frame in source]
        assert sum("one field of each frame" in line for line in source.warnings) == 1
    assert len(read) == 8 and not any(map(is_combed, read))
    assert max(np.abs(a.astype(int) - b).mean() for a, b in zip(read, frames, strict=False)) < 9


def test_equal_frames_of_different_packets_were_not_decoded(tmp_path: Path) -> None:
    frames = sample_frames(12)
    size = (frames[0].shape[1], frames[0].shape[0])
    for name, shown in (("moving.avi", frames), ("still.avi", frames[:1] * 12)):
        writer = cv2.VideoWriter(str(tmp_path / name), cv2.VideoWriter.fourcc(*"XVID"), 10.0, size)
        for frame in shown:
            writer.write(frame[..., ::-1])
        writer.release()
    check = DecodingCheck(tmp_path / "moving.avi", "moving.avi", interlaced=False)
    with pytest.raises(InputError, match=r"moving\.avi decodes to one picture: .*ffmpeg"):
        for index in range(12):
            check.add(index, frames[0])
    with open_source(str(tmp_path / "moving.avi")) as source:
        assert len(list(source)) == 12
    with open_source(str(tmp_path / "still.avi")) as source:
        assert len(list(source)) == 12, "a still film is one"
    flagged = DecodingCheck(tmp_path / "moving.avi", "moving.avi", interlaced=True)
    flagged.add(3, frames[0])
    with pytest.raises(InputError, match=r"moving\.avi is interlaced, which OpenCV cannot decode here"):
        flagged.add(4, frames[0])
