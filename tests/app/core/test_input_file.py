"""The door for files: pipes, devices, links to them, sparse files and folders are refused at once."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stream_recon.app.batch.manifest import check_manifest
from stream_recon.app.batch.summary import read_summary
from stream_recon.app.core.input_file import open_regular, read_file
from stream_recon.app.datasets.text import read_text
from stream_recon.app.result.cameras import iterate_cameras
from stream_recon.app.result.files import stored_points
from stream_recon.app.result.folder import read_run
from stream_recon.app.result.resume import read_partial_result
from stream_recon.app.result.tracks import read_tracks
from stream_recon.app.sources.calibration import parse_camera
from stream_recon.app.sources.exif import read_exif
from stream_recon.app.sources.image_decoding import read_image
from stream_recon.configs.errors import StreamReconError
from stream_recon.models.embedded import weights_file
from tests.app.fake_engine import fake_preset

HUGE = 100 << 30


def make(kind: str, path: Path) -> Path:
    """A file of another kind at ``path``."""
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "sparse":
            with path.open("wb") as file:
                file.truncate(HUGE)
    return path


KINDS = ("pipe", "device", "folder", "sparse")


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_of_bounded_size_are_read(tmp_path: Path, kind: str) -> None:
    path = make(kind, tmp_path / "a")
    with pytest.raises(OSError):
        read_file(path)
    if kind != "sparse":
        with pytest.raises(OSError):
            open_regular(path)


def test_regular_files_are_read_up_to_their_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_file(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="larger"):
        read_file(tmp_path / "a", 4)
    assert b"MemTotal" in read_file(Path("/proc/meminfo"))


READERS: dict[str, Callable[[Path], object]] = {
    "run.json": lambda path: read_run(path.parent),
    "cameras.json": lambda path: list(iterate_cameras(path)),
    "points.ply": stored_points,
    "manifest.json": lambda path: check_manifest(path.parent, {}) and read_text(path),
    "summary.json": read_summary,
    "camera.yml": lambda path: parse_camera(str(path)),
    "groundtruth.txt": read_text,
    "a.safetensors": lambda path: weights_file(fake_preset(), path),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_an_error_of_one_line(tmp_path: Path, name: str, kind: str) -> None:
    path = make(kind, tmp_path / name)
    with pytest.raises(StreamReconError) as raised:
        READERS[name](path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", ("pipe", "device", "folder"))
def test_what_may_be_missing_does_not_block(tmp_path: Path, kind: str) -> None:
    assert read_image(make(kind, tmp_path / "a.png")) is None
    make(kind, tmp_path / "tracks.npz")
    assert read_tracks(tmp_path) is None
    with pytest.raises(StreamReconError):
        read_exif(make(kind, tmp_path / "b.jpg"))
    (tmp_path / "run.json").symlink_to(make(kind, tmp_path / "c"))
    with pytest.raises(StreamReconError):
        read_partial_result(tmp_path)


def test_a_drive_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    blocked = threading.Event()
    real = os.open

    def wait(path: str | Path, *arguments: Any) -> int:
        if Path(path) == tmp_path / "a":
            blocked.wait(20)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", wait)
    try:
        for read in (read_file, open_regular):
            with pytest.raises(OSError, match="did not answer"):
                read(tmp_path / "a", timeout_s=0.1)
    finally:
        blocked.set()


def test_a_slow_drive_is_waited_for_while_it_gives_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(bytes(range(40)))
    real = os.fdopen

    class Slow:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __enter__(self) -> "Slow":
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def fileno(self) -> int:
            return int(self._file.fileno())

        def read(self, size: int) -> bytes:
            time.sleep(0.06)
            return bytes(self._file.read(min(size, 4)))

    monkeypatch.setattr(os, "fdopen", lambda *arguments: Slow(real(*arguments)))
    assert read_file(tmp_path / "a", timeout_s=0.4) == bytes(range(40))
