"""Panoramas of 360 degrees without a mark: refused where no camera is given; ordinary wide pictures are read."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.panorama import is_equirectangular, is_side_by_side
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import InputError

SAMPLE = Path(__file__).parents[3] / "app" / "sample" / "walkthrough.mp4"


def around(height: int = 128, seed: int = 0) -> NDArray[np.uint8]:
    """What a camera for all directions sees in a textured room: the texture depends on the direction alone."""
    azimuth = (np.arange(2 * height) + 0.5) / height * np.pi
    elevation = ((np.arange(height) + 0.5) / height - 0.5) * np.pi
    a, e = np.meshgrid(azimuth, elevation)
    rays = np.stack([np.cos(e) * np.sin(a), np.sin(e), np.cos(e) * np.cos(a)], axis=-1)
    random = np.random.default_rng(seed)
    waves = np.sin(rays @ random.normal(0, 4, (3, 24)) + random.uniform(0, 6, 24))
    grey = 128 + 160 * (waves @ random.normal(0, 0.2, (24, 3)))
    return np.asarray(np.clip(grey, 0, 255), np.uint8)


@pytest.mark.parametrize("seed", range(6))
def test_panoramas_close_and_parts_of_them_do_not(seed: int) -> None:
    panorama = around(seed=seed)
    assert is_equirectangular(panorama)
    assert is_equirectangular(np.roll(panorama, 77, axis=1)), "the seam may be anywhere"
    view = cv2.resize(panorama[20:84, 60:188], (256, 128))
    assert not is_equirectangular(np.asarray(view, np.uint8))


def test_wide_pictures_of_the_sample_do_not_close() -> None:
    with open_source(str(SAMPLE), FrameChoice(stride=20)) as source:
        for frame in source:
            height = frame.rgb.shape[1] // 2
            assert not is_equirectangular(frame.rgb[:height])
            assert not is_equirectangular(np.full_like(frame.rgb[:height], 90))
            framed = frame.rgb[:height].copy()
            framed[:, :8] = framed[:, -8:] = 0
            assert not is_equirectangular(framed), "borders of one colour fit each other"


def test_a_panorama_is_refused_unless_its_camera_is_given(tmp_path: Path) -> None:
    for number in range(2):
        cv2.imwrite(str(tmp_path / f"{number}.png"), around()[..., ::-1])
    with pytest.raises(InputError, match=r"360 degrees.*v360.*--intrinsics"), open_source(str(tmp_path)) as source:
        list(source)
    with open_source(str(tmp_path), FrameChoice(camera="200,200,128,64")) as source:
        assert len(list(source)) == 2


def test_two_views_side_by_side_are_refused_unless_the_camera_is_given(tmp_path: Path) -> None:
    with open_source(str(SAMPLE), FrameChoice(max_frames=60)) as source:
        frames = [frame.rgb for frame in source]
    pairs = [np.hstack([frames[n], frames[n + 1]]) for n in range(0, 58, 8)]
    assert sum(map(is_side_by_side, pairs)) >= 7
    apart = [np.hstack([frames[n], frames[-1 - n][::-1]]) for n in range(0, 20, 4)]
    wide = [frame[60:200] for frame in frames[::5]]
    assert not any(map(is_side_by_side, [*apart, *wide, *frames[::8]]))
    for number, pair in enumerate(pairs[2:4]):
        cv2.imwrite(str(tmp_path / f"{number}.png"), pair[..., ::-1])
    with pytest.raises(InputError, match=r"two views side by side.*crop.*--intrinsics"):  # noqa: SIM117
        with open_source(str(tmp_path)) as source:
            list(source)
    with open_source(str(tmp_path), FrameChoice(camera="400,400,384,144")) as source:
        assert len(list(source)) == 2
