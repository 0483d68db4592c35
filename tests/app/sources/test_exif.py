"""What cameras write into their files: focal lengths and places, whichever way they were held."""

import math
import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stream_recon.app.sources.calibration import EXIF
from stream_recon.app.sources.exif import VIDEO_FOCAL, Exif, camera_of_video, read_exif, times_taken
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.image_decoding import oriented, read_image
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import InputError
from tests.app.program import exit_code
from tests.app.sources.exif_files import SIZES, Entries, entries, jpeg, png, structure, tiff, video
from tests.mutations import Mutant, silently_other

PLACE = -33.856784, 151.215297, 12.5
RGB = np.random.default_rng(0).integers(0, 255, (300, 400, 3)).astype(np.uint8)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "tif"])
def test_focal_length_and_place_are_read_from_all_kinds_of_files(tmp_path: Path, order: str, kind: str) -> None:
    block, path = tiff(26, PLACE, order=order), tmp_path / f"a.{kind}"
    if kind == "jpg":
        jpeg(path, RGB, block)
    elif kind == "png":
        png(path, RGB, block, at_end=order == ">")
    elif kind == "webp":
        Image.fromarray(RGB).save(path, exif=b"Exif\0\0" + block)
    else:
        path.write_bytes(block)
    found = read_exif(path)
    assert found.focal_35mm == 26 and found.position == pytest.approx(PLACE, abs=1e-6)


def test_a_sensor_of_known_density_tells_as_much(tmp_path: Path) -> None:
    # 400 pixels of 0.01 cm are 40 mm; 50 mm are 1.25 of these widths.
    found = read_exif(jpeg(tmp_path / "a.jpg", RGB, tiff(focal=50.0, density=100.0)))
    assert found.focal_widths == pytest.approx(1.25) and found.focal_35mm is None


@pytest.mark.parametrize("orientation", [1, 6])
def test_photographs_make_a_known_camera_whichever_way_they_were_held(tmp_path: Path, orientation: int) -> None:
    for number in range(3):
        jpeg(tmp_path / f"{number}.jpg", RGB, tiff(26, orientation=orientation))
    with open_source(str(tmp_path), FrameChoice(camera="exif")) as source:
        frame = next(iter(source))
        assert frame.rgb.shape[:2] == ((300, 400) if orientation == 1 else (400, 300))
        assert source.camera == EXIF
    focal = 26 * 500 / math.hypot(36, 24)
    assert source.intrinsics is not None
    assert (source.intrinsics.fx, source.intrinsics.cx) == (pytest.approx(focal), frame.rgb.shape[1] / 2)


@pytest.mark.parametrize("iso", [True, False])
@pytest.mark.parametrize(
    ("value", "kind"), [(struct.pack(">i", 26), 67), (struct.pack(">f", 26.0), 23), (b"26", 1), (b"\x1a", 65)]
)
def test_films_of_phones_say_it_in_their_metadata(tmp_path: Path, iso: bool, value: bytes, kind: int) -> None:
    path = video(tmp_path / "a.mov", VIDEO_FOCAL, value, kind, iso=iso)
    assert camera_of_video(path, (1080, 1920)).fx == pytest.approx(26 * math.hypot(1080, 1920) / math.hypot(36, 24))


def test_files_that_say_nothing_or_junk_end_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        jpeg(tmp_path / f"{number}.jpg", RGB, tiff(26 + 9 * number))
    sample = Path(__file__).parents[3] / "app/sample/walkthrough.mp4"
    out = ("--no-viewer", "-o", str(tmp_path / "out"), "--intrinsics", "exif")
    for source, what in (
        (tmp_path, "differ in focal length"),
        (sample, "does not state"),
        ("rtsp://localhost:1/a", ""),
    ):
        assert exit_code(monkeypatch, str(source), *out) == 2
        error = capsys.readouterr().err.strip()
        assert len(error.splitlines()) == 1 and what in error
    with pytest.raises(InputError):
        camera_of_video(video(tmp_path / "b.mov", b"com.apple.other", b"26", 1, iso=False), (1080, 1920))
    whole, draw = (tmp_path / "0.jpg").read_bytes()[:400], random.Random(1)
    video(tmp_path / "c.mov", VIDEO_FOCAL, b"26", 1, iso=False)
    boxes = (tmp_path / "c.mov").read_bytes()
    for _ in range(300):
        for data, name in ((bytearray(whole), "junk.jpg"), (bytearray(boxes), "junk.mov")):
            for _ in range(draw.randrange(1, 20)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            (tmp_path / name).write_bytes(data[: draw.randrange(len(data))])
        assert isinstance(read_exif(tmp_path / "junk.jpg"), Exif)
        with suppress(InputError):
            camera_of_video(tmp_path / "junk.mov", (1080, 1920))


def test_heic_says_as_much_and_is_turned_by_its_decoder(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    heif = pillow_heif.from_pillow(Image.fromarray(RGB))
    heif.save(tmp_path / "a.heic", exif=b"Exif\0\0" + tiff(26, PLACE, orientation=6))
    found = read_exif(tmp_path / "a.heic")
    assert (found.focal_35mm, found.orientation) == (26, 1)
    assert found.position == pytest.approx(PLACE, abs=1e-6)


Structure = list[Entries]


def full() -> Structure:
    """Entries of a photograph that states all that is read."""
    main, inner, gps = entries(26, PLACE, focal=50.0, density=100.0, orientation=6, taken=datetime(2026, 5, 1, 12))
    inner["OffsetTimeOriginal"] = (0x9011, 2, b"+02:00\0")
    inner["SubsecTimeOriginal"] = (0x9291, 2, b"25\0")
    inner["FocalPlaneYResolution"] = (0xA20F, 5, struct.pack("<II", 100_000, 1000))
    inner["DigitalZoomRatio"] = (0xA404, 5, struct.pack("<II", 1, 1))
    return [main, inner, gps]


def changed(entry: tuple[int, int, bytes]) -> Iterator[tuple[str, tuple[int, int, bytes]]]:
    """An entry of other types, of one value more, and of values that it cannot have."""
    tag, kind, content = entry
    for other, size in SIZES.items():
        if other != kind:
            # The other types of numbers say the same.
            (number,) = struct.unpack("<H", content[:2].ljust(2, b"\0"))
            same = struct.pack("<" + {3: "H", 4: "I"}[other], number) if kind in (3, 4) and other in (3, 4) else content
            yield f"type {other}", (tag, other, same.ljust(-(-len(same) // size) * size, b"\0"))
    if kind != 2:
        yield "one value more", (tag, kind, content + content[-SIZES[kind] :])
    yield "high values", (tag, kind, b"\xff" * (len(content) - (kind == 2)) + b"\0" * (kind == 2))


def mutants(kinds: tuple[str, ...]) -> Iterator[Mutant[Structure]]:
    for number, directory in enumerate(full()):
        for name, entry in directory.items():
            for change, other in changed(entry):
                whole = full()
                whole[number] = directory | {name: other}
                yield Mutant(change, (name, name.removesuffix("Ref")), whole)
            # Without its other tags a photograph is another valid one.
            if name in kinds:
                for change, with_it in (("removed", {}), ("renamed", {name: (0xEEEE, *entry[1:])})):
                    whole = full()
                    whole[number] = {n: e for n, e in directory.items() if n != name} | with_it
                    yield Mutant(change, (name, name.removesuffix("Ref")), whole)


def test_no_change_of_a_tag_is_silent(tmp_path: Path) -> None:
    number = 0

    def read(content: Structure) -> tuple[object, list[str]]:
        nonlocal number
        number += 1
        path = jpeg(tmp_path / f"{number}.jpg", RGB[:30, :40], structure(*content))
        found = read_exif(path)
        values = found.focal_35mm, found.focal_widths, found.taken, found.ahead_s, found.position, found.orientation
        return values, [*found.notes, *found.focal_notes, *found.place_notes]

    expected, said = read(full())
    assert not said and expected == (26, 1.25, 1777636800.25, 7200, pytest.approx(PLACE, abs=1e-6), 6)
    needed = ("FocalPlaneResolutionUnit", "GPSLatitude", "GPSLatitudeRef", "GPSLongitude", "GPSLongitudeRef")
    assert silently_other(read, mutants((*needed, "GPSAltitudeRef")), expected, InputError) == []


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize(
    ("value", "shape"), [(1, (30, 40)), (6, (40, 30)), (8, (40, 30)), (0, (30, 40)), (9, (30, 40))]
)
def test_each_kind_of_file_is_turned_by_one_table(
    tmp_path: Path, kind: str, value: int, shape: tuple[int, int]
) -> None:
    rgb, path, block = RGB[:30, :40], tmp_path / f"a.{kind}", tiff(orientation=value)
    if kind in ("jpg", "png"):
        (jpeg if kind == "jpg" else png)(path, rgb, block)
    elif kind == "webp":
        Image.fromarray(rgb).save(path, exif=b"Exif\0\0" + block)
    else:
        Image.fromarray(rgb).save(path, tiffinfo={0x0112: 5})
        old, new = (struct.pack("<HHIH", 0x0112, 3, 1, number) for number in (5, value))
        path.write_bytes(path.read_bytes().replace(old, new))
    assert read_exif(path).size == (40, 30)
    stored = read_image(path, as_stored=True)
    with open_source(str(tmp_path)) as source:
        frame = next(iter(source))
        told = [f"a.{kind}: EXIF Orientation {value} is not understood, and the image is taken as stored"]
        assert source.warnings == (told if value in (0, 9) else [])
    assert frame.rgb.shape[:2] == ((40, 30) if value in (6, 8) else (30, 40))
    assert stored is not None and np.array_equal(frame.rgb, oriented(stored, value))


def test_avif_is_turned_by_its_box(tmp_path: Path) -> None:
    rgb = np.zeros((40, 60, 3), np.uint8)
    rgb[:20, :30] = 250, 20, 20
    Image.fromarray(rgb).save(tmp_path / "a.avif", exif=tiff(orientation=6))
    with open_source(str(tmp_path / "a.avif")) as source:
        frame = next(iter(source))
    assert frame.rgb.shape == (60, 40, 3) and frame.rgb[5, -5, 0] > 200 and frame.rgb[5, 5, 0] < 60


def test_what_a_camera_states_oddly_is_told_where_it_is_used(tmp_path: Path) -> None:
    content = full()
    content[1]["DigitalZoomRatio"] = (0xA404, 5, struct.pack("<II", 2, 1))
    jpeg(tmp_path / "a.jpg", RGB, structure(*content))
    for camera, count in (("exif", 1), (None, 0)):
        with open_source(str(tmp_path), FrameChoice(camera=camera)) as source:
            next(iter(source))
            assert len(source.warnings) == count and all("DigitalZoomRatio 2 " in line for line in source.warnings)
    content[1]["FocalLengthIn35mmFilm"] = (0xA405, 3, struct.pack("<HH", 26, 26))
    del content[1]["FocalPlaneXResolution"]
    jpeg(tmp_path / "a.jpg", RGB, structure(*content))
    with pytest.raises(InputError, match=r"does not state its focal length; EXIF FocalLengthIn35mmFilm \(type 3, 2 va"):
        open_source(str(tmp_path), FrameChoice(camera="exif"))


def test_times_of_other_zones_are_compared_in_one(tmp_path: Path) -> None:
    paths = []
    for name, hour, zone in (("a", 12, b"+02:00\0"), ("b", 11, b"+00:00\0")):
        main, inner, _ = entries(taken=datetime(2026, 5, 1, hour))
        inner["OffsetTimeOriginal"] = (0x9011, 2, zone)
        paths.append(jpeg(tmp_path / f"{name}.jpg", RGB, structure(main, inner, {})))
    times = times_taken(paths)
    assert times is not None and times[1] - times[0] == 3600


SECOND = Image.fromarray(255 - RGB[:60, :180])


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("a.png", {}, False),
        ("a.png", {"save_all": True, "append_images": [SECOND]}, True),
        ("a.webp", {"save_all": True, "append_images": [SECOND]}, True),
        ("a.tif", {"save_all": True, "append_images": [SECOND]}, True),
        ("a.mpo", {"save_all": True, "append_images": [SECOND]}, False),
    ],
)
def test_further_pictures_of_a_file_are_told(tmp_path: Path, name: str, options: dict[str, Any], told: bool) -> None:
    path, rgb = tmp_path / name, np.repeat(np.arange(0, 240, 4, np.uint8), 540).reshape(60, 180, 3)
    Image.fromarray(rgb).save(path, **options)
    if path.suffix == ".mpo":
        path = path.rename(tmp_path / "a.jpg")
    with open_source(str(path)) as source:
        assert np.abs(next(iter(source)).rgb.astype(int) - rgb).mean() < 9
        assert [line for line in source.warnings if "further pictures" in line] == [
            f"{path.name}: its further pictures ({'TIFF' if name == 'a.tif' else name[2:].upper()}) are not read"
        ] * told


def test_a_second_view_in_a_photograph_is_told(tmp_path: Path) -> None:
    Image.fromarray(RGB).save(tmp_path / "a.mpo", save_all=True, append_images=[SECOND])
    data = (tmp_path / "a.mpo").read_bytes()
    # The second of two entries of 16 bytes begins with its attribute, here that of a pair of lenses.
    at = data.index(struct.pack("<HHI", 0xB002, 7, 32))
    (offset,) = struct.unpack_from("<I", data, at + 8)
    begin = data.index(b"MPF\0") + 4 + offset + 16
    (tmp_path / "a.jpg").write_bytes(data[:begin] + struct.pack("<I", 0x020002) + data[begin + 4 :])
    with open_source(str(tmp_path / "a.jpg")) as source:
        next(iter(source))
        assert source.warnings == ["a.jpg: its further pictures (MPO) are not read"]


def test_a_burst_in_heic_is_told(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    heif = pillow_heif.from_pillow(Image.fromarray(RGB))
    heif.add_from_pillow(SECOND)
    heif.save(tmp_path / "a.heic")
    assert read_exif(tmp_path / "a.heic").notes == ("its further pictures (HEIC) are not read",)
