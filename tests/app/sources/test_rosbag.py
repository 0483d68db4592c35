"""Recordings of ROS: all forms of images, the camera that they say, and files that are none."""

import base64
import json
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

pytest.importorskip("rosbags")

from stream_recon.app.sources.calibration import Calibration, parse_camera
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.ros_images import ENCODINGS, decoded
from stream_recon.app.sources.rosbag import RecordingReader
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import ConfigError, InputError, StreamReconError
from tests.app.program import exit_code
from tests.app.sources.bags import Bag
from tests.mutations import of_scalars, of_tree, silently_other

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


def stored(rgb: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    """An image in an encoding of ROS with 8 bits a channel, or whose high bytes are those."""
    kind = name.replace("16", "8")
    if kind in ("mono8", "8UC1"):
        return np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY), np.uint8)
    if kind.startswith("bayer"):
        image = np.zeros((HEIGHT, WIDTH), np.uint8)
        for place, letter in enumerate(kind[6:10]):
            y, x = divmod(place, 2)
            image[y::2, x::2] = rgb[y::2, x::2, "rgb".index(letter)]
        return image
    if kind in ("yuv422", "uyvy", "yuv422_yuy2", "yuyv"):
        yuv = cv2.cvtColor(rgb, cv2.COLOR_RGB2YUV)
        image = np.zeros((HEIGHT, WIDTH, 2), np.uint8)
        luma, colour = (1, 0) if kind in ("yuv422", "uyvy") else (0, 1)
        image[..., luma] = yuv[..., 0]
        image[:, ::2, colour], image[:, 1::2, colour] = yuv[:, ::2, 1], yuv[:, ::2, 2]
        return image
    image = rgb if kind.startswith("rgb") else rgb[..., ::-1]
    return np.dstack([image, np.zeros((HEIGHT, WIDTH), np.uint8)]) if ENCODINGS[name][0] == 4 else image


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("name", [name for name in ENCODINGS if not name.startswith("nv")])
def test_all_usual_encodings_give_their_colours(tmp_path: Path, name: str, big: bool) -> None:
    rgb, is_deep = picture(2), ENCODINGS[name][1] == 16
    if big and not is_deep:
        return
    image = stored(rgb, name)
    want = np.repeat(image[..., None], 3, axis=2) if name.endswith(("UC1", "mono8", "mono16")) else rgb
    with Bag(tmp_path / "one") as bag:
        deep = (image.astype(np.uint16) * 256).astype(">u2" if big else "<u2") if is_deep else image
        bag.raw("/image", 0, deep, name, pad=4, big=big)
    with open_source(str(tmp_path / "one")) as source:
        (frame,) = source
    tolerance = 22 if name in ("yuv422", "uyvy", "yuv422_yuy2", "yuyv") else 4
    assert np.abs(frame.rgb[2:-2, 2:-2].astype(int) - want[2:-2, 2:-2]).mean() < tolerance


@pytest.mark.parametrize(
    ("form", "suffix", "exchanged"),
    [
        ("jpeg", ".jpg", False),
        ("", ".png", False),
        ("png", ".png", False),
        ("image/webp", ".webp", False),
        ("bgr8; jpeg compressed bgr8", ".jpg", False),
        ("rgb8; jpeg compressed bgr8", ".jpg", False),
        ("rgb8; jpeg compressed rgb8", ".jpg", True),
        ("rgb8; png compressed bgr8", ".png", False),
    ],
)
def test_compressed_images_have_the_colours_of_their_format(
    tmp_path: Path, form: str, suffix: str, exchanged: bool
) -> None:
    data = cv2.imencode(suffix, picture(2) if exchanged else picture(2)[..., ::-1])[1].ravel()
    with Bag(tmp_path / "one") as bag:
        bag.compressed("/image/compressed", 0, data, form)
    with open_source(str(tmp_path / "one")) as source:
        assert np.abs(next(iter(source)).rgb.astype(int) - picture(2)).mean() < 6


@pytest.mark.parametrize("name", ["bayer_rggb8", "bayer_grbg16", "mono8", "mono16", "rgb16"])
def test_compressed_mosaics_and_deep_images_are_what_the_raw_ones_are(tmp_path: Path, name: str) -> None:
    image = stored(picture(1), name)
    image = image.astype(np.uint16) * 256 if ENCODINGS[name][1] == 16 else image
    with Bag(tmp_path / "raw") as bag:
        bag.raw("/image", 0, image, name)
    with Bag(tmp_path / "packed") as bag:
        # In image_transport colours are compressed in the order of OpenCV.
        is_colour = image.ndim == 3
        packed = cv2.imencode(".png", image[..., ::-1] if is_colour else image)[1].ravel()
        bag.compressed("/image/compressed", 0, packed, f"{name}; png compressed {'bgr16' if is_colour else ''}")
    frames = []
    for folder in ("raw", "packed"):
        with open_source(str(tmp_path / folder)) as source:
            frames.append(next(iter(source)).rgb)
    assert np.array_equal(*frames)


def test_an_exif_turn_of_a_message_is_told(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture(2)).save(tmp_path / "a.jpg", exif=exif)
    with Bag(tmp_path / "one") as bag:
        for number in range(2):
            bag.compressed("/image/compressed", number, np.fromfile(tmp_path / "a.jpg", np.uint8))
    with open_source(str(tmp_path / "one")) as source:
        assert [frame.rgb.shape[:2] for frame in source] == [(HEIGHT, WIDTH)] * 2
        assert [line for line in source.warnings if "EXIF" in line] == [
            "/image/compressed: its images have the EXIF orientation 6, which is not applied, as in ROS"
        ]


def test_compressed_depth_is_read_as_raw_depth_is(tmp_path: Path) -> None:
    depth = np.tile(np.arange(WIDTH, dtype=np.uint16) * 900, (HEIGHT, 1))
    data = np.frombuffer(bytes(12) + cv2.imencode(".png", depth)[1].tobytes(), np.uint8)
    with Bag(tmp_path / "one") as bag:
        bag.compressed("/image/compressedDepth", 0, data, "16UC1; compressedDepth png")
    with open_source(str(tmp_path / "one"), FrameChoice(topic="/image/compressedDepth")) as source:
        assert np.array_equal(next(iter(source)).rgb[..., 0], depth >> 8)


@pytest.mark.parametrize(
    "form", ["h264", "hevc", "ffmpeg", "jxl", "32FC1; compressedDepth png", "16UC1; compressedDepth rvl", "theora"]
)
def test_formats_that_are_not_read_are_named(tmp_path: Path, form: str) -> None:
    with Bag(tmp_path / "one") as bag:
        bag.compressed("/image/compressed", 0, np.zeros(99, np.uint8), form)
    with pytest.raises(InputError, match=f"format '{form}'.*convert"):
        open_source(str(tmp_path / "one"))


def foxglove_mcap(path: Path, kind: str) -> Path:
    messages, foxglove = pytest.importorskip("foxglove.messages"), pytest.importorskip("foxglove")
    channels = pytest.importorskip("foxglove.channels")
    with foxglove.open_mcap(str(path), context=(context := foxglove.Context())):
        images = getattr(channels, f"{kind}Channel")("/cam/image", context=context)
        info = channels.CameraCalibrationChannel("/cam/camera_info", context=context)
        for number in range(4):
            stamp = messages.Timestamp(sec=1_700_000_000 + number, nsec=250)
            common = {"timestamp": stamp, "frame_id": "camera"}
            if kind == "RawImage":
                rows = picture(number).tobytes()
                size = {"width": WIDTH, "height": HEIGHT, "step": 3 * WIDTH}
                images.log(messages.RawImage(**common, **size, encoding="rgb8", data=rows), log_time=10**9 * number)
            else:
                data = cv2.imencode(".png", picture(number)[..., ::-1])[1].tobytes()
                form = "png" if kind == "CompressedImage" else "h264"
                message = getattr(messages, kind)(**common, data=data, format=form)
                images.log(message, log_time=10**9 * number)
        k = [70.0, 0, 31.5, 0, 70, 23.5, 0, 0, 1]
        info.log(
            messages.CameraCalibration(
                width=WIDTH, height=HEIGHT, distortion_model="plumb_bob", D=[0.0] * 5, K=k, R=[1.0] * 9, P=[1.0] * 12
            )
        )
    return path


@pytest.mark.parametrize("kind", ["CompressedImage", "RawImage"])
def test_images_of_foxglove_are_read(tmp_path: Path, kind: str) -> None:
    with open_source(str(foxglove_mcap(tmp_path / "a.mcap", kind))) as source:
        frames = list(source)
        assert source.intrinsics is not None and source.intrinsics.fx == pytest.approx(70)
    assert [frame.timestamp for frame in frames] == pytest.approx([0, 1, 2, 3])
    assert all(np.array_equal(frame.rgb, picture(number)) for number, frame in enumerate(frames))


def test_video_of_foxglove_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"/cam/image of a\.mcap is a video stream"):
        open_source(str(foxglove_mcap(tmp_path / "a.mcap", "CompressedVideo")))


@pytest.mark.parametrize("form", ["json", "ros1"])
def test_mcap_files_are_read_by_their_schemas(tmp_path: Path, form: str) -> None:
    writing = pytest.importorskip("mcap.writer")
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC)
    with (tmp_path / "a.mcap").open("wb") as file:
        writer = writing.Writer(file)
        writer.start(profile="ros1" if form == "ros1" else "")
        if form == "json":
            schema = writer.register_schema("foxglove.CompressedImage", "jsonschema", b"{}")
        else:
            text = store.generate_msgdef("sensor_msgs/msg/CompressedImage")[0]
            schema = writer.register_schema("sensor_msgs/CompressedImage", "ros1msg", text.encode())
        channel = writer.register_channel("/image", form, schema)
        for number in range(3):
            data = cv2.imencode(".png", picture(number)[..., ::-1])[1].ravel()
            if form == "json":
                stamp = {"sec": 5 + number, "nsec": 0}
                fields = {"timestamp": stamp, "format": "png", "data": base64.b64encode(data.tobytes()).decode()}
                packed = json.dumps(fields).encode()
            else:
                types = store.types
                time = types["builtin_interfaces/msg/Time"](5 + number, 0)
                header = types["std_msgs/msg/Header"](number, time, "")
                message = types["sensor_msgs/msg/CompressedImage"](header, "png", data)
                packed = bytes(store.serialize_ros1(message, "sensor_msgs/msg/CompressedImage"))
            writer.add_message(channel, (5 + number) * 10**9, packed, (5 + number) * 10**9)
        writer.finish()
    with open_source(str(tmp_path / "a.mcap")) as source:
        frames = list(source)
    assert [frame.timestamp for frame in frames] == pytest.approx([0, 1, 2])
    assert all(np.array_equal(frame.rgb, picture(number)) for number, frame in enumerate(frames))


@pytest.mark.parametrize("wrong", [{5: 3600.0}, {0: -500.0}, {3: 90.0, 11: -90.0, 12: 4e8}])
@pytest.mark.parametrize("pause", [0.0, 60.0])
def test_stamps_that_contradict_the_recording_are_replaced_and_told(
    tmp_path: Path, wrong: dict[int, float], pause: float
) -> None:
    late = {number: pause for number in range(8, 20)}
    with Bag(tmp_path / "a", late_s=late, wrong_s=wrong) as bag:
        for number in range(20):
            bag.raw("/image", number, np.full((48, 64), 9, np.uint8), "mono8")
    with open_source(str(tmp_path / "a")) as source:
        times = [frame.timestamp for frame in source]
        told = [line for line in source.warnings if "replaced" in line]
    expected = [0.05 * number + late.get(number, 0.0) for number in range(20)]
    assert times == pytest.approx(expected, abs=0.02) and times[0] >= 0
    assert len(told) == 1 + (len(wrong) > 1) and f"frame {min(wrong)} of /image" in told[0]
    if len(wrong) > 1:
        assert told[1].startswith(f"{len(wrong)} stamps")


def test_several_topics_have_to_be_chosen_from(tmp_path: Path) -> None:
    with Bag(tmp_path / "rig") as bag:
        for number in range(3):
            bag.raw("/left/image", number, picture(number), "rgb8")
            bag.raw("/right/image", number, picture(number + 20), "rgb8")
            bag.raw("/depth/image", number, np.ones((HEIGHT, WIDTH), np.uint16), "16UC1")
    with pytest.raises(ConfigError, match=r"--topic, or --rig tf: /left/image \(3\), /right/image \(3\)"):
        open_source(str(tmp_path / "rig"))
    with open_source(str(tmp_path / "rig"), FrameChoice(topic="/right/image")) as source:
        assert np.array_equal(next(iter(source)).rgb, picture(20))
    with pytest.raises(ConfigError, match="rig has no image topic /up"):
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


@pytest.mark.parametrize("name", ["image_rect_color", "image_rect", "image_undistorted", "image_rect/compressed"])
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


@pytest.mark.parametrize("mcap", [False, True])
@pytest.mark.parametrize(
    ("size", "focal", "is_told"), [((64, 48), 300, False), ((64, 48), 450, True), ((32, 24), 300, True)]
)
def test_a_camera_info_that_changes_is_told_with_its_time(
    tmp_path: Path, mcap: bool, size: tuple[int, int], focal: int, is_told: bool
) -> None:
    with Bag(tmp_path / "bag", mcap=mcap, late_s={0: -0.01}) as bag:
        bag.camera("/cam/camera_info", (64, 48), K, [])
        for number in range(1, 9):
            bag.raw("/cam/image_raw", number, np.zeros((48, 64, 3), np.uint8), "rgb8")
            if number % 4 == 0:
                bag.camera("/cam/camera_info", size, [focal, *K[1:4], focal, *K[5:]], [], number=number)
    with open_source(str(tmp_path / "bag")) as source:
        assert len(list(source)) == 8 and source.camera is not None
        told = [line for line in source.warnings if "changes" in line]
    said = "the camera_info of /cam/image_raw changes after 0.15 s (frame 3): its first camera is used"
    assert told == [said] * is_told


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


@pytest.mark.parametrize(("encoding", "needs"), [("mono8", 64), ("rgba16", 512)])
def test_rows_that_do_not_fit_the_encoding_are_named(tmp_path: Path, encoding: str, needs: int) -> None:
    with Bag(tmp_path / "bag") as bag:
        bag.raw("/cam/image_raw", 0, picture(0), encoding)
    with pytest.raises(InputError, match=rf"step\) of 192 bytes, and {encoding} needs {needs}"):
        open_source(str(tmp_path / "bag"))


def test_images_of_12_bits_have_their_brightness(tmp_path: Path) -> None:
    picture = np.tile(np.linspace(0, 250, WIDTH, dtype=np.uint16), (HEIGHT, 1))
    with Bag(tmp_path / "a.bag") as bag:
        for number in range(3):
            bag.raw("/cam/image_raw", number, (picture << 4) + np.arange(WIDTH, dtype=np.uint16) % 4, "mono16")
    with open_source(str(tmp_path / "a.bag")) as source:
        frames = list(source)
        assert any("use 12" in line for line in source.warnings)
    assert np.abs(frames[0].rgb[..., 0].astype(int) - picture).max() <= 1


FOXGLOVE: dict[str, dict[str, Any]] = {
    "CompressedImage": {"timestamp": {"sec": 5, "nsec": 250}, "frame_id": "c", "format": "png"},
    "RawImage": {
        "timestamp": {"sec": 5, "nsec": 250},
        "frame_id": "c",
        **{"width": WIDTH, "height": HEIGHT, "encoding": "rgb8", "step": 3 * WIDTH},
    },
    "CameraCalibration": {
        **{"width": WIDTH, "height": HEIGHT, "distortion_model": "plumb_bob", "D": [0.01, 0.0, 0.0, 0.0, 0.0]},
        **{"K": [70.0, 0, 31.5, 0, 70, 23.5, 0, 0, 1], "R": [1.0] * 9, "P": [1.0] * 12},
    },
}


def read_json_messages(path: Path, messages: dict[str, dict[str, Any]]) -> tuple[object, list[str]]:
    """Images and camera of an MCAP file of Foxglove's messages in JSON."""
    writing = pytest.importorskip("mcap.writer")
    with path.open("wb") as file:
        writer = writing.Writer(file)
        writer.start(profile="")
        for name, fields in messages.items():
            schema = writer.register_schema(f"foxglove.{name}", "jsonschema", b"{}")
            topic = "/camera_info" if name == "CameraCalibration" else "/image"
            channel = writer.register_channel(topic, "json", schema)
            for number in range(2):
                seconds = 10**9 * (5 + number)
                stamp = fields.get("timestamp")
                later = (
                    {"timestamp": {**stamp, "sec": 5 + number}} if isinstance(stamp, dict) and "sec" in stamp else {}
                )
                writer.add_message(channel, seconds, json.dumps({**fields, **later}).encode(), seconds)
        writer.finish()
    with open_source(str(path)) as source:
        frames = [(round(frame.timestamp, 6), int(frame.rgb.sum())) for frame in source]
        return (frames, source.damaged, str(source.intrinsics)), source.warnings


@pytest.mark.parametrize("kind", ["CompressedImage", "RawImage"])
def test_no_change_of_a_message_of_foxglove_is_silent(tmp_path: Path, kind: str) -> None:
    pixels = picture(1).tobytes() if kind == "RawImage" else cv2.imencode(".png", picture(1)[..., ::-1])[1].tobytes()
    image = {**FOXGLOVE[kind], "data": base64.b64encode(pixels).decode()}
    whole = {kind: image, "CameraCalibration": FOXGLOVE["CameraCalibration"]}
    expected, said = read_json_messages(tmp_path / "a.mcap", whole)
    assert not said
    for name, fields in whole.items():
        mutants = (*of_tree(fields), *of_scalars(fields, ("abc", None)))
        # What an image lacks is told with its topic, and what a camera lacks with that of the camera.
        named = [replace(m, names=(*m.names, "/image", "a.mcap"), content={**whole, name: m.content}) for m in mutants]
        found = silently_other(lambda each: read_json_messages(tmp_path / "a.mcap", each), named, expected, InputError)
        assert found == []


def test_stamps_that_do_not_rise_are_replaced_and_told(tmp_path: Path) -> None:
    with Bag(tmp_path / "a", wrong_s=dict.fromkeys((1, 3, 5, 7), -1.7e9)) as bag:
        for number in range(8):
            bag.raw("/image", number, picture(number), "rgb8")
    with open_source(str(tmp_path / "a")) as source:
        times = [frame.timestamp for frame in source]
        assert times == sorted(set(times)) and "4 stamps of /image were replaced" in source.warnings


def test_a_matrix_by_columns_is_no_camera(tmp_path: Path) -> None:
    with Bag(tmp_path / "a") as bag:
        bag.camera("/camera_info", (WIDTH, HEIGHT), [70.0, 0, 0, 0, 70, 0, 31.5, 23.5, 1], [])
        bag.raw("/image", 0, picture(0), "rgb8")
    with open_source(str(tmp_path / "a")) as source:
        assert source.camera is None and any("its camera matrix K" in line for line in source.warnings)


def test_a_file_that_the_recording_does_not_list_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a", 2)
    (tmp_path / "a/a_1.db3").write_bytes((tmp_path / "a/a.db3").read_bytes())
    with pytest.raises(InputError, match=r"a_1\.db3 is not in metadata\.yaml of a: move it"):
        open_source(str(tmp_path / "a"))


def test_more_data_than_rows_is_named(tmp_path: Path) -> None:
    with Bag(tmp_path / "a") as bag:
        kind, data = bag.store.types["sensor_msgs/msg/Image"], picture(0).ravel()
        message = kind(bag.header(0), HEIGHT // 2, WIDTH, "rgb8", 0, 3 * WIDTH, data)
        bag.write("/image", "sensor_msgs/msg/Image", 0, message)
    with pytest.raises(InputError, match="9216 bytes for 24 rows of 192"):
        open_source(str(tmp_path / "a"))
