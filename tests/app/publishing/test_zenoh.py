"""ROS 2 over zenoh: pyzeros and a plain zenoh subscriber with rosbags decode a live run; types, tokens, cost."""

import asyncio
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.typesys import Stores, get_typestore

from stream_recon.app.core.transforms import rotation_matrix
from stream_recon.app.core.types import FrameResult, Revision
from stream_recon.app.publishing import ros_messages
from stream_recon.app.publishing.frame_tree import R_BODY_OPTICAL
from stream_recon.app.publishing.messages import Topic
from stream_recon.app.publishing.publisher import Clock, PublisherOptions, ResultPublisher
from stream_recon.app.publishing.zenoh_sink import ZenohSink
from stream_recon.app.run.pipeline import reconstruct
from stream_recon.app.sources.rmw_zenoh import RosQos, attachment
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import ConfigError
from tests.app.fake_engine import POINTS, FakeEngine, fake_result, frames, prepared
from tests.app.media import write_video
from tests.app.publishing.peers import PlainSubscriber, eventually, router, session
from tests.app.publishing.runs import drifting_walk

zenoh = pytest.importorskip("zenoh")
pytest.importorskip("xxhash")

ORIGIN_NS = 1_700_000_000_123_456_789
STORE = get_typestore(Stores.ROS2_JAZZY)
RECORDED = {
    # Keys and tokens of rmw_zenoh that public programs state for their robots.
    Topic.TF: "RIHS01_e369d0f05a23ae52508854b66f6aa0437f3449d652e8cbf22d5abe85d020f087",
    Topic.ODOMETRY: "RIHS01_3cc97dc7fb7502f8714462c526d369e35b603cfc34d946e3f2eda2766dfec6e0",
    Topic.POINTS: "RIHS01_9198cabf7da3796ae6fe19c4cb3bdd3525492988c70522628af5daa124bae2b5",
}
POINT_TOKEN = (
    "/MP/%/%/stream_recon/%stream_recon%points/sensor_msgs::msg::dds_::PointCloud2_/"
    "RIHS01_9198cabf7da3796ae6fe19c4cb3bdd3525492988c70522628af5daa124bae2b5/2::,5:,:,:,,"
)


@pytest.fixture
def endpoint() -> Iterator[str]:
    with router() as opened:
        yield opened


def _publisher(endpoint: str) -> ResultPublisher:
    return ResultPublisher([ZenohSink(endpoint)], PublisherOptions(POINTS, Clock(ORIGIN_NS)))


def _decoded(sample: tuple[str, bytes, bytes], kind: str) -> Any:
    return STORE.deserialize_cdr(sample[1], kind)


def _matrix(position: Any, orientation: Any) -> np.ndarray:
    T = np.eye(4)
    T[:3, :3] = rotation_matrix(np.array([orientation.x, orientation.y, orientation.z, orientation.w]))
    T[:3, 3] = position.x, position.y, position.z
    return T


def test_plain_subscriber_decodes_a_live_run(endpoint: str, tmp_path: Path) -> None:
    """A run of the pipeline, heard by zenoh alone and decoded by rosbags."""
    video = write_video(tmp_path / "walk.mp4", frames=12)
    with session(endpoint) as opened:
        heard = PlainSubscriber(opened, "0/**")
        with open_source(str(video)) as source, _publisher(endpoint) as publisher:
            assert eventually(lambda: publisher.sinks[0].wants(Topic.POINTS))
            kept = _Kept()
            # Slow enough that no cloud is dropped.
            reconstruct(source, FakeEngine(seconds=0.03), None, [kept, publisher])
            publisher.flush()
            assert eventually(lambda: len(heard.of(Topic.ODOMETRY)) == len(kept.results) == 12)
            time.sleep(0.2)
    stamps = [ORIGIN_NS + round(result.timestamp * 1e9) for result in kept.results]
    odometry = [_decoded(s, "nav_msgs/msg/Odometry") for s in heard.of(Topic.ODOMETRY)]
    assert [each.header.stamp.sec * 10**9 + each.header.stamp.nanosec for each in odometry] == stamps
    assert (odometry[0].header.frame_id, odometry[0].child_frame_id) == ("odom", "base_link")
    walked = _matrix(odometry[-1].pose.pose.position, odometry[-1].pose.pose.orientation)
    expected = R_BODY_OPTICAL @ kept.results[-1].T_world_camera[:3, 3]
    assert np.allclose(walked[:3, 3], expected, atol=1e-9)
    tf = [_decoded(s, "tf2_msgs/msg/TFMessage") for s in heard.of(Topic.TF)]
    edges = {(each.header.frame_id, each.child_frame_id) for message in tf for each in message.transforms}
    static = _decoded(heard.of(Topic.TF_STATIC)[0], "tf2_msgs/msg/TFMessage").transforms[0]
    edges.add((static.header.frame_id, static.child_frame_id))
    assert edges == {("map", "odom"), ("odom", "base_link"), ("base_link", "camera_optical_frame")}
    cloud = _decoded(heard.of(Topic.POINTS)[-1], "sensor_msgs/msg/PointCloud2")
    assert cloud.header.frame_id == "camera_optical_frame" and [f.name for f in cloud.fields] == ["x", "y", "z", "rgb"]
    xyz = cloud.data.view("<f4").reshape(-1, 4)[:, :3]
    assert len(xyz) == cloud.width > 100 and np.allclose(xyz[:, 2].min(), 2, atol=0.2)
    info = _decoded(heard.of(Topic.CAMERA_INFO)[-1], "sensor_msgs/msg/CameraInfo")
    depth = _decoded(heard.of(Topic.DEPTH)[-1], "sensor_msgs/msg/Image")
    assert depth.encoding == "32FC1" and (depth.width, depth.height) == (info.width, info.height)
    # Depth by the pinhole of camera_info is the cloud.
    Z = depth.data.view("<f4").reshape(depth.height, depth.width)
    v, u = np.nonzero(np.isfinite(Z))
    K = info.k.reshape(3, 3)
    rays = np.stack([(u - K[0, 2]) / K[0, 0], (v - K[1, 2]) / K[1, 1], np.ones(len(u))], axis=1)
    assert np.allclose(rays * Z[v, u, None], xyz, atol=1e-4)
    numbers = [struct.unpack("<qqB16s", s[2]) for s in heard.of(Topic.ODOMETRY)]
    assert [each[0] for each in numbers] == list(range(1, 13)) and len({each[3] for each in numbers}) == 1
    state = _decoded(heard.of(Topic.DIAGNOSTICS)[-1], "diagnostic_msgs/msg/DiagnosticArray").status[0]
    assert state.message.partition(":")[0] in ("initialising", "tracking", "weak", "lost")


class _Kept:
    def __init__(self) -> None:
        self.results: list[FrameResult] = []

    def add(self, result: FrameResult) -> None:
        self.results.append(result)

    def revise(self, revision: Revision) -> None:
        pass


def test_pyzeros_decodes_odometry_points_and_tf(endpoint: str) -> None:
    pyzeros = pytest.importorskip("pyzeros")
    from ros2_pyterfaces.cyclone import all_msgs as messages
    from ros2_pyterfaces.cyclone.idl import IdlStruct, types

    # It ships no tf2_msgs.
    kind = types.sequence[messages.TransformStamped]
    space = {"__annotations__": {"transforms": kind}, "transforms": field(default_factory=list)}
    tf_message = dataclass(type(IdlStruct)("TFMessage", (IdlStruct,), space, typename="tf2_msgs/msg/TFMessage"))
    kinds = {Topic.ODOMETRY: messages.Odometry, Topic.POINTS: messages.PointCloud2, Topic.TF: tf_message}
    for topic, made in kinds.items():
        assert made.hash_rihs01() == ros_messages.type_hash(topic)
    got: dict[Topic, Any] = {}
    results = [item for item in drifting_walk(10, ()) if isinstance(item, FrameResult)]

    async def listen(opened: Any) -> None:
        node = pyzeros.Node("peer", session=opened)
        subs = {topic: pyzeros.Sub(made, topic.value, session=node) for topic, made in kinds.items()}
        with _publisher(endpoint) as publisher:
            while not all(publisher.sinks[0].wants(topic) for topic in kinds):
                await asyncio.sleep(0.01)
            for result in results:
                publisher.add(result)
            for topic, sub in subs.items():
                got[topic] = await sub.wait_for_value()

    with session(endpoint) as opened:
        asyncio.run(asyncio.wait_for(listen(opened), 20))
    odometry, cloud, transforms = got[Topic.ODOMETRY], got[Topic.POINTS], got[Topic.TF].transforms
    assert (odometry.header.frame_id, odometry.child_frame_id) == ("odom", "base_link")
    assert len(odometry.pose.covariance) == 36 and odometry.header.stamp.nanosec % 100_000_000 == 23_456_789
    assert cloud.width * cloud.point_step == len(cloud.data) > 0
    assert (transforms[0].header.frame_id, transforms[0].child_frame_id) == ("map", "odom")


def test_type_hashes_are_those_of_rosbags_and_of_recorded_graphs() -> None:
    for topic in Topic:
        assert ros_messages.type_hash(topic) == STORE.hash_rihs01(ros_messages.TYPES[topic])
    for topic, recorded in RECORDED.items():
        assert ros_messages.type_hash(topic) == recorded


def test_tokens_make_the_topics_visible(endpoint: str) -> None:
    with session(endpoint) as opened:
        with _publisher(endpoint):
            tokens: list[str] = []

            def seen() -> bool:
                tokens[:] = [str(r.ok.key_expr) for r in opened.liveliness().get("@ros2_lv/0/**") if r.ok]
                return len(tokens) == len(Topic) + 1

            assert eventually(seen)
            assert any(token.endswith(POINT_TOKEN) for token in tokens)
            assert any(token.endswith("/0/0/NN/%/%/stream_recon") for token in tokens)
            numbers = [token.split("/")[4] for token in tokens]
            assert len(set(numbers)) == len(numbers)
        assert eventually(lambda: not [r for r in opened.liveliness().get("@ros2_lv/0/**") if r.ok])


def test_late_subscriber_gets_latched_topics(endpoint: str) -> None:
    with _publisher(endpoint) as publisher:
        for item in drifting_walk(8, ()):
            assert isinstance(item, FrameResult)
            publisher.add(item)
        publisher.flush()
        for _ in range(2):  # the second one comes while the first one listens
            with session(endpoint) as first, session(endpoint) as opened:
                early = PlainSubscriber(first, "0/stream_recon/path/**")
                assert eventually(lambda heard=early: heard.samples)
                got: list[bytes] = []
                subscriber = zenoh.ext.declare_advanced_subscriber(
                    opened,
                    f"0{Topic.TF_STATIC}/**",
                    lambda sample, got=got: got.append(sample.payload.to_bytes()),
                    history=zenoh.ext.HistoryConfig(detect_late_publishers=True),
                )
                assert eventually(lambda got=got: got)
                path = _decoded(early.samples[-1], "nav_msgs/msg/Path")
                assert len(path.poses) == 8 and path.header.frame_id == "map"
                subscriber.undeclare()


def test_a_sink_wakes_its_publisher_for_peers_alone(endpoint: str) -> None:
    woken: list[frozenset[Topic]] = []
    with session(endpoint) as opened, closing(ZenohSink(endpoint)) as sink:
        sink.start(lambda: woken.append(sink.joined()))
        assert not woken
        PlainSubscriber(opened, "0/stream_recon/odometry/**")
        assert eventually(lambda: woken) and woken == [frozenset({Topic.ODOMETRY})]
        assert not sink.joined(), "each topic once"


def test_without_a_peer_nothing_is_encoded(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Topic] = []
    encode = ros_messages.encode
    monkeypatch.setattr(ros_messages, "encode", lambda topic, m: (encoded.append(topic), encode(topic, m))[1])
    with _publisher(endpoint) as publisher:
        result = fake_result(prepared(frames(1)[0]))
        threads = threading.active_count()
        for _ in range(1000):
            publisher.add(result)
        assert publisher.flush()
        assert set(encoded) <= {Topic.TF_STATIC}
        assert threading.active_count() <= threads


def test_stalled_subscriber_holds_nothing_up(endpoint: str) -> None:
    with session(endpoint) as opened, session(endpoint) as other:
        release = threading.Event()
        stalled = opened.declare_subscriber("0/stream_recon/points/**", lambda sample: release.wait(30))
        heard = PlainSubscriber(other, "0/stream_recon/odometry/**")
        with _publisher(endpoint) as publisher:
            assert eventually(
                lambda: publisher.sinks[0].wants(Topic.POINTS) and publisher.sinks[0].wants(Topic.ODOMETRY)
            )
            result = fake_result(prepared(frames(1, (640, 480))[0]))
            began = time.monotonic()
            for _ in range(200):
                publisher.add(result)
            assert time.monotonic() - began < 2.0
            assert publisher.flush(20.0)
            assert eventually(lambda: len(heard.samples) >= 190)
        release.set()
        stalled.undeclare()


def test_no_router_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with _publisher("127.0.0.1:9") as publisher:
        publisher.add(fake_result(prepared(frames(1)[0])))
        assert publisher.flush() and not publisher.failures
    (tmp_path / "zenoh.json5").write_text("{mode: 'none'}")
    monkeypatch.setenv("ZENOH_SESSION_CONFIG_URI", str(tmp_path / "zenoh.json5"))
    with pytest.raises(ConfigError, match="zenoh cannot be started"):
        ZenohSink()


def test_attachment_and_qos_as_rmw_zenoh_writes_them() -> None:
    gid = bytes(range(16))
    assert attachment(7, 9, gid) == (7).to_bytes(8, "little") + (9).to_bytes(8, "little") + b"\x10" + gid
    assert RosQos(10).token() == "::,10:,:,:,,"
    assert RosQos(5, reliable=False).token() == "2::,5:,:,:,,"
    assert RosQos(1, latched=True).token() == ":1:,1:,:,:,,"
    pyzeros = pytest.importorskip("pyzeros.qos")
    assert RosQos(10).token() == pyzeros.QosProfile.default().encode()
    assert RosQos(5, reliable=False).token() == pyzeros.QosProfile.sensor_data().encode()
