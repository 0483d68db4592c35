"""Names that decoders stumble over, and images that are more than they seem."""

import os
import subprocess
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.datasets.recording import count_video
from stream_recon.app.sources.image_decoding import read_depth_image, read_image
from stream_recon.app.sources.image_files import natural_key
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import InputError
from tests.app.media import write_images, write_video

LIMITED = (
    "import resource, sys; from pathlib import Path\n"
    "resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))\n"
    "from stream_recon.app.sources.image_decoding import read_image\n"
    "sys.exit(0 if read_image(Path(sys.argv[1])) is None else 1)"
)
"""Exit code 0 where the image is refused; in a process of its own, since OpenCV reads its limits when imported."""


def named(folder: Path, name: bytes) -> Path:
    """A video of 12 frames under that name."""
    return write_video(folder / "plain.mp4", 12).rename(folder / os.fsdecode(name))


@pytest.mark.parametrize("name", [b"bad\xff.mp4", b"\xe9t\xe9 2004.mp4"])
def test_a_video_whose_name_is_not_utf8_is_read(tmp_path: Path, name: bytes) -> None:
    # In another process first: the decoder used to end it by a signal.
    path = named(tmp_path, name)
    program = (
        "import os, sys; from pathlib import Path; from stream_recon.app.sources.source import open_source\n"
        "sys.exit(len(list(open_source(os.fsdecode(sys.argv[1])))))"
    )
    assert subprocess.run([sys.executable, "-c", program, os.fsencode(path)]).returncode == 12
    assert count_video(path) == 12
    with open_source(str(path)) as source:
        source.skip(4)
        assert [frame.index for frame in source] == list(range(4, 12))


@pytest.mark.parametrize("name", ["12:30.mp4", "2026-10-05T12:30:15.mp4", "concat:x.mp4", "file:z.mp4", "pipe:.mp4"])
def test_a_colon_in_a_relative_name_is_no_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    named(tmp_path, name.encode())
    monkeypatch.chdir(tmp_path)
    for spec in (name, f"./{name}"):
        with open_source(spec) as source:
            assert len(list(source)) == 12


def test_an_address_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(InputError, match="not UTF-8"):
        open_source("http://127.0.0.1:9/\udcff.mp4")


def png(path: Path, width: int, height: int) -> Path:
    """A grey image of one bit a pixel, all black: it packs a thousandfold."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x01\x00\x00\x00\x00"
    rows = zlib.compress(bytes((1 + (width + 7) // 8) * height), 9)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    return path


def test_an_image_that_unpacks_to_a_billion_pixels_is_unreadable(tmp_path: Path) -> None:
    bomb = png(tmp_path / "bomb.png", 30_000, 30_000)
    assert bomb.stat().st_size < 200_000
    done = subprocess.run([sys.executable, "-c", LIMITED, bomb], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_png_that_says_it_is_longer_than_it_is_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenCV would ask for 4 GB before it looks."""
    whole = cv2.imencode(".png", np.full((4, 5, 3), 7, np.uint8))[1].tobytes()
    place = tmp_path / "a.png"
    place.write_bytes(whole + b"appended by some program")
    found = read_image(place)
    assert found is not None and (found == 7).all()
    first = whole.index(b"IDAT") - 4
    for broken in (whole[:first] + b"\xff\xff\xff\xf0" + whole[first + 4 :], whole[: first + 10]):
        place.write_bytes(broken)
        with monkeypatch.context() as patched:
            patched.setattr(cv2, "imdecode", lambda *_: pytest.fail("unpacked"))
            assert read_image(place) is None and read_depth_image(place) is None


def test_the_largest_images_that_cameras_take_are_read(tmp_path: Path) -> None:
    assert read_image(png(tmp_path / "large.png", 16_384, 12_288)) is not None


def test_only_files_are_read_as_images(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with (tmp_path / "long.png").open("wb") as file:
        file.truncate(2**40)
    for path in (tmp_path / "pipe.png", tmp_path / "long.png", tmp_path, Path("/dev/zero"), tmp_path / "a\0b.png"):
        assert read_image(path) is None


def test_a_pipe_is_no_video(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(InputError, match="not a regular file"):
        open_source(str(tmp_path / "pipe.mp4"))


def test_an_image_whose_name_is_not_utf8_is_read(tmp_path: Path) -> None:
    (write_images(tmp_path, ["1.png"]) / "1.png").rename(tmp_path / os.fsdecode(b"\xff.png"))
    (frame,) = open_source(str(tmp_path))
    assert frame.rgb.shape == (48, 64, 3)


def test_numbers_of_any_length_have_an_order() -> None:
    long = "9" * 5000
    names = [f"a{long}.png", "a10.png", "a9.png", f"a1{long}.png", "a².png"]
    assert sorted(names, key=natural_key) == ["a9.png", "a10.png", f"a{long}.png", f"a1{long}.png", "a².png"]


def test_float_images_map_0_to_1(tmp_path: Path) -> None:
    picture = np.full((4, 6, 3), (-1.0, 0.5, 2.0), np.float32)
    picture[0, 0] = np.nan
    assert cv2.imwrite(str(tmp_path / "a.tif"), picture)
    rgb = read_image(tmp_path / "a.tif")
    assert rgb is not None and rgb[1, 1].tolist() == [255, 128, 0] and rgb[0, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.float32])
def test_pixels_of_other_types_are_refused_by_name(tmp_path: Path, kind: type[np.generic]) -> None:
    cv2.imwrite(str(tmp_path / "a.tif"), np.full((8, 8, 3), 200).astype(kind))
    with open_source(str(tmp_path / "a.tif")) as source, pytest.raises(InputError, match=r"a\.tif has pixels of .*200"):
        next(iter(source))
