"""Recognition of files, and ZIP files that mean harm."""

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from stream_recon.app.web.contents import Content, content_of
from stream_recon.app.web.contents import unpack as unpack_files
from stream_recon.configs.errors import InputError
from tests.app.media import write_broken_avi, write_video

JPEG = b"\xff\xd8\xff\xe0" + b"0" * 100


def unpack(path: Path, target: Path, max_bytes: int, max_files: int = 50) -> int:
    return unpack_files(path, target, max_bytes, max_files)


def zip_of(path: Path, entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in entries.items():
            file.writestr(name, data)
    return path


def test_real_files_are_known_by_their_content(tmp_path: Path) -> None:
    video = write_video(tmp_path / "a.mp4", frames=3).read_bytes()
    avi = write_broken_avi(tmp_path / "a.avi", frames=3).read_bytes()
    for data, kind, suffix in ((video, "video", ".mp4"), (avi, "video", ".avi"), (JPEG, "image", ".jpg")):
        content = content_of(data[:4096])
        assert content is not None and (content.kind, content.suffix) == (kind, suffix)
    stream = (b"\x47" + bytes(187)) * 3
    assert content_of(stream) == Content("video", ".ts")
    assert content_of(b"") is None and content_of(b"G" * 100) is None


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.zip", {"a.jpg": JPEG + bytes(5_000_000)})
    with pytest.raises(InputError, match="expands far more"):
        unpack(path, tmp_path / "out", 10**9)


def test_what_is_written_counts_and_not_what_is_stated(tmp_path: Path) -> None:
    noise = bytes(range(256)) * 400
    path = zip_of(tmp_path / "a.zip", {f"{i}.jpg": JPEG + noise for i in range(5)}, zipfile.ZIP_STORED)
    with pytest.raises(InputError, match="room"):
        unpack(path, tmp_path / "out", 3 * len(noise))


def test_too_many_entries_are_refused(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.zip", {f"{i}.jpg": JPEG for i in range(4)})
    with pytest.raises(InputError, match="more than 3 files"):
        unpack(path, tmp_path / "out", 10**9, 3)


def test_entries_are_counted_before_they_are_read(tmp_path: Path) -> None:
    path, count = tmp_path / "a.zip", 400_000
    entry = b"PK\x01\x02" + bytes(24) + b"\x01" + bytes(17) + b"a"
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, count * len(entry), 0, 0)
    path.write_bytes(count * entry + end)
    for max_files, most_bytes in ((50, 1 << 18), (100_000, 2 * count * len(entry))):
        tracemalloc.start()
        with pytest.raises(InputError, match=r"more than \d+ entries"):
            unpack(path, tmp_path / "out", 10**9, max_files)
        assert tracemalloc.get_traced_memory()[1] < most_bytes
        tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_unpack_without_a_bound_are_refused(tmp_path: Path, method: int) -> None:
    with pytest.raises(InputError, match="not Deflate"):
        unpack(zip_of(tmp_path / "a.zip", {"a.jpg": JPEG}, method), tmp_path / "out", 10**9)


def test_links_and_hidden_files_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        link = zipfile.ZipInfo("link.jpg")
        link.external_attr = 0o120777 << 16
        file.writestr(link, "/etc/passwd")
        file.writestr("__MACOSX/._a.jpg", JPEG)
        file.writestr("a.jpg", JPEG)
    assert unpack(path, tmp_path / "out", 10**9) == 1
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["000000.jpg"]
    assert not any(each.is_symlink() for each in (tmp_path / "out").iterdir())


def test_a_zip_of_one_video_gives_the_video(tmp_path: Path) -> None:
    video = write_video(tmp_path / "a.mp4", frames=3).read_bytes()
    assert unpack(zip_of(tmp_path / "a.zip", {"x/film.mp4": video}), tmp_path / "out", 10**9) == 1
    assert (tmp_path / "out" / "video.mp4").read_bytes() == video


@pytest.mark.parametrize("damage", ["cut", "none", "zeros"])
def test_damaged_files_are_one_line(tmp_path: Path, damage: str) -> None:
    data = zip_of(tmp_path / "a.zip", {f"{i}.jpg": JPEG * 50 for i in range(3)}).read_bytes()
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "zeros":
        data = data[:60] + bytes(80) + data[140:]
    else:
        data = b"PK\x05\x06" + bytes(18)
    (tmp_path / "b.zip").write_bytes(data)
    with pytest.raises(InputError) as error:
        unpack(tmp_path / "b.zip", tmp_path / "out", 10**9)
    assert "\n" not in str(error.value)


def test_an_empty_archive_leaves_nothing(tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("a.txt", "text")
    (tmp_path / "a.zip").write_bytes(content.getvalue())
    with pytest.raises(InputError, match="no photographs"):
        unpack(tmp_path / "a.zip", tmp_path / "out", 10**9)
    assert not (tmp_path / "out").exists()
