"""What cameras write into their files: focal lengths and places, whichever way they were held."""

import math
import random
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from stream_recon.app.sources.calibration import EXIF
from stream_recon.app.sources.exif import VIDEO_FOCAL, Exif, camera_of_video, read_exif
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import InputError
from tests.app.program import exit_code
from tests.app.sources.exif_files import jpeg, tiff, video

PLACE = -33.856784, 151.215297, 12.5
RGB = np.random.default_rng(0).integers(0, 255, (300, 400, 3)).astype(np.uint8)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "tif"])
def test_focal_length_and_place_are_read_from_all_kinds_of_files(tmp_path: Path, order: str, kind: str) -> None:
    block, path = tiff(26, PLACE, order), tmp_path / f"a.{kind}"
    if kind == "jpg":
        jpeg(path, RGB, block)
    elif kind == "png":
        data = cv2.imencode(".png", RGB)[1].tobytes()
        check = struct.pack(">I", zlib.crc32(b"eXIf" + block))
        path.write_bytes(data[:33] + struct.pack(">I", len(block)) + b"eXIf" + block + check + data[33:])
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
