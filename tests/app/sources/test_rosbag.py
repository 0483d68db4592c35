"""Recordings of ROS: all forms of images, the camera that they say, and files that are none."""

import random
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("rosbags")

from stream_recon.app.sources.calibration import Calibration, parse_camera
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.rosbag import _COLOURS, RecordingReader, decoded
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import ConfigError, InputError, StreamReconError
from tests.app.program import exit_code
from tests.app.sources.bags import Bag

WIDTH, HEIGHT = 64, 48


def picture(number: int) -> NDArray[np.uint8]:
    """Smooth, so that every form gives it back nearly."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([3 * x + 5 * number, 4 * y + 10, 200 - 2 * x - y], axis=-1).astype(np.uint8)


def write(path: Path, count: int = 6, *, mcap: bool = False) -> Path:
    with Bag(path, mcap=mcap) as bag:
        bag.camera("/cam/camera_info", (WIDTH, HEIGHT), [70, 0, 31.5, 0, 70, 23.5, 0, 0, 1], [-0.1, 0.01, 0, 0, 0])
        for number in range(count):
            bag.jpeg("/cam/image_raw/compressed", number, picture(number))
            bag.raw("/cam/image_raw", number, picture(number)[..., ::-1], "bgr8", pad=5)
    return path


@pytest.mark.parametrize(("name", "mcap"), [("walk.bag", False), ("walk", False), ("walk", True)])
def test_frames_times_and_camera_are_read(tmp_path: Path, name: str, mcap: bool) -> None:
    path = write(tmp_path / name, mcap=mcap)
    paths = [path, *path.glob("*.mcap"), *path.glob("*.db3")] if path.is_dir() else [path]
    assert len(paths) == 1 + path.is_dir()
    for each in paths:
        with open_source(str(each)) as source:
            assert source.frame_hint == 6 and source.camera is not None
            camera = parse_camera(source.camera)
            frames = list(source)
        assert [frame.index for frame in frames] == list(range(6))
        assert [frame.timestamp for frame in frames] == pytest.approx([0.05 * n for n in range(6)], abs=1e-6)
        assert (camera.fx, camera.cx, camera.size) == (70, 32, (WIDTH, HEIGHT))
        assert camera.coefficients[:2] == (-0.1, 0.01)
        middle = frames[3].rgb[18:30, 24:40].astype(int)
        assert np.abs(middle - picture(3)[18:30, 24:40]).mean() < 6  # undistorted, which moves little there
    with open_source(str(path), FrameChoice(camera=parse_camera("70,70,31.5,23.5").text(), stride=2)) as source:
        frames = list(source)
        assert [frame.index for frame in frames] == [0, 2, 4] and np.array_equal(frames[1].rgb, picture(2))


@pytest.mark.parametrize("encoding", [*_COLOURS, "mono8", "mono16", "mono16 big"])
def test_all_usual_encodings_give_their_colours(tmp_path: Path, encoding: str) -> None:
    rgb = picture(2)
    grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    big, name = encoding.endswith("big"), encoding.split()[0]
    want = rgb.astype(int)
    if name in ("mono8", "mono16"):
        image = grey if name == "mono8" else (grey.astype(np.uint16) * 256).astype(">u2" if big else "<u2")
        want = np.repeat(grey[..., None], 3, axis=2).astype(int)
    elif name.startswith("bayer"):
        image = np.zeros((HEIGHT, WIDTH), np.uint8)
        for place, letter in enumerate(name[6:10]):
            y, x = divmod(place, 2)
            image[y::2, x::2] = rgb[y::2, x::2, "rgb".index(letter)]
    elif name in ("yuv422", "uyvy", "yuv422_yuy2", "yuyv"):
        yuv = cv2.cvtColor(rgb, cv2.COLOR_RGB2YUV)
        image = np.zeros((HEIGHT, WIDTH, 2), np.uint8)
        luma, colour = (1, 0) if name in ("yuv422", "uyvy") else (0, 1)
        image[..., luma] = yuv[..., 0]
        image[:, ::2, colour], image[:, 1::2, colour] = yuv[:, ::2, 1], yuv[:, ::2, 2]
    else:
        order = [0, 1, 2] if name.startswith("rgb") else [2, 1, 0]
        image = rgb[..., order]
        if _COLOURS[name][0] == 4:
            image = np.dstack([image, np.zeros_like(grey)])
    with Bag(tmp_path / "one") as bag:
        bag.raw("/image", 0, image, name, pad=3, big=big)
    with open_source(str(tmp_path / "one")) as source:
        (frame,) = source
    tolerance = 22 if "yuv" in name or "yuy" in name or "uyvy" in name else 4
    assert np.abs(frame.rgb[2:-2, 2:-2].astype(int) - want[2:-2, 2:-2]).mean() < tolerance


def test_several_topics_have_to_be_chosen_from(tmp_path: Path) -> None:
    with Bag(tmp_path / "rig") as bag:
        for number in range(3):
            bag.raw("/left/image", number, picture(number), "rgb8")
            bag.raw("/right/image", number, picture(number + 20), "rgb8")
            bag.raw("/depth/image", number, np.ones((HEIGHT, WIDTH), np.uint16), "16UC1")
    with pytest.raises(ConfigError, match=r"--topic: /left/image \(3\), /right/image \(3\)"):
        open_source(str(tmp_path / "rig"))
    with open_source(str(tmp_path / "rig"), FrameChoice(topic="/right/image")) as source:
        assert np.array_equal(next(iter(source)).rgb, picture(20))
    with pytest.raises(ConfigError, match="--topic /up"):
        open_source(str(tmp_path / "rig"), FrameChoice(topic="/up"))
    with open_source(str(tmp_path / "rig"), FrameChoice(topic="/depth/image")) as source:
        assert len(list(source)) == 3


def test_what_a_camera_says_of_itself_may_be_nothing(tmp_path: Path) -> None:
    with Bag(tmp_path / "none") as bag:
        bag.camera("/camera_info", (WIDTH, HEIGHT), [0.0] * 9, [])
        bag.raw("/image", 0, picture(0), "rgb8")
    with open_source(str(tmp_path / "none")) as source:
        assert source.camera is None
    with Bag(tmp_path / "fish") as bag:
        bag.camera("/camera_info", (WIDTH, HEIGHT), [40, 0, 31.5, 0, 40, 23.5, 0, 0, 1], [0.1, 0, 0, 0], "equidistant")
        bag.raw("/image", 0, picture(0), "rgb8")
    with open_source(str(tmp_path / "fish")) as source:
        assert source.camera is not None and parse_camera(source.camera).distortion == "fisheye"


def test_damaged_messages_are_left_out_and_clocks_set_back_do_not_matter(tmp_path: Path) -> None:
    with Bag(tmp_path / "bad") as bag:
        for number in (0, 1, 2, 9, 4, 5):
            if number == 2:
                bag.compressed("/image/compressed", number, np.zeros(50, np.uint8))
            else:
                bag.jpeg("/image/compressed", number, picture(number))
    with open_source(str(tmp_path / "bad")) as source:
        frames = list(source)
        assert source.damaged == 1 and "skipped" in source.warnings[0]
    times = [frame.timestamp for frame in frames]
    assert len(frames) == 5 and times == sorted(set(times))


@pytest.mark.slow
def test_junk_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = write(tmp_path / "whole.bag", 3).read_bytes()
    mcap = next(write(tmp_path / "mcap", 3, mcap=True).glob("*.mcap")).read_bytes()
    draw = random.Random(4)
    for number in range(60):
        data = bytearray(whole if number % 2 else mcap)
        if number % 3:
            data = data[: draw.randrange(len(data))]
        for _ in range(draw.randrange(1, 30)):
            if data:
                data[draw.randrange(len(data))] = draw.randrange(256)
        path = tmp_path / ("junk.bag" if number % 2 else "junk.mcap")
        path.write_bytes(data)
        try:
            with open_source(str(path)) as source:
                list(source)
        except StreamReconError as error:
            assert "\n" not in str(error).strip()
    for name, data in (("in.bag", whole), ("in.mcap", mcap)):
        # Damage within: what comes before it opens.
        for at in range(0, len(data), len(data) // 60):
            (tmp_path / name).write_bytes(data[:at] + b"\xff\xfe\xfd\xfc" + data[at + 4 :])
            with suppress(StreamReconError), open_source(str(tmp_path / name)) as source:
                list(source)
    path = tmp_path / "junk.bag"
    path.write_bytes(b"junk")
    assert exit_code(monkeypatch, str(path), "--no-viewer", "-o", str(tmp_path / "out")) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    with Bag(tmp_path / "empty") as bag:
        bag.camera("/camera_info", (WIDTH, HEIGHT), [1.0] * 9, [])
    with pytest.raises(InputError, match="no image topic"):
        open_source(str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="not a ROS recording"):
        open_source(str(Path(__file__).parents[3] / "app/sample/walkthrough.mp4"), FrameChoice(topic="/a"))


def test_without_the_library_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    path = write(tmp_path / "walk.bag", 2)
    monkeypatch.setitem(sys.modules, "rosbags", None)
    with pytest.raises(StreamReconError, match="pip install rosbags"):
        RecordingReader(path)


def test_a_png_that_says_it_is_longer_than_it_is_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCV would ask for 4 GB before it looks."""
    whole = cv2.imencode(".png", np.full((4, 5, 3), 7, np.uint8))[1].tobytes()
    found = decoded(SimpleNamespace(data=whole))
    assert found is not None and (found == 7).all()
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("it was unpacked"))
    first = whole.index(b"IDAT") - 4
    assert decoded(SimpleNamespace(data=whole[:first] + b"\xff\xff\xff\xf0" + whole[first + 4 :])) is None


K = [300.0, 0, 31.5, 0, 300, 23.5, 0, 0, 1]
P = [285.0, 0, 33.5, 0, 0, 285.0, 22.5, 0, 0, 0, 1, 0]


def camera_of(path: Path) -> Calibration:
    with open_source(str(path)) as source:
        assert source.camera is not None
        return parse_camera(source.camera)


@pytest.mark.parametrize("name", ["image_rect_color", "image_rect", "image_rect/compressed"])
def test_rectified_images_have_the_projection_matrix_and_no_distortion(tmp_path: Path, name: str) -> None:
    with Bag(tmp_path / "bag") as bag:
        bag.camera("/cam/camera_info", (64, 48), K, [-0.3, 0.1, 0, 0, 0], p=P)
        if name.endswith("compressed"):
            bag.jpeg(f"/cam/{name}", 0, np.zeros((48, 64, 3), np.uint8))
        else:
            bag.raw(f"/cam/{name}", 0, np.zeros((48, 64, 3), np.uint8), "rgb8")
    assert camera_of(tmp_path / "bag") == Calibration(285, 285, 34, 23, size=(64, 48))


def test_raw_images_keep_their_distortion(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        bag.camera("/cam/camera_info", (64, 48), K, [1.0, 2, 0, 0, 3, 4, 5, 6], "rational_polynomial", p=P)
        bag.raw("/cam/image_raw", 0, np.zeros((48, 64, 3), np.uint8), "rgb8")
    assert camera_of(tmp_path / "bag").coefficients == (1, 2, 0, 0, 3, 4, 5, 6)


def test_binning_and_region_are_those_of_the_images(tmp_path: Path) -> None:
    k = [300.0, 0, 99.5, 0, 300, 79.5, 0, 0, 1]
    with Bag(tmp_path / "bag") as bag:
        bag.camera("/cam/camera_info", (200, 160), k, [], binning=2, roi=(40, 32, 128, 96))
        bag.raw("/cam/image_raw", 0, np.zeros((48, 64, 3), np.uint8), "rgb8")
    assert camera_of(tmp_path / "bag") == Calibration(150, 150, 30, 24, size=(64, 48))


@pytest.mark.parametrize(("model", "d"), [("fov", [0.9]), ("plumb_bob", [0.1, 0.2, 0, 0, 0, 7])])
def test_a_camera_that_cannot_be_applied_is_told(tmp_path: Path, model: str, d: list[float]) -> None:
    with Bag(tmp_path / "bag") as bag:
        bag.camera("/cam/camera_info", (64, 48), K, d, model)
        bag.raw("/cam/image_raw", 0, np.zeros((48, 64, 3), np.uint8), "rgb8")
    with open_source(str(tmp_path / "bag")) as source:
        assert source.camera is None
        assert any("camera_info" in line and ("fov" in line or "6 coefficients" in line) for line in source.warnings)


def test_without_stamps_the_times_of_recording_are_used(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag", stamped=False) as bag:
        for number in range(4):
            bag.raw("/cam/image_raw", number, np.full((48, 64), 9, np.uint8), "mono8")
    with open_source(str(tmp_path / "bag")) as source:
        assert [frame.timestamp for frame in source] == pytest.approx([0, 0.05, 0.1, 0.15], abs=1e-5)
        assert any("all stamps" in line for line in source.warnings)


def test_half_resolution_colours_are_decoded(tmp_path: Path) -> None:
    rgb = np.full((48, 64, 3), (200, 60, 40), np.uint8)
    yuv = cv2.cvtColor(rgb, cv2.COLOR_RGB2YUV_I420).reshape(-1)
    y, u, v = yuv[: 48 * 64], yuv[48 * 64 : 48 * 80], yuv[48 * 80 :]
    planes = {"nv12": np.stack([u, v], axis=1), "nv21": np.stack([v, u], axis=1)}
    for encoding, colours in planes.items():
        with Bag(tmp_path / encoding) as bag:
            data = np.concatenate([y, colours.reshape(-1)]).reshape(72, 64)
            message = bag.store.types["sensor_msgs/msg/Image"](bag.header(0), 48, 64, encoding, 0, 64, data.ravel())
            bag.write("/cam/image_raw", "sensor_msgs/msg/Image", 0, message)
        with open_source(str(tmp_path / encoding)) as source:
            assert np.abs(next(iter(source)).rgb.astype(int) - rgb).max() < 6


def test_an_encoding_that_is_not_known_is_named(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        bag.raw("/cam/image_raw", 0, np.zeros((48, 64), np.float32), "32FC1")
    with pytest.raises(InputError, match="32FC1"):
        open_source(str(tmp_path / "bag"))


@pytest.mark.parametrize("name", ["a.bag", "a.mcap", "a.db3"])
def test_a_sparse_file_is_no_recording_and_costs_no_time(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(50 << 30)
    with pytest.raises(InputError, match="does not begin like one"):
        open_source(str(tmp_path / name))


def test_images_of_12_bits_have_their_brightness(tmp_path: Path) -> None:
    picture = np.tile(np.linspace(0, 250, WIDTH, dtype=np.uint16), (HEIGHT, 1))
    with Bag(tmp_path / "a.bag") as bag:
        for number in range(3):
            bag.raw("/cam/image_raw", number, (picture << 4) + np.arange(WIDTH, dtype=np.uint16) % 4, "mono16")
    with open_source(str(tmp_path / "a.bag")) as source:
        frames = list(source)
        assert any("use 12" in line for line in source.warnings)
    assert np.abs(frames[0].rgb[..., 0].astype(int) - picture).max() <= 1
