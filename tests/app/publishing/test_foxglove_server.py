"""The Foxglove server: channels, messages, access and slow clients."""

import json
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from stream_recon.app.publishing.address import open_sinks, parse_address
from stream_recon.app.publishing.foxglove_server import FoxgloveSink
from stream_recon.app.publishing.messages import Topic
from stream_recon.app.publishing.publisher import Clock, PublisherOptions, ResultPublisher
from stream_recon.configs.errors import ConfigError, PortInUseError, ResourceError
from tests.app.fake_engine import POINTS, fake_result, frames, prepared
from tests.app.publishing.peers import FoxgloveClient, eventually

pytest.importorskip("foxglove")

ORIGIN_NS = 1_700_000_000_123_456_789


@pytest.fixture
def sink() -> Iterator[FoxgloveSink]:
    opened = FoxgloveSink(port=0)
    yield opened
    opened.close()


def test_client_lists_channels_and_gets_all_topics(sink: FoxgloveSink) -> None:
    with ResultPublisher([sink], PublisherOptions(POINTS, Clock(ORIGIN_NS))) as publisher:
        client = FoxgloveClient(sink.url)
        expected = {topic.value for topic in Topic} - {"/tf_static"}
        assert client.info["op"] == "serverInfo" and set(client.channels) == expected
        names = {each["schemaName"] for each in client.channels.values()}
        assert {"foxglove.CameraCalibration", "foxglove.PointCloud", "foxglove.FrameTransforms"} <= names
        client.subscribe(*expected)
        assert eventually(lambda: all(sink.wants(topic) for topic in Topic))
        publisher.flush()
        publisher.add(fake_result(prepared(frames(1)[0])))
        got: dict[str, int] = {}
        while set(got) != expected:
            topic, stamp, payload = client.receive()
            assert payload
            got[topic] = stamp
        assert got["/stream_recon/odometry"] == got["/stream_recon/points"] == ORIGIN_NS
        client.close()


def test_old_clients_are_served_too(sink: FoxgloveSink) -> None:
    client = FoxgloveClient(sink.url, "foxglove.websocket.v1")
    assert client.connection.subprotocol == "foxglove.websocket.v1"
    client.close()


def test_nothing_is_made_without_a_subscriber(sink: FoxgloveSink) -> None:
    client = FoxgloveClient(sink.url)
    client.subscribe(Topic.ODOMETRY.value)
    assert eventually(lambda: sink.wants(Topic.ODOMETRY))
    assert not any(sink.wants(topic) for topic in set(Topic) - {Topic.ODOMETRY, Topic.TF_STATIC})
    client.close()
    assert eventually(lambda: not sink.wants(Topic.ODOMETRY)) and sink.clients == 0


def test_late_client_gets_path_and_state(sink: FoxgloveSink) -> None:
    with ResultPublisher([sink], PublisherOptions(POINTS, Clock(ORIGIN_NS))) as publisher:
        for frame in frames(5):
            publisher.add(fake_result(prepared(frame)))
        publisher.flush()
        client = FoxgloveClient(sink.url)
        client.subscribe(Topic.PATH.value, Topic.TF.value, Topic.DIAGNOSTICS.value)
        got = dict((topic, payload) for topic, _, payload in (client.receive() for _ in range(3)))
        assert set(got) == {Topic.PATH, Topic.TF, Topic.DIAGNOSTICS}
        assert json.loads(got[Topic.DIAGNOSTICS])["state"] == "initialising"
        client.close()


def test_stalled_client_holds_nothing_up(sink: FoxgloveSink) -> None:
    with ResultPublisher([sink], PublisherOptions(POINTS, Clock(ORIGIN_NS))) as publisher:
        stalled = FoxgloveClient(sink.url, max_queue=1)
        reader = FoxgloveClient(sink.url)
        stalled.subscribe(Topic.POINTS.value, Topic.ODOMETRY.value)
        reader.subscribe(Topic.ODOMETRY.value)
        assert eventually(lambda: sink.wants(Topic.POINTS) and sink.wants(Topic.ODOMETRY))
        result = fake_result(prepared(frames(1, (640, 480))[0]))
        began = time.monotonic()
        for _ in range(300):
            publisher.add(result)
        assert publisher.flush() and time.monotonic() - began < 8.0
        stamps = [reader.receive() for _ in range(300)]
        assert all(topic == Topic.ODOMETRY for topic, _, _ in stamps)
        reader.close()
        stalled.connection.socket.close()


def test_access_from_other_pages_and_names_is_refused(sink: FoxgloveSink) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
        with pytest.raises(InvalidStatus):
            FoxgloveClient(sink.url, additional_headers=headers)
    FoxgloveClient(sink.url, additional_headers={"Origin": "https://app.foxglove.dev"}).close()


def test_other_machines_need_the_token() -> None:
    sink = FoxgloveSink("0.0.0.0", 0)
    try:
        _, _, query = sink.url.partition("/?")
        assert query.startswith("token=") and len(query) > 20
        local = f"ws://127.0.0.1:{sink.port}"
        with pytest.raises(InvalidStatus):
            FoxgloveClient(local)
        FoxgloveClient(f"{local}/?{query}").close()
    finally:
        sink.close()


def test_tls(tmp_path: Path) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    place = f"foxglove://127.0.0.1:0?cert={tmp_path}/cert.pem&key={tmp_path}/key.pem"
    (sink,) = open_sinks([parse_address(place)])
    try:
        assert isinstance(sink, FoxgloveSink) and sink.url.startswith("wss://")
        client = FoxgloveClient(sink.url, ssl=ssl.create_default_context(cafile=str(tmp_path / "cert.pem")))
        assert client.channels
        client.close()
    finally:
        sink.close()


def test_hostile_requests_are_ignored(sink: FoxgloveSink) -> None:
    client = FoxgloveClient(sink.url)
    for text in (
        "{",
        "[]",
        '{"op":"subscribe","subscriptions":[{"id":1,"channelId":999}]}',
        '{"op":"subscribe"}',
        "[" * 9000,
    ):
        client.connection.send(text)
    client.connection.send(np.zeros(9, np.uint8).tobytes())
    client.subscribe(Topic.TF.value)
    assert eventually(lambda: sink.wants(Topic.TF))
    client.close()


def test_port_in_use_is_an_error(sink: FoxgloveSink) -> None:
    with pytest.raises(PortInUseError, match="--publish"):
        FoxgloveSink(port=sink.port)
    with pytest.raises(ResourceError):
        FoxgloveSink("203.0.113.1", 0)


def test_addresses() -> None:
    assert parse_address("foxglove").kind == "foxglove"
    address = parse_address("zenoh://10.0.0.2:7448?domain=3&mount=0.1,0,0.2,0,0,0")
    assert (address.host, address.port, address.options["domain"]) == ("10.0.0.2", 7448, "3")
    assert address.mount == (0.1, 0, 0.2, 0, 0, 0)
    assert parse_address("walk.mcap").path == Path("walk.mcap")
    for wrong in ("ros", "foxglove://a:b", "foxglove://h/x", "zenoh?domain=999", "zenoh?x=1", "foxglove?mount=1"):
        with pytest.raises(ConfigError):
            parse_address(wrong)
