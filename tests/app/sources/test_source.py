import functools
import http.server
import itertools
import threading
import time
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import cv2
import numpy as np
import pytest

from stream_recon.app.sources.capture import open_capture
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.image_files import natural_key
from stream_recon.app.sources.live import LiveReader
from stream_recon.app.sources.readers import VideoReader
from stream_recon.app.sources.source import Source, open_source
from stream_recon.configs.errors import ConfigError, InputError
from tests.app.media import number_of, numbered_image, write_broken_avi, write_images, write_video


def indices(source: Source) -> list[int]:
    with source:
        return [frame.index for frame in source]


def test_video_frames_come_in_order_with_their_time(tmp_path: Path) -> None:
    source = open_source(str(write_video(tmp_path / "a.mp4", 30)))
    assert (source.frame_hint, source.live, source.name) == (30, False, "a.mp4")
    frames = list(source)
    assert [f.index for f in frames] == list(range(30))
    assert [number_of(f.rgb) for f in frames] == list(range(30))
    assert [f.timestamp for f in frames] == pytest.approx([i / 10 for i in range(30)])
    assert (source.damaged, source.dropped, source.warnings) == (0, 0, [])


def test_colours_are_rgb(tmp_path: Path) -> None:
    red = np.zeros((48, 64, 3), np.uint8)
    red[..., 2] = 255
    cv2.imwrite(str(tmp_path / "0.png"), red)
    (frame,) = open_source(str(tmp_path))
    assert frame.rgb[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"stride": 7}, [0, 7, 14, 21, 28]),
        ({"start": 1.0}, list(range(10, 30))),
        ({"end": 0.5}, [0, 1, 2, 3, 4]),
        ({"start": 1.0, "end": 2.0, "stride": 4}, [10, 14, 18]),
        ({"max_frames": 3, "stride": 2}, [0, 2, 4]),
        ({"fps": 5.0}, list(range(0, 30, 2))),
        ({"fps": 2.5, "start": 0.95}, [10, 14, 18, 22, 26]),
        ({"fps": 100.0}, list(range(30))),
        ({"fps": 10.0 / 3, "max_frames": 4}, [0, 3, 6, 9]),
    ],
)
def test_choice_of_frames(tmp_path: Path, options: dict[str, Any], expected: list[int]) -> None:
    source = open_source(str(write_video(tmp_path / "a.mp4", 30)), FrameChoice(**options))
    assert source.frame_hint == pytest.approx(len(expected), abs=1)
    frames = list(source)
    assert [f.index for f in frames] == expected
    assert [number_of(f.rgb) for f in frames] == expected


def test_resampling_keeps_the_frame_nearest_to_each_grid_point(tmp_path: Path) -> None:
    """30 frames/s to 7: every kept frame lies within half a frame of its point, and no point goes without."""
    frames = list(open_source(str(write_video(tmp_path / "a.mp4", 90, fps=30)), FrameChoice(fps=7.0)))
    times = np.array([f.timestamp for f in frames])
    assert len(times) == 21
    assert np.abs(times - np.arange(21) / 7).max() <= 0.5 / 30 + 1e-6


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"stride": 0}, "--stride"),
        ({"fps": 0.0}, "--fps"),
        ({"fps": float("nan")}, "--fps"),
        ({"start": -1.0}, "--start"),
        ({"start": 2.0, "end": 2.0}, "--end"),
        ({"max_frames": 0}, "--max-frames"),
        ({"stride": 2, "fps": 5.0}, "not both"),
    ],
)
def test_impossible_choices_are_refused(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        open_source(str(write_video(tmp_path / "a.mp4", 3)), FrameChoice(**options))


def test_a_range_beyond_the_end_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no frame between --start 60 s"):
        list(open_source(str(write_video(tmp_path / "a.mp4", 5)), FrameChoice(start=60)))


def test_natural_order() -> None:
    names = ["frame10.png", "frame2.png", "Frame1.png", "frame2b.png", "a.png", "10.png", "9.png", "009.png"]
    assert sorted(names, key=natural_key) == [
        "009.png", "9.png", "10.png", "a.png", "Frame1.png", "frame2.png", "frame2b.png", "frame10.png",
    ]  # fmt: skip


def test_folder_of_images(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "shots", ["1.png", "2.jpg", "10.PNG", "11.webp", "12.bmp", "13.tif"])
    (folder / "notes.txt").write_text("not an image")
    (folder / "._1.png").write_bytes(b"resource fork")
    source = open_source(str(folder))
    assert (source.name, source.frame_hint) == ("shots", 6)
    frames = list(source)
    assert [number_of(f.rgb) for f in frames] == list(range(6))
    assert [f.timestamp for f in frames] == pytest.approx([i / 30 for i in range(6)])
    assert source.warnings == []
    times = [f.timestamp for f in open_source(str(folder), FrameChoice(fps=2.0, stride=2))]
    assert times == pytest.approx([0, 1, 2])


def test_a_single_image_is_a_source(tmp_path: Path) -> None:
    write_images(tmp_path, ["one.jpg"])
    assert indices(open_source(str(tmp_path / "one.jpg"))) == [0]


@pytest.mark.parametrize(
    ("name", "picture", "expected"),
    [
        ("grey8.png", np.full((20, 30), 100, np.uint8), [100, 100, 100]),
        ("grey16.png", np.full((20, 30), 100 * 256 + 77, np.uint16), [100, 100, 100]),
        ("colour16.png", np.full((20, 30, 3), (1000, 30000, 65535), np.uint16), [255, 117, 3]),
        ("colour16.tif", np.full((20, 30, 3), (1000, 30000, 65535), np.uint16), [255, 117, 3]),
        ("alpha.png", np.full((20, 30, 4), (10, 20, 30, 128), np.uint8), [30, 20, 10]),
        ("alpha16.png", np.full((20, 30, 4), (2560, 5120, 7680, 9), np.uint16), [30, 20, 10]),
    ],
)
def test_bit_depths_and_channels(tmp_path: Path, name: str, picture: Any, expected: list[int]) -> None:
    assert cv2.imwrite(str(tmp_path / name), picture)
    (frame,) = open_source(str(tmp_path))
    assert frame.rgb.shape == (20, 30, 3) and frame.rgb.dtype == np.uint8
    assert frame.rgb[5, 5].tolist() == expected


def test_orientation_noted_by_the_camera_is_applied(tmp_path: Path) -> None:
    write_images(tmp_path, ["a.jpg"], (64, 48))
    data = (tmp_path / "a.jpg").read_bytes()
    # EXIF with one entry: orientation (0x0112), SHORT, 6 = turned by 90 degrees.
    tiff = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    exif = b"Exif\0\0" + tiff
    (tmp_path / "a.jpg").write_bytes(data[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + data[2:])
    (frame,) = open_source(str(tmp_path))
    assert frame.rgb.shape == (64, 48, 3)


def test_images_of_different_sizes_are_refused_by_name(tmp_path: Path) -> None:
    write_images(tmp_path, ["1.png", "2.png", "3.png"])
    cv2.imwrite(str(tmp_path / "3.png"), numbered_image(2, (32, 48)))
    with pytest.raises(InputError, match=r"2 images are 64x48, the largest group, and 1 are not, such as 3\.png"):
        open_source(str(tmp_path))


def test_unreadable_images_are_left_out_and_counted(tmp_path: Path) -> None:
    write_images(tmp_path, ["1.png", "2.png", "3.png"])
    (tmp_path / "2.png").write_bytes(b"nothing like a PNG")
    source = open_source(str(tmp_path))
    assert indices(source) == [0, 2]
    assert source.damaged == 1
    assert source.warnings == ["2.png is not a readable image and was skipped"]


def test_no_readable_image_at_all(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(b"")
    (tmp_path / "2.png").write_bytes(b"nothing")
    with pytest.raises(InputError, match="no frame of"):
        list(open_source(str(tmp_path)))


def test_bad_paths_get_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in ("rgb", "left/data"):
        write_images(tmp_path / "dataset" / folder, ["1.png"])
    (tmp_path / "text.txt").write_text("terminal art\n" * 500)
    (tmp_path / "bytes.mp4").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "zero.mp4").write_bytes(b"")
    with ZipFile(tmp_path / "walk.r3d", "w") as archive:
        write_images(tmp_path / "r3d", ["1.jpg", "2.jpg"])
        for name in ("1.jpg", "2.jpg"):
            archive.write(tmp_path / "r3d" / name, name)
    cut = write_video(tmp_path / "cut.mp4", 30)
    cut.write_bytes(cut.read_bytes()[:200])
    for name, message in {
        "missing.mp4": "no such file or folder",
        "empty": "no images in",
        "dataset": "in it rgb, left/data: give one",
        "text.txt": "not a video|text file",
        "bytes.mp4": "not a video",
        "zero.mp4": "empty file",
        "walk.r3d": r"archive \(ZIP\): unpack it",
        "cut.mp4": "not a video that can be read",
    }.items():
        with pytest.raises(InputError, match=message) as error:
            open_source(str(tmp_path / name))
        assert "\n" not in str(error.value) and name in str(error.value)


def test_a_video_that_breaks_off_keeps_what_was_decoded(tmp_path: Path) -> None:
    source = open_source(str(write_broken_avi(tmp_path / "b.avi", 30)))
    count = len(indices(source))
    assert 5 < count < 20
    assert source.damaged == 30 - count
    (warning,) = source.warnings
    assert "is cut off at" in warning and f"after frame {count - 1}" in warning


def test_a_chosen_end_is_no_damage(tmp_path: Path) -> None:
    source = open_source(str(write_broken_avi(tmp_path / "b.avi", 30)), FrameChoice(max_frames=3))
    assert indices(source) == [0, 1, 2]
    assert (source.damaged, source.warnings) == (0, [])


class FakeCapture:
    """A camera or a file without a frame count: ``frames`` images, one every ``interval`` seconds."""

    def __init__(self, frames: int, interval: float = 0.0, count: float = -1.9e14, stamps: bool = False) -> None:
        self.left, self.interval, self.count, self.stamps, self.released = frames, interval, count, stamps, False
        self.total = frames

    def get(self, key: int) -> float:
        if key == cv2.CAP_PROP_POS_MSEC and self.stamps:
            return (self.total - self.left - 1) * 50.0
        return {cv2.CAP_PROP_FRAME_COUNT: self.count, cv2.CAP_PROP_FPS: 20.0}.get(key, 0.0)

    def grab(self) -> bool:
        time.sleep(self.interval)
        self.left -= 1
        return self.left >= 0

    def retrieve(self) -> tuple[bool, Any]:
        return True, numbered_image((self.total - self.left - 1) % 31)

    def set(self, _key: int, _value: float) -> bool:
        return False

    def read(self) -> tuple[bool, Any]:
        ok = self.grab()
        return ok, self.retrieve()[1] if ok else None

    def release(self) -> None:
        self.released = True


SAMPLE = Path(__file__).parents[3] / "app" / "sample" / "walkthrough.mp4"


@pytest.mark.parametrize("stride", [1, 3])
def test_frames_after_a_skip_are_those_of_reading_through(tmp_path: Path, stride: int) -> None:
    for path in (SAMPLE, write_video(tmp_path / "a.mp4", 40), write_broken_avi(tmp_path / "b.avi")):
        for skipped in (0, 1, 7, 12):
            frames = []
            for read_through in (False, True):
                with open_source(str(path), FrameChoice(stride=stride, max_frames=2)) as source:
                    source.skip(skipped, read_through=read_through)
                    try:
                        frames.append(list(source))
                    except InputError:
                        frames.append([])
            assert [(f.index, f.timestamp) for f in frames[0]] == [(f.index, f.timestamp) for f in frames[1]]
            assert all(np.array_equal(a.rgb, b.rgb) for a, b in zip(*frames, strict=True))


def test_only_a_frame_that_is_surely_found_is_gone_to() -> None:
    def reader(path: Path | None = SAMPLE) -> VideoReader:
        return VideoReader(cv2.VideoCapture(str(SAMPLE)), "walkthrough.mp4", path)

    found = reader()
    assert found.seek(119) and found.grab() == (119, 119 / 20) and found.grab() is None
    assert found.damaged == 0
    lost = reader()
    assert not lost.seek(120) and lost.grab() == (0, 0.0)
    assert not reader(path=None).seek(5)


def test_nonsense_frame_counts_and_missing_timestamps_are_survived() -> None:
    source = Source(VideoReader(FakeCapture(8), "raw.h264"))
    assert source.frame_hint is None
    assert [f.timestamp for f in source] == pytest.approx([i / 20 for i in range(8)])
    assert source.damaged == 0


def test_a_count_too_high_for_the_length_is_no_damage() -> None:
    """As Matroska with a varying rate reports it: length times the highest rate."""

    class Slow(FakeCapture):
        def get(self, key: int) -> float:
            if key == cv2.CAP_PROP_POS_MSEC:
                return (self.total - self.left - 1) * 200.0
            return super().get(key)

    source = Source(VideoReader(Slow(10, count=37), "varying.mkv"))
    assert len(indices(source)) == 10
    assert source.damaged == 0


def test_a_live_source_keeps_the_newest_frame_and_counts_the_rest() -> None:
    source = Source(LiveReader(FakeCapture(30, 0.01), "camera 0"))
    assert source.live and source.frame_hint is None
    taken = [next(source).index]
    time.sleep(0.15)
    taken += [f.index for f in source]
    assert taken == sorted(set(taken)) and taken[-1] == 29
    assert taken[1] - taken[0] >= 5, "what came while nobody looked is dropped"
    assert source.dropped + len(taken) == 30
    assert "ended after" in source.warnings[0]


def test_a_live_source_strides_over_arrivals() -> None:
    frames = indices(Source(LiveReader(FakeCapture(40, 0.005), "camera 0"), FrameChoice(stride=8)))
    assert all(b - a >= 8 for a, b in itertools.pairwise(frames)) and 3 <= len(frames) <= 5


def test_closing_a_live_source_ends_it() -> None:
    capture = FakeCapture(10_000, 0.005)
    source = Source(LiveReader(capture, "camera 0"))
    next(source)
    source.close()
    assert list(source) == []
    deadline = time.monotonic() + 2
    while not capture.released and time.monotonic() < deadline:
        time.sleep(0.01)
    assert capture.released


def test_a_live_source_without_frames_is_refused() -> None:
    with pytest.raises(InputError, match="sends no frame"):
        LiveReader(FakeCapture(0), "camera 0")


@pytest.mark.parametrize("spec", ["rtsp://127.0.0.1:9/a", "http://127.0.0.1:9/a.mp4"])
def test_an_address_that_does_not_answer(spec: str) -> None:
    with pytest.raises(InputError, match="nothing answers at"):
        open_source(spec)


def test_a_video_behind_a_web_address_is_read_like_a_file(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", 12)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = open_source(f"http://127.0.0.1:{server.server_port}/a.mp4")
        assert not source.live
        assert indices(source) == list(range(12))
        server.shutdown()


def test_passwords_are_kept_out_of_messages() -> None:
    with pytest.raises(InputError) as error:
        open_source("rtsp://user:secret@127.0.0.1:9/live")
    assert "secret" not in str(error.value) and "rtsp://127.0.0.1:9/live" in str(error.value)


def test_digits_are_a_camera_unless_a_path_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="camera 97 cannot be opened"):
        open_source("97")
    write_images(tmp_path / "97", ["1.png"])
    assert indices(open_source("97")) == [0]


def test_portrait_video_keeps_its_shape(tmp_path: Path) -> None:
    write_video(tmp_path / "p.mp4", 2, size=(36, 64))
    assert [f.rgb.shape for f in open_source(str(tmp_path / "p.mp4"))] == [(64, 36, 3)] * 2


def test_opening_reports_no_capture_as_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        open_capture(tmp_path / "none.mp4", "none.mp4")
