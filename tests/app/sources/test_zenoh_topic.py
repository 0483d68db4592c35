"""Image topics of robots as a source, with pyzeros or zenoh alone as the robot."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cv2
import numpy as np
import pytest
from rosbags.typesys import Stores, get_typestore

from stream_recon.app.sources import zenoh_topic
from stream_recon.app.sources.live import LiveLimits
from stream_recon.app.sources.source import open_source
from stream_recon.app.sources.zenoh_topic import parse_topic
from stream_recon.configs.errors import ConfigError, InputError
from tests.app.publishing.peers import router, session

zenoh = pytest.importorskip("zenoh")
pytest.importorskip("xxhash")

STAMP = (1_700_000_000, 123_456_789)
TYPES = get_typestore(Stores.ROS2_JAZZY)


def _header(seconds: float) -> Any:
    stamp = STAMP[0] * 10**9 + STAMP[1] + round(seconds * 1e9)
    time_type, header_type = (TYPES.types[name] for name in ("builtin_interfaces/msg/Time", "std_msgs/msg/Header"))
    return header_type(time_type(*divmod(stamp, 10**9)), "camera")


def _jpeg(number: int) -> np.ndarray:
    image = np.full((48, 64, 3), 20 + 10 * (number % 20), np.uint8)
    return np.asarray(cv2.imencode(".jpg", image)[1]).ravel()


def _camera_info() -> bytes:
    kind, region = TYPES.types["sensor_msgs/msg/CameraInfo"], TYPES.types["sensor_msgs/msg/RegionOfInterest"]
    K = np.array([50.0, 0, 31.5, 0, 50.0, 23.5, 0, 0, 1])
    message = kind(
        header=_header(0), height=48, width=64, distortion_model="plumb_bob", d=np.zeros(5), k=K,
        r=np.eye(3).ravel(), p=np.zeros(12), binning_x=0, binning_y=0, roi=region(0, 0, 0, 0, False),
    )  # fmt: skip
    return bytes(TYPES.serialize_cdr(message, "sensor_msgs/msg/CameraInfo"))


class Robot:
    """Publishes images, best effort, at a rate, from a thread."""

    def __init__(self, opened: Any, topic: str = "camera/image/compressed", camera: bool = True) -> None:
        self._best_effort = {
            "reliability": zenoh.Reliability.BEST_EFFORT, "congestion_control": zenoh.CongestionControl.DROP,
        }  # fmt: skip
        name = "sensor_msgs::msg::dds_::CompressedImage_"
        digest = TYPES.hash_rihs01("sensor_msgs/msg/CompressedImage")
        self.images = opened.declare_publisher(f"0/{topic}/{name}/{digest}", **self._best_effort)
        info = "0/camera/image/camera_info/sensor_msgs::msg::dds_::CameraInfo_/RIHS01_x"
        self._info = opened.declare_publisher(info, **self._best_effort) if camera else None
        self._token = opened.liveliness().declare_token(
            f"@ros2_lv/0/{opened.zid()}/0/1/MP/%/%/robot/%{topic.replace('/', '%')}/{name}/{digest}/2::,5:,:,:,,"
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self.gap = 0.0
        """Added to the stamps."""

    def _work(self) -> None:
        number = 0
        while not self._stop.wait(0.02):
            kind = TYPES.types["sensor_msgs/msg/CompressedImage"]
            message = kind(_header(0.02 * number + self.gap), "jpeg", _jpeg(number))
            self.images.put(bytes(TYPES.serialize_cdr(message, "sensor_msgs/msg/CompressedImage")))
            if self._info is not None:
                self._info.put(_camera_info())
            number += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def robot(endpoint: str, **options: Any) -> Iterator[Robot]:
    with session(endpoint) as opened:
        made = Robot(opened, **options)
        try:
            yield made
        finally:
            made.stop()


def test_best_effort_images_are_heard_with_their_stamps_and_camera() -> None:
    with router() as endpoint, robot(endpoint), open_source(f"zenoh://{endpoint}/camera/image/compressed") as source:
        assert source.live and source.camera is not None
        taken = []
        for frame in source:
            taken.append(frame)
            if len(taken) == 5:
                break
        assert source.origin_ns is not None
        stamps = [source.origin_ns + round(frame.timestamp * 1e9) for frame in taken]
        # Each stamp is one that the robot gave, to the nanosecond.
        steps = [stamp - STAMP[0] * 10**9 - STAMP[1] for stamp in stamps]
        assert all(step % 20_000_000 == 0 for step in steps) and steps == sorted(set(steps))
        assert taken[0].rgb.shape == (48, 64, 3)
        assert source.intrinsics is not None and source.intrinsics.fx == pytest.approx(50)


def test_newest_wins_and_a_gap_begins_a_segment() -> None:
    with router() as endpoint, robot(endpoint, camera=False) as made:
        zenoh_topic_reader = zenoh_topic.ZenohReader(f"zenoh://{endpoint}/camera/image/compressed", 5.0)
        first = zenoh_topic_reader.grab()
        time.sleep(0.3)
        second = zenoh_topic_reader.grab()
        assert first is not None and second is not None
        assert second[0] > first[0] + 3 and zenoh_topic_reader.dropped >= 3
        made.gap = 10.0
        time.sleep(0.1)
        zenoh_topic_reader.grab()
        assert zenoh_topic_reader.grab() is not None and zenoh_topic_reader.segment == 1
        assert len(zenoh_topic_reader.segments) == 1 and "no frames from" in zenoh_topic_reader.segments[0].reason
        zenoh_topic_reader.close()


def test_messages_of_other_content_are_skipped() -> None:
    with router() as endpoint, robot(endpoint, camera=False) as made:
        reader = zenoh_topic.ZenohReader(f"zenoh://{endpoint}/camera/image/compressed", 5.0)
        good = reader.grab()
        assert good is not None and reader.retrieve() is not None
        made.stop()
        for data in (b"", b"\0\1\0\0", b"\0\1\0\0" + b"\xff" * 40, bytes(200)):
            made.images.put(data)
            while reader.grab() is not None and reader.retrieve() is not None:
                pass  # a last good image
        assert reader.damaged == 4 and sum("unreadable" in line for line in reader.warnings) == 1
        reader.close()


def test_silence_ends_the_source() -> None:
    with router() as endpoint, robot(endpoint, camera=False) as made:
        reader = zenoh_topic.ZenohReader(f"zenoh://{endpoint}/camera/image/compressed", 0.3)
        made.stop()
        while reader.grab() is not None:
            pass
        assert reader.lost and "did not come back" in reader.warnings[-1]
        reader.close()


def _is_listed(endpoint: str, seconds: float = 20.0) -> bool:
    """Whether the router tells a new client of a topic; announcements reach it some time after they are made."""
    end = time.monotonic() + seconds
    with session(endpoint) as opened:
        while time.monotonic() < end:
            if any(reply.ok is not None for reply in opened.liveliness().get("@ros2_lv/0/**", timeout=1.0)):
                return True
            time.sleep(0.05)
    return False


def test_wrong_topic_names_the_topics_there() -> None:
    with router() as endpoint, robot(endpoint):
        assert _is_listed(endpoint)
        with pytest.raises(InputError, match="/camera/image/compressed"):
            zenoh_topic.ZenohReader(f"zenoh://{endpoint}/camera/wrong", 1.0, LiveLimits(first_frame_s=0.5))


@pytest.mark.slow
def test_a_ros_publisher_of_pyzeros_is_heard() -> None:
    pyzeros = pytest.importorskip("pyzeros")
    from pyzeros.qos import QosProfile
    from ros2_pyterfaces.cyclone import all_msgs as messages

    asyncio.set_event_loop(asyncio.new_event_loop())  # pyzeros needs one in this thread
    with router() as endpoint, session(endpoint) as opened:
        node = pyzeros.Node("camera", session=opened)
        publisher = pyzeros.Pub(messages.CompressedImage, "/eye/compressed", QosProfile.sensor_data(), session=node)
        stop = threading.Event()
        message = messages.CompressedImage()
        message.format, message.data = "jpeg", _jpeg(3).tolist()
        publisher.publish(message)  # compiles the attachment's type, which takes long the first time

        def send() -> None:
            while not stop.wait(0.02):
                publisher.publish(message)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        try:
            with open_source(f"zenoh://{endpoint}/eye/compressed") as source:
                assert next(source).rgb.shape == (48, 64, 3)
        finally:
            stop.set()
            thread.join()


def test_addresses() -> None:
    assert parse_topic("zenoh://camera/image_raw") == ("localhost:7447", "/camera/image_raw", 0)
    assert parse_topic("zenoh://10.0.0.1:7000/a/b?domain=7") == ("10.0.0.1:7000", "/a/b", 7)
    assert parse_topic("zenoh:///image") == ("localhost:7447", "/image", 0)
    for wrong in ("zenoh://", "zenoh://a*b", "zenoh://h:1/", "zenoh://a?x=1", "zenoh://h:99999999/a"):
        with pytest.raises(ConfigError):
            parse_topic(wrong)
