"""Folders of photographs: order, formats that cannot be read, maps beside them, numbers of masks, secrets."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from stream_recon.app.datasets.find import find_scenes
from stream_recon.app.sources import image_decoding
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.image_files import list_images
from stream_recon.app.sources.opening import without_password
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import InputError
from tests.app.media import number_of, write_images, write_video


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["0.1", "0.05", "0.15", "0.2"], ["0.05", "0.1", "0.15", "0.2"]),
        (["a_9.5", "a_10.25", "a_9.75"], ["a_9.5", "a_9.75", "a_10.25"]),
        (["2", "10", "1"], ["1", "2", "10"]),
        (["a1.5", "b1.25"], ["a1.5", "b1.25"]),
        (["1.10.2", "1.9.1"], ["1.9.1", "1.10.2"]),
    ],
)
def test_names_that_are_numbers_are_in_their_order(tmp_path: Path, names: list[str], order: list[str]) -> None:
    write_images(tmp_path / "a", [f"{name}.png" for name in names])
    assert [path.stem for path in list_images(tmp_path / "a")] == order


def test_images_that_cannot_be_read_are_counted_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_decoding, "has_heif", lambda: False)
    write_images(tmp_path / "a", ["0.jpg", "1.jpg"])
    for number in range(18):
        (tmp_path / f"a/IMG_{number}.HEIC").write_bytes(b"x")
    with open_source(str(tmp_path / "a")) as source:
        assert len(list(source)) == 2
        assert any(line.startswith("18 images (.heic) cannot be read") for line in source.warnings)
    write_images(tmp_path / "b", [])
    (tmp_path / "b/a.dng").write_bytes(b"x")
    with pytest.raises(InputError, match=r"1 images \(\.dng\) cannot be read"):
        open_source(str(tmp_path / "b"))


def test_heic_and_avif_are_read_with_their_library(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    rgb = np.full((64, 96, 3), (200, 60, 40), np.uint8)
    (tmp_path / "a").mkdir()
    pillow_heif.from_bytes("RGB", (96, 64), rgb.tobytes()).save(tmp_path / "a/0.heic", quality=90)
    cv2.imwrite(str(tmp_path / "a/1.png"), rgb[..., ::-1])
    with open_source(str(tmp_path / "a")) as source:
        frames = list(source)
    assert len(frames) == 2 and np.abs(frames[0].rgb.astype(int) - frames[1].rgb).max() < 8


def write_map(path: Path, bits: int = 16) -> None:
    image = np.arange(64 * 48, dtype=np.uint16).reshape(48, 64) if bits == 16 else np.full((48, 64), 2, np.uint8)
    cv2.imwrite(str(path), image)


@pytest.mark.parametrize(
    ("colour", "depth"), [("rgb_{}.png", "depth_{}.png"), ("{}.color.png", "{}.depth.png"), ("a{}.png", "b{}.png")]
)
def test_maps_beside_photographs_are_told_apart(tmp_path: Path, colour: str, depth: str) -> None:
    write_images(tmp_path / "a", [colour.format(n) for n in range(4)])
    for n in range(4):
        write_map(tmp_path / "a" / depth.format(n))
    with open_source(str(tmp_path / "a")) as source:
        assert [number_of(frame.rgb) for frame in source] == [0, 1, 2, 3]
        assert "4 images were left out" in source.warnings[0]


def test_captures_of_phones_have_one_scene_each(tmp_path: Path) -> None:
    for folder in ("poly/keyframes/images", "ark/lowres_wide"):
        write_images(tmp_path / folder, [f"{n}.png" for n in range(4)])
    for folder in ("poly/keyframes/depth", "poly/keyframes/confidence", "ark/lowres_depth", "ark/x"):
        (tmp_path / folder).mkdir()
        for n in range(4):
            write_map(tmp_path / folder / f"{n}.png", 8 if folder.endswith(("confidence", "x")) else 16)
    (tmp_path / "stray/confidence").mkdir(parents=True)
    write_video(tmp_path / "stray/rgb.mp4", 4)
    for n in range(4):
        write_map(tmp_path / f"stray/confidence/{n}.png", 8)
    scenes = find_scenes(tmp_path)
    assert [scene.name for scene in scenes] == ["ark__lowres_wide", "poly__keyframes__images", "stray__rgb.mp4"]


def test_photographs_with_such_words_inside_stay(tmp_path: Path) -> None:
    write_images(tmp_path / "confetti", ["unmasked_0.png", "unmasked_1.png", "thumbprint_2.png"])
    (scene,) = find_scenes(tmp_path)
    with scene.open() as source:
        assert len(list(source)) == 3


@pytest.mark.parametrize("count", [30, 12])
def test_masks_numbered_from_one(tmp_path: Path, count: int) -> None:
    video = write_video(tmp_path / "a.mp4", 30)
    (tmp_path / "masks").mkdir()
    for number in range(1, count + 1):
        mask = np.full((48, 64), 255, np.uint8)
        mask[:, :number] = 0
        cv2.imwrite(str(tmp_path / f"masks/{number:05d}.png"), mask)
    with open_source(str(video), FrameChoice(masks=str(tmp_path / "masks"))) as source:
        assert any("numbered from 1" in line for line in source.warnings)
        frames = list(source)
    shown = [None if frame.mask is None else int(frame.mask[0].sum()) for frame in frames]
    assert shown == (list(range(1, 31)) if count == 30 else [None, *range(1, 13), *[None] * 17])


@pytest.mark.parametrize(
    ("address", "blanked"),
    [
        ("rtsp://me:pass@host/live", "rtsp://host/live"),
        ("rtsp://host/user=admin&password=12&channel=1", "rtsp://host/user=***&password=***&channel=1"),
        ("rtsp://host/user=admin_password=tl_x_channel=1.sdp", "rtsp://host/user=***_password=***_channel=1.sdp"),
        ("http://h/a?Token=abc&x=1#t", "http://h/a?Token=***&x=1#t"),
        ("http://h/a?pwd=a;auth=b", "http://h/a?pwd=***;auth=***"),
        ("http://h/a?api_key=a&X-Amz-Signature=b", "http://h/a?api_key=***&X-Amz-Signature=***"),
        ("http://host/monkey=1?x=a@b", "http://host/monkey=***?x=a@b"),
        ("http://host/plain?x=1", "http://host/plain?x=1"),
    ],
)
def test_secrets_in_addresses_are_blanked(address: str, blanked: str) -> None:
    assert without_password(address) == blanked


@pytest.mark.parametrize("bits", [10, 12, 14, 16])
def test_images_of_fewer_bits_in_16_have_their_brightness(tmp_path: Path, bits: int) -> None:
    picture = np.tile(np.linspace(0, 250, 96, dtype=np.uint16), (72, 1))
    for number in range(3):
        # Darker frames count with the brightest.
        values = (picture // (3 - number) << (bits - 8)) + np.arange(96, dtype=np.uint16) % 4
        assert cv2.imwrite(str(tmp_path / f"{number}.png"), values)
    # One of 8 bits among them does not change how they are read.
    assert cv2.imwrite(str(tmp_path / "3.png"), picture.astype(np.uint8))
    with open_source(str(tmp_path)) as source:
        frames = [frame.rgb for frame in source]
        assert any(f"use {bits}" in line for line in source.warnings) == (bits < 16)
    assert all(np.abs(frames[number][..., 0].astype(int) - picture).max() <= 1 for number in (2, 3))
    assert np.abs(frames[0][..., 0].astype(int) - picture // 3).max() <= 1


@pytest.mark.parametrize(
    "kind", ["grey", "ones", "deep", "deep_ones", "colour", "transparent", "deep_transparent", "palette", "jpeg"]
)
def test_masks_of_any_form_exclude_the_same(tmp_path: Path, kind: str) -> None:
    write_images(tmp_path / "a", ["0.png"], (96, 72))
    (tmp_path / "m").mkdir()
    keep = np.zeros((72, 96), np.uint8)
    keep[:, 48:] = 255
    white = np.full((72, 96, 3), 255, np.uint8)
    images = {
        "grey": keep,
        "ones": keep // 255,
        "deep": keep.astype(np.uint16) * 257,
        "deep_ones": (keep // 255).astype(np.uint16),
        "colour": np.dstack([keep, keep, keep]),
        "transparent": np.dstack([white, keep]),
        # 256 is the darkest 16-bit value that is something in 8 bits.
        "deep_transparent": np.dstack([white.astype(np.uint16) * 257, np.where(keep, 256, 255).astype(np.uint16)]),
        "jpeg": keep,
    }
    if kind == "palette":
        palette = Image.fromarray(keep // 255, "P")
        palette.putpalette([0, 0, 0, 255, 255, 255])
        palette.save(tmp_path / "m" / "0.png")
    else:
        cv2.imwrite(str(tmp_path / "m" / ("0.jpg" if kind == "jpeg" else "0.png")), images[kind])
    with open_source(str(tmp_path / "a"), FrameChoice(masks=str(tmp_path / "m"))) as source:
        (frame,) = source
    assert frame.mask is not None and (frame.mask == (keep == 0)).all()


def test_masks_of_labels_are_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "a", ["0.png"], (96, 72))
    (tmp_path / "m").mkdir()
    cv2.imwrite(str(tmp_path / "m" / "0.png"), np.tile(np.arange(96, dtype=np.uint8) // 20, (72, 1)))
    choice = FrameChoice(masks=str(tmp_path / "m"))
    with (
        open_source(str(tmp_path / "a"), choice) as source,
        pytest.raises(InputError, match=r"0\.png has levels of 0 to 4: use 0 \(black\)"),
    ):
        list(source)
    # A mask that excludes all is one.
    cv2.imwrite(str(tmp_path / "m" / "0.png"), np.zeros((72, 96), np.uint8))
    with open_source(str(tmp_path / "a"), FrameChoice(masks=str(tmp_path / "m"))) as source:
        (frame,) = source
    assert frame.mask is not None and frame.mask.all()


def test_pictures_are_no_masks(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    shades = np.tile(np.arange(64, dtype=np.uint8) * 4, (48, 1))
    cv2.imwrite(str(tmp_path / "a/0.png"), shades)
    with (
        open_source(str(tmp_path / "a"), FrameChoice(masks=str(tmp_path / "a"))) as source,
        pytest.raises(InputError, match=r"0\.png is a picture in 64 levels"),
    ):
        next(iter(source))


def test_a_mask_that_leaves_little_is_told(tmp_path: Path) -> None:
    write_images(tmp_path / "a", ["1.png", "2.png"])
    (tmp_path / "m").mkdir()
    for number, rows in ((1, 47), (2, 46)):
        mask = np.zeros((48, 64), np.uint8)
        mask[rows:] = 255
        cv2.imwrite(str(tmp_path / "m" / f"{number}.png"), mask)
    with open_source(str(tmp_path / "a"), FrameChoice(masks=str(tmp_path / "m"))) as source:
        assert len(list(source)) == 2
        assert source.warnings == ["the mask of frame 0 leaves 2% of it: black is what is excluded"]


@pytest.mark.parametrize("kind", ["0.png", "0.tif", "0.webp", "deep.png", "palette.png", "grey.png"])
def test_transparent_pixels_are_masked_and_their_colours_stay(tmp_path: Path, kind: str) -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    alpha = np.full((48, 64), 255, np.uint8)
    alpha[:, :20], alpha[:, 20:30] = 0, 1
    picture = Image.fromarray(np.dstack([rgb, alpha]))
    if kind == "deep.png":
        cv2.imwrite(str(tmp_path / kind), np.dstack([rgb[..., ::-1], alpha]).astype(np.uint16) * 257)
    elif kind == "palette.png":
        picture = Image.fromarray(np.where(alpha > 0, rgb[..., 0] // 2 + 1, 0).astype(np.uint8), "P")
        picture.putpalette([level for level in range(256) for _ in range(3)])
        picture.save(tmp_path / kind, transparency=0)
    else:
        picture = picture.convert("LA") if kind == "grey.png" else picture
        picture.save(tmp_path / kind, **({"lossless": True, "exact": True} if kind == "0.webp" else {}))
    with open_source(str(tmp_path / kind)) as source:
        (frame,) = source
        assert source.warnings == [f"{kind}: its transparent pixels are masked"]
    assert frame.mask is not None and (frame.mask == (alpha == 0)).all()
    plain = cv2.imread(str(tmp_path / kind), cv2.IMREAD_COLOR)
    assert plain is not None and (frame.rgb == plain[..., ::-1])[:, 30:].all()


def test_colours_of_tiff_are_those_under_its_alpha(tmp_path: Path) -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    Image.fromarray(np.dstack([rgb, np.full((48, 64), 128, np.uint8)])).save(tmp_path / "0.tif")
    with open_source(str(tmp_path / "0.tif")) as source:
        (frame,) = source
    assert np.abs(frame.rgb.astype(int) - rgb).max() <= 2


def test_pixels_of_tiff_that_are_no_colours_are_told(tmp_path: Path) -> None:
    Image.fromarray(np.full((48, 64), 90, np.uint8)).save(tmp_path / "0.tif", tiffinfo={262: 0})
    with open_source(str(tmp_path / "0.tif")) as source:
        list(source)
        assert any("PhotometricInterpretation 0 is not understood" in line for line in source.warnings)


def test_levels_of_pgm_are_shares_of_its_largest(tmp_path: Path) -> None:
    (tmp_path / "0.pgm").write_bytes(b"P5\n# made\n64 48\n100\n" + bytes([50]) * (64 * 48))
    with open_source(str(tmp_path / "0.pgm")) as source:
        (frame,) = source
    assert frame.rgb.max() == frame.rgb.min() == 127


def test_a_pattern_leaves_out_what_a_folder_does(tmp_path: Path) -> None:
    write_images(tmp_path, ["1.jpg", "2.jpg", "1_mask.jpg", "2_mask.jpg"])
    with open_source(str(tmp_path / "*.jpg")) as source:
        assert len(list(source)) == 2 and "2 images were left out" in source.warnings[0]


def test_an_alpha_that_says_nothing_masks_nothing(tmp_path: Path) -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    for number, alpha in enumerate((0, 77, 255)):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.dstack([rgb, np.full((48, 64), alpha, np.uint8)]))
    with open_source(str(tmp_path)) as source:
        assert [frame.mask for frame in source] == [None] * 3
        assert source.warnings == ["0.png: its alpha of 0 is not applied"]


def test_masks_and_transparent_pixels_are_excluded_both(tmp_path: Path) -> None:
    write_images(tmp_path / "a", [])
    write_images(tmp_path / "m", [])
    alpha, mask = np.full((2, 48, 64), 255, np.uint8)
    alpha[:10], mask[:, :10] = 0, 0
    cv2.imwrite(str(tmp_path / "a/0.png"), np.dstack([np.full((48, 64, 3), 90, np.uint8), alpha]))
    cv2.imwrite(str(tmp_path / "m/0.png"), mask)
    with open_source(str(tmp_path / "a"), FrameChoice(masks=str(tmp_path / "m"))) as source:
        (frame,) = source
    assert frame.mask is not None and (frame.mask == ((alpha == 0) | (mask == 0))).all()


@pytest.mark.parametrize("pattern", range(4))
def test_mosaics_that_are_said_to_be_grey_are_told(tmp_path: Path, pattern: int) -> None:
    rgb = cv2.GaussianBlur(np.random.default_rng(1).integers(0, 256, (96, 128, 3), np.uint8), (0, 0), 9)
    rgb = cv2.normalize(rgb, None, 0, 255, cv2.NORM_MINMAX)
    grey = np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY))
    mosaic = rgb[..., 1].copy()
    row, column = divmod(pattern, 2)
    mosaic[row::2, column::2], mosaic[1 - row :: 2, 1 - column :: 2] = rgb[row::2, column::2, 0], rgb[::2, ::2, 2]
    for name, image in (("grey", grey), ("mosaic", mosaic)):
        cv2.imwrite(str(tmp_path / f"{name}.png"), image)
        with open_source(str(tmp_path / f"{name}.png")) as source:
            assert len(list(source)) == 1
            assert ["Bayer mosaic" in line for line in source.warnings] == [True] * (name == "mosaic")


def test_values_of_8_bits_in_16_have_their_brightness(tmp_path: Path) -> None:
    levels = np.tile(np.arange(96, dtype=np.uint16) * 2, (72, 1))
    for number in range(2):
        assert cv2.imwrite(str(tmp_path / f"{number}.png"), np.dstack([levels] * 3))
    with open_source(str(tmp_path)) as source:
        assert all((frame.rgb[..., 0] == levels).all() for frame in source)
        assert any("use 8" in line for line in source.warnings)


def test_floats_that_are_not_known_are_masked(tmp_path: Path) -> None:
    image = np.full((48, 64, 3), 0.5, np.float32)
    image[:12, :, 1] = np.nan
    assert cv2.imwrite(str(tmp_path / "0.tif"), image)
    with open_source(str(tmp_path)) as source:
        (frame,) = source
        assert source.warnings == ["0.tif: its transparent pixels are masked"]
    assert frame.mask is not None and frame.mask[:12].all() and not frame.mask[12:].any()
