"""Videos that are still being uploaded: the frames of the complete file, waits for the rest, and ends."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.types import Frame
from stream_recon.app.sources.growing import can_begin, mark_of
from stream_recon.app.sources.source import Source, open_source
from stream_recon.configs.errors import InputError
from tests.app.sources.streamed_files import FRAMES, film, fragmented, index_first

MIN_BYTES = 20_000
"""As small as the films here."""


def video(folder: Path, kind: str) -> bytes:
    match kind:
        case "faststart":
            return index_first(film(folder / "a.mp4"))
        case "fragmented":
            return fragmented(film(folder / "a.mp4"))
        case _:
            return film(folder / f"a.{kind}")


def begun(path: Path, data: bytes, length: int) -> None:
    """The first ``length`` bytes of a video, with its mark."""
    path.write_bytes(data[:length])
    mark_of(path).write_text(json.dumps({"size": len(data)}))


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def same(one: list[Frame], other: list[Frame]) -> bool:
    return [(a.index, a.timestamp) for a in one] == [(b.index, b.timestamp) for b in other] and all(
        np.array_equal(a.rgb, b.rgb) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("kind", ["ts", "mkv", "faststart", "fragmented"])
def test_frames_come_before_the_rest_of_the_file_and_are_those_of_the_complete_one(tmp_path: Path, kind: str) -> None:
    data = video(tmp_path, kind)
    path = tmp_path / f"film.{'mp4' if kind.startswith('f') else kind}"
    half = len(data) // 2
    begun(path, data, half)
    assert can_begin(path, MIN_BYTES)
    with open_source(str(path)) as source:
        frames = [next(source) for _ in range(FRAMES // 6)]  # while half of the file is missing
        append(path, data[half:])
        mark_of(path).unlink()
        frames += list(source)
        assert not source.warnings and not source.damaged
    with open_source(str(path)) as source:
        complete = list(source)
    assert len(complete) == FRAMES and same(frames, complete)


def reading(source: Source) -> tuple[list[Frame], threading.Thread]:
    """A source's frames as they come, and the thread that reads them."""
    found: list[Frame] = []
    thread = threading.Thread(target=lambda: found.extend(source))
    thread.start()
    return found, thread


def test_a_frame_that_is_missing_is_waited_for(tmp_path: Path) -> None:
    data, path = video(tmp_path, "mkv"), tmp_path / "film.mkv"
    begun(path, data, len(data) // 2)
    with open_source(str(path)) as source:
        found, thread = reading(source)
        time.sleep(0.5)
        waiting = len(found)
        assert thread.is_alive() and 0 < waiting < FRAMES
        append(path, data[len(data) // 2 :])  # the mark stays: the size alone says that it is complete
        thread.join(10)
        assert not thread.is_alive() and len(found) == FRAMES


def test_a_wait_is_interrupted(tmp_path: Path) -> None:
    data, path = video(tmp_path, "ts"), tmp_path / "film.ts"
    begun(path, data, len(data) // 2)
    with open_source(str(path)) as source:
        found, thread = reading(source)
        time.sleep(0.3)
        source.interrupt()
        thread.join(10)
        assert not thread.is_alive() and 0 < len(found) < FRAMES and not source.warnings


def test_an_upload_that_is_given_up_ends_with_a_line(tmp_path: Path) -> None:
    data, path = video(tmp_path, "mkv"), tmp_path / "film.mkv"
    begun(path, data, len(data) // 2)
    with open_source(str(path)) as source:
        next(source)
        mark_of(path).unlink()
        with pytest.raises(InputError, match="was ended"):
            list(source)


def test_a_part_is_resumed_by_reading(tmp_path: Path) -> None:
    data, path = video(tmp_path, "faststart"), tmp_path / "film.mp4"
    begun(path, data, len(data) - 10)
    with open_source(str(path)) as source:
        frames = [next(source) for _ in range(6)]
    with open_source(str(path)) as source:
        assert source.resume(frames[3].index, frames[3].timestamp, 4)
        assert same([next(source), next(source)], frames[4:])


def test_what_can_begin_before_all_of_it_is_there(tmp_path: Path) -> None:
    late = film(tmp_path / "late.mp4")
    early = index_first(late)
    path = tmp_path / "part.mp4"
    for data, length, expected in (
        (late, 1000, False),
        (late, len(late), False),
        (early, 12, None),
        (early, 600, None),  # in the middle of the index
        (early, 30_000, True),
        (b"RIFF\0\0\0\0AVI LIST" + bytes(50_000), 50_000, False),
        (b"\x1aE\xdf\xa3" + bytes(5000), 5000, None),
        (b"\x1aE\xdf\xa3" + bytes(50_000), 50_000, True),
        (b"\xff\xd8\xff", 3, False),
        (b"\0\0\0\1moov" + b"\0" * 8 + bytes(50_000), 50_000, False),
        (b"", 0, False),
    ):
        path.write_bytes(data[:length])
        assert can_begin(path, MIN_BYTES) is expected, (data[:20], length)
    assert can_begin(tmp_path / "nothing") is False
