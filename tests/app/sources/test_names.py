"""Which images of a folder or an archive are frames, and in which order: by names, content and times."""

import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.image_files import in_order, natural_key
from stream_recon.app.sources.masks import MaskFolder
from stream_recon.app.sources.source import open_source
from stream_recon.app.web.contents import unpack
from stream_recon.configs.errors import InputError
from tests.app.media import write_images, write_video


@pytest.mark.parametrize(
    "names",
    [
        ["frame.jpg", "frame2.png", "frame10.jpg"],
        ["IMG_0.png", "IMG_1.jpg", "IMG_1.png", "IMG_2.jpg"],
        ["a (1).jpg", "a (2).jpg", "a (10).jpg"],
        ["cam0_2_a.png", "cam0_10_a.png", "cam1_1_a.png"],
        ["-10.png", "-2.png", "0.png", "1.png"],
        ["x_-1.5.png", "x_-0.25.png", "x_0.0.png", "x_0.5.png"],
        ["img-1.png", "img-2.png", "img-10.png"],
        ["0007.png", "008.png", "9.png"],
        ["1.25_left.png", "1.5_left.png", "10.0_left.png"],
        ["t0.05.png", "t0.1.png", "t0.15.png"],
        ["v1.9.png", "v1.10.png", "v1.11.png"],
        ["10.0.9.png", "10.0.10.png"],
        ["1305031102.175304.png", "1305031102.211214.png", "1305031103.043227.png"],
    ],
)
def test_order_of_names(names: list[str]) -> None:
    assert in_order(names[::-1]) == names
    assert in_order(sorted(names)) == names


def test_folders_of_an_archive_stand_together() -> None:
    names = ["a/1.jpg", "a/2.jpg", "a/10.jpg", "a 2/1.jpg", "b/1.jpg"]
    assert sorted(names[::-1], key=natural_key) == names


def textured(number: int) -> Image.Image:
    blocks = np.random.default_rng(number).integers(0, 255, (6, 8, 3), np.uint8)
    return Image.fromarray(cv2.resize(blocks, (64, 48), interpolation=cv2.INTER_NEAREST))


def taken_at(path: Path, number: int, time: str, fraction: str) -> None:
    exif = Image.Exif()
    exif.get_ifd(0x8769).update({0x9003: time, 0x9291: fraction})
    textured(number).save(path, exif=exif)


def test_twins_of_one_name_are_read_once(tmp_path: Path) -> None:
    for number in range(4):
        textured(number).save(tmp_path / f"IMG_{number}.JPG", quality=95)
        textured(number).save(tmp_path / f"IMG_{number}.png")
        (tmp_path / f"IMG_{number}.DNG").write_bytes(b"raw")
    with open_source(str(tmp_path)) as source:
        assert source.image_names == [f"IMG_{number}.JPG" for number in range(4)]
        assert any("4 images were left out as twins" in line and "IMG_0.png" in line for line in source.warnings)
        assert any("4 files (.dng) beside photographs" in line for line in source.warnings)


def test_of_a_portrait_the_original_is_read(tmp_path: Path) -> None:
    for number in range(3):
        for picture in ("01.COVER", "02.ORIGINAL"):
            textured(number).save(tmp_path / f"PXL_20240101_12000{number}123.PORTRAIT-{picture}.jpg")
    textured(7).save(tmp_path / "00000IMG_00000_BURST20240101120000000_COVER.jpg")
    textured(8).save(tmp_path / "00001IMG_00001_BURST20240101120000100.jpg")
    with open_source(str(tmp_path)) as source:
        assert source.image_names is not None and len(source.image_names) == 5
        assert sum("ORIGINAL" in name for name in source.image_names) == 3
        assert any("3 images were left out as twins" in line and "01.COVER" in line for line in source.warnings)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["cam0_1.png", "cam0_2.png", "cam1_1.png", "cam1_2.png"], "all pairs of 2 and 2 numbers"),
        (["IMG_1.png", "IMG_2.png", "DSC_7.png"], "names have 2 forms, such as"),
        (["2024_1.png", "2024_2.png", "2024_3.png"], ""),
        (["frame.png", "frame2.png", "frame10.png"], ""),
    ],
)
def test_an_order_that_is_a_guess_is_told(tmp_path: Path, names: list[str], told: str) -> None:
    write_images(tmp_path, names)
    with open_source(str(tmp_path)) as source:
        assert any(told in line for line in source.warnings) if told else not source.warnings


def test_a_film_beside_photographs_is_told(tmp_path: Path) -> None:
    write_images(tmp_path / "a", ["poster.png"])
    film = write_video(tmp_path / "a/walk.mp4", 6)
    with open_source(str(tmp_path / "a")) as source:
        assert source.warnings == ["a has films, too, which are not read: walk.mp4"]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(film, "walk.mp4")
        archive.write(tmp_path / "a/poster.png", "poster.png")
    with pytest.raises(InputError, match=r"one photograph and walk\.mp4"):
        unpack(tmp_path / "a.zip", tmp_path / "out", 10**8, 50)


def test_different_pictures_of_one_name_are_refused(tmp_path: Path) -> None:
    for number in range(4):
        textured(number).save(tmp_path / f"{number}.jpg")
        textured(number + 9).save(tmp_path / f"{number}.png")
    with pytest.raises(InputError, match=r"0\.jpg and 0\.png have one name and show different pictures"):
        open_source(str(tmp_path))


def test_exif_times_decide_where_names_disagree(tmp_path: Path) -> None:
    for number, name in enumerate(("IMG_9998.jpg", "IMG_9999.jpg", "IMG_0001.jpg", "IMG_0002.jpg")):
        taken_at(tmp_path / name, number, f"2026:11:03 10:00:{number // 3:02d}", f"{number % 3 * 3}50")
    with open_source(str(tmp_path)) as source:
        assert source.image_names == ["IMG_9998.jpg", "IMG_9999.jpg", "IMG_0001.jpg", "IMG_0002.jpg"]
        assert any("EXIF times" in line and "IMG_0002.jpg" in line for line in source.warnings)
    textured(9).save(tmp_path / "IMG_0003.jpg")  # states none
    with open_source(str(tmp_path)) as source:
        assert source.image_names is not None and source.image_names[0] == "IMG_0001.jpg"
        assert source.warnings == ["4 of 5 images state when they were taken: the order is that of names"]


def test_a_capture_is_found_below_and_several_are_listed(tmp_path: Path) -> None:
    write_images(tmp_path / "room/scan/images", ["1.png", "2.png"])
    for folder in ("depth", "values"):
        (tmp_path / "room/scan" / folder).mkdir()
        cv2.imwrite(str(tmp_path / "room/scan" / folder / "1.png"), np.arange(64 * 48, dtype=np.uint16).reshape(48, 64))
    with open_source(str(tmp_path / "room")) as source:
        assert source.image_names == ["1.png", "2.png"]
        assert any("scan/images" in line for line in source.warnings)
    write_images(tmp_path / "hall/rgb", ["1.png"])
    with pytest.raises(InputError, match="hall/rgb, room/scan/images: give one"):
        open_source(str(tmp_path))


@pytest.mark.parametrize(
    "form",
    ["{:04d}.png", "mask_{:04d}_1920x1080.png", "{:04d}_cam0.png", "f{:02d}_t{:05d}.png", "seq07_{:d}_mask_2.png"],
)
def test_a_mask_belongs_to_the_frame_by_the_number_that_counts(tmp_path: Path, form: str) -> None:
    video = write_video(tmp_path / "a.mp4", 6)
    (tmp_path / "masks").mkdir()
    for number in range(6):
        mask = np.full((48, 64), 255, np.uint8)
        mask[:, : number + 1] = 0
        cv2.imwrite(str(tmp_path / "masks" / form.format(number, number * 333)), mask)
    with open_source(str(video), FrameChoice(masks=str(tmp_path / "masks"))) as source:
        assert [None if f.mask is None else int(f.mask[0].sum()) for f in source] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (range(6), []),
        (range(100, 106), ["0 of 6 frames, not for frame 0"]),
        ([0, 2, 3], ["3 of 6 frames, not for frame 1"]),
    ],
)
def test_frames_of_a_video_without_a_mask_are_counted(tmp_path: Path, numbers: list[int], said: list[str]) -> None:
    video = write_video(tmp_path / "a.mp4", 6)
    write_images(tmp_path / "masks", [f"{number}.png" for number in numbers])
    with open_source(str(video), FrameChoice(masks=str(tmp_path / "masks"))) as source:
        assert source.warnings == [f"masks are for {line}" for line in said]


def test_two_masks_of_one_frame_are_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "masks", ["3.png", "03.png", "4.png"])
    with pytest.raises(InputError, match=r"3\.png and another mask are for the same frame"):
        MaskFolder(tmp_path / "masks").check(None)
    write_images(tmp_path / "named", ["a.png", "A.jpg"])
    with pytest.raises(InputError, match="another mask"):
        MaskFolder(tmp_path / "named").check(["a.jpg"])


def zip_of(path: Path, images: dict[str, Image.Image]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, image in images.items():
            with archive.open(name, "w") as file:
                image.save(file, {"jpg": "JPEG", "png": "PNG"}[name[-3:].lower()])
    return path


def test_an_archive_is_listed_as_a_folder_is(tmp_path: Path) -> None:
    deep = Image.fromarray(np.arange(64 * 48, dtype=np.uint16).reshape(48, 64))
    photographs = {f"a/IMG_{n}.{kind}": textured(n) for n in (2, 10) for kind in ("jpg", "png")}
    maps = {f"a/{folder}/IMG_{n}.png": deep for n in (2, 10) for folder in ("depth", "z")}
    path = zip_of(tmp_path / "a.zip", {**maps, **photographs, "a/masks/IMG_2.png": textured(5)})
    assert unpack(path, tmp_path / "out", 10**8, 50) == 2
    with open_source(str(tmp_path / "out")) as source:
        assert source.image_names == ["000000.jpg", "000001.jpg"]
        assert abs(next(iter(source)).rgb.astype(int) - np.asarray(textured(2)).astype(int)).mean() < 20


def test_an_archive_of_two_cameras_is_refused(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.zip", {f"{cam}/{n}.jpg": textured(n) for cam in ("cam0", "cam1") for n in range(3)})
    with pytest.raises(InputError, match="same names in cam0 and cam1"):
        unpack(path, tmp_path / "out", 10**8, 50)
