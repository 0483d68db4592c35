"""A folder of a scan: read while it grows, and again afterwards with the same frames, times and segments."""

import json
import threading
import time
from pathlib import Path

import cv2
import pytest

from stream_recon.app.sources.scan_folder import FEEDBACK_NAME, FRAMES_NAME
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import InputError
from tests.app.media import number_of, numbered_image


class Phone:
    """Writes a scan's folder as the server does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / FRAMES_NAME).touch()

    def send(self, index: int, seconds: float, segment: int = 0, size: tuple[int, int] = (64, 48)) -> None:
        cv2.imwrite(str(self.folder / f"{index:06d}.jpg"), numbered_image(index, size))
        self.line({"index": index, "time": seconds, "segment": segment})

    def end(self) -> None:
        self.line({"end": True})

    def line(self, entry: dict[str, object]) -> None:
        with (self.folder / FRAMES_NAME).open("a") as file:
            file.write(json.dumps(entry) + "\n")


def test_a_scan_is_read_while_it_grows_and_again(tmp_path: Path) -> None:
    phone = Phone(tmp_path / "scan")

    def scan() -> None:
        for index in range(5):
            phone.send(index, index / 10 + (5.0 if index > 2 else 0.0), segment=int(index > 2))
            time.sleep(0.03)
        phone.end()

    thread = threading.Thread(target=scan)
    with open_source(str(tmp_path / "scan")) as source:
        assert source.live and source.feedback is not None and source.frame_hint is None
        thread.start()
        first = [(frame.index, frame.timestamp, frame.segment, number_of(frame.rgb)) for frame in source]
        assert not source.live and [(s.index, s.timestamp) for s in source.segments] == [(3, 5.3)]
    thread.join()
    assert first == [(0, 0.0, 0, 0), (1, 0.1, 0, 1), (2, 0.2, 0, 2), (3, 5.3, 1, 3), (4, 5.4, 1, 4)]
    told = [json.loads(line) for line in (tmp_path / "scan" / FEEDBACK_NAME).read_text().splitlines()]
    assert told == [{"type": "taken", "frame": index} for index in range(5)]
    with open_source(str(tmp_path / "scan")) as source:
        assert not source.live and source.feedback is None and source.frame_hint == 5
        assert [(frame.index, frame.timestamp, frame.segment, number_of(frame.rgb)) for frame in source] == first


def test_a_stopped_run_waits_no_longer(tmp_path: Path) -> None:
    phone = Phone(tmp_path / "scan")
    phone.send(0, 0.0)
    with open_source(str(tmp_path / "scan")) as source:
        next(source)
        threading.Timer(0.05, source.interrupt).start()
        assert next(source, None) is None


def test_a_scan_goes_on_at_a_later_frame(tmp_path: Path) -> None:
    phone = Phone(tmp_path / "scan")
    for index in range(6):
        phone.send(index, index / 10, segment=int(index > 1))
    phone.end()
    with open_source(str(tmp_path / "scan")) as source:
        assert source.resume(2, 0.2, 3)
        assert [(frame.index, frame.segment) for frame in source] == [(3, 1), (4, 1), (5, 1)]


def test_pictures_of_other_sizes_are_skipped(tmp_path: Path) -> None:
    phone = Phone(tmp_path / "scan")
    phone.send(0, 0.0)
    phone.send(1, 0.1, size=(48, 64))
    (tmp_path / "scan" / "000002.jpg").write_bytes(b"damaged")
    phone.line({"index": 2, "time": 0.2, "segment": 0})
    phone.send(3, 0.3)
    phone.end()
    with open_source(str(tmp_path / "scan")) as source:
        assert [frame.index for frame in source] == [0, 3] and source.damaged == 2 and len(source.warnings) == 2


@pytest.mark.parametrize(
    "line",
    [
        *("{", "[]", '{"index": 5, "time": 0, "segment": 0}', '{"index": 0, "time": NaN, "segment": 0}'),
        '{"index": 0, "time": 0.2, "segment": 0}\n{"index": 1, "time": 0.1, "segment": 1}',
    ],
)
def test_damaged_lists_are_refused(tmp_path: Path, line: str) -> None:
    Phone(tmp_path / "scan")
    (tmp_path / "scan" / FRAMES_NAME).write_text(line + "\n")
    with pytest.raises(InputError, match="damaged"):
        open_source(str(tmp_path / "scan"))
