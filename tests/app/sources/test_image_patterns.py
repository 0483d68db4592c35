"""Patterns of names, hints for what does not exist, and photographs of a camera held both ways."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import InputError
from tests.app.media import number_of, write_images
from tests.app.sources.exif_files import jpeg, tiff


@pytest.mark.parametrize("pattern", ["frame_*.png", "frame_%02d.png", "frame_%d.png", "frame_?[0-9].png"])
def test_patterns_give_their_images_in_order(tmp_path: Path, pattern: str) -> None:
    write_images(tmp_path / "a", [f"frame_{n:02d}.png" for n in range(12)])
    write_images(tmp_path / "a", ["other.png"])
    with open_source(str(tmp_path / "a" / pattern)) as source:
        assert [number_of(frame.rgb) for frame in source] == list(range(12))
        assert source.name == "a"


def test_patterns_without_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InputError, match="no file has a name like"):
        open_source(str(tmp_path / "*.jpg"))
    with pytest.raises(InputError, match=r"no images, such as a\.txt"):
        open_source(str(tmp_path / "*"))


def test_a_name_with_such_signs_that_exists_is_itself(tmp_path: Path) -> None:
    write_images(tmp_path / "a[1]", ["0.png", "1.png"])
    with open_source(str(tmp_path / "a[1]")) as source:
        assert len(list(source)) == 2
    with open_source((tmp_path / "a[1]").as_uri()) as source:
        assert len(list(source)) == 2


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("C:\\films\\a.mp4", "path of Windows"),
        ("ftp://host/a.mp4", "addresses begin with"),
        ("https://www.youtube.com/watch?v=x", "download the video first"),
        ("https://youtu.be/x", "download the video first"),
    ],
)
def test_what_does_not_exist_gets_a_hint(spec: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        open_source(spec)


def write(folder: Path, orientations: list[int], size: tuple[int, int] = (96, 64)) -> Path:
    folder.mkdir(exist_ok=True)
    for number, orientation in enumerate(orientations):
        rgb = np.full((size[1], size[0], 3), 8 * number + 4, np.uint8)
        jpeg(folder / f"{number:02d}.jpg", rgb, tiff(orientation=orientation))
    return folder


def test_a_camera_held_both_ways_gives_all_photographs(tmp_path: Path) -> None:
    with open_source(str(write(tmp_path / "a", [1, 6, 1, 8, 6]))) as source:
        frames = list(source)
        assert len(frames) == 5 and {frame.rgb.shape for frame in frames} == {(64, 96, 3)}
        assert any("as stored" in line for line in source.warnings)
    with open_source(str(write(tmp_path / "b", [6, 6, 6]))) as source:
        assert {frame.rgb.shape for frame in source} == {(96, 64, 3)} and not source.warnings


def test_photographs_of_several_sizes_are_told_before_any_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", [1, 1, 1])
    write_images(folder, ["x.png"], (64, 48))
    with pytest.raises(InputError, match=r"3 images are 96x64, the largest group, and 1 are not, such as x\.png"):
        open_source(str(folder))


def test_photographs_that_a_program_has_turned_are_turned_back(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", [1, 1, 1])
    marked = np.full((96, 64, 3), 50, np.uint8)
    marked[:20, :10] = 250
    jpeg(folder / "x.jpg", marked, tiff())
    masks = tmp_path / "masks"
    masks.mkdir()
    cv2.imwrite(str(masks / "x.png"), np.where(marked.max(axis=2) > 128, np.uint8(0), np.uint8(255)))
    with open_source(str(folder), FrameChoice(masks=str(masks))) as source:
        frames = list(source)
        assert any("1 of 4 are used turned by 90 degrees, such as x.jpg" in line for line in source.warnings)
    assert [frame.rgb.shape for frame in frames] == [(64, 96, 3)] * 4
    assert frames[3].mask is not None and (frames[3].mask == (frames[3].rgb.max(axis=2) > 128)).mean() > 0.98
