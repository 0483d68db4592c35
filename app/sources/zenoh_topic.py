"""Image topic of a robot that runs ROS 2 with rmw_zenoh, as a live source: ``zenoh://[HOST:PORT/]TOPIC[?domain=N]``."""

import struct
import time
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.live import LIVE_LIMITS, LiveLimits, NewestReader
from stream_recon.app.sources.rmw_zenoh import DEFAULT_ENDPOINT, RosNode, RosQos, dds_type, open_session, ros_domain
from stream_recon.app.sources.ros_images import decoded, turn_notes, unsupported
from stream_recon.app.sources.rosbag import CAMERA, COMPRESSED, DAMAGE, RAW, camera_of, info_topics, is_rectified
from stream_recon.configs.errors import ConfigError, InputError, missing_library

NODE = "stream_recon_source"
"""Name of the node that subscribes."""
QOS = RosQos(reliable=False, depth=5)
"""Best effort, as for all sensors: it hears reliable publishers, too."""
CAMERA_SECONDS = 1.5
"""Wait for the camera_info after the first image; drivers send both together, about."""
GRAPH_SECONDS = 5.0
"""Wait for the list of image topics, for a message to the user."""
NOMINAL_RATE = 30.0
"""Frame rate that is assumed; topics do not state any."""


class ZenohReader(NewestReader):
    """Newest image of a topic (raw or compressed), best effort.

    Only images that are taken are decoded. Timestamps are the headers' stamps since the first one. A pause begins a new
    segment; after ``reconnect`` seconds without an image the source is lost. The camera is that of ``camera_info``.
    """

    def __init__(self, spec: str, reconnect: float, limits: LiveLimits = LIVE_LIMITS) -> None:
        """Raises InputError: no image arrives; ConfigError: a wrong address; ResourceError: a library is missing."""
        endpoint, self._topic, domain = parse_topic(spec)
        super().__init__(f"zenoh:/{self._topic}", NOMINAL_RATE, limits)
        self._store, self._hashes = _types()
        self._reconnect_s = reconnect
        self._info: tuple[str, bytes] | None = None
        self._last_ns, self._last_time = 0, 0.0
        self._size: tuple[int, int] | None = None
        self._last_at = time.monotonic()
        self._session = open_session(endpoint)
        self._subscribers: list[Any] = []
        try:
            self._node = RosNode(self._session, domain, NODE)
            for kind in (RAW, COMPRESSED):
                self._listen(domain, self._topic, kind, partial(self._take, kind))
            for topic in info_topics(self._topic):
                self._listen(domain, topic, CAMERA, partial(self._take_info, topic))
            self._wait_for_first(endpoint, domain)
            self.calibration = self._camera()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        remaining_s = self._last_at + (self._reconnect_s or self._limits.pause_s) - time.monotonic()
        self._ended = remaining_s <= 0
        if self._ended:
            self._tell_end(self._last_time, self._reconnect_s)
        else:
            self._changed.wait(remaining_s)

    def retrieve(self) -> NDArray[np.uint8] | None:
        assert self._grabbed is not None, "retrieve comes after grab"
        kind, data = self._grabbed
        try:
            message = self._store.deserialize_cdr(data, kind)
            what, rgb = unsupported(message), decoded(message)
        except DAMAGE:
            what = rgb = None
        if what is not None:
            raise InputError(f"the images of {self._topic} have {what}, which is not supported: convert them to rgb8")
        size = None if rgb is None else (rgb.shape[1], rgb.shape[0])
        self.warnings += [f"{self._topic}: {note}" for note in ([] if self._size or not size else turn_notes(message))]
        self._size = self._size or size
        if rgb is None or size != self._size:
            self.damaged += 1
            line = f"images of {self.name} that are unreadable or of another size were skipped"
            if line not in self.warnings:
                self.warnings.append(line)
            return None
        return rgb

    def close(self) -> None:
        """Stop; a ``grab`` waiting in another thread returns None."""
        self._stop()
        session, self._session = self._session, None
        if session is None:
            return
        for subscriber in self._subscribers:
            subscriber.undeclare()
        if hasattr(self, "_node"):
            self._node.close()
        session.close()

    def _listen(self, domain: int, topic: str, kind: str, take: Any) -> None:
        # Any type hash: definitions differ in comments between releases of ROS, and old ones send none.
        key = f"{domain}{topic}/{dds_type(kind)}/*"
        self._subscribers.append(self._session.declare_subscriber(key, lambda sample: take(sample.payload.to_bytes())))
        self._node.declare("MS", topic, kind, self._hashes[kind], QOS)

    def _take(self, kind: str, data: bytes) -> None:
        """Store an image in place of one that was not taken; called by a thread of zenoh."""
        stamp_ns = _header_ns(data) or time.time_ns()
        with self._changed:
            self._last_at = time.monotonic()
            if self.origin_ns is None:
                self.origin_ns = stamp_ns
            seconds = (stamp_ns - self.origin_ns) * 1e-9
            if self._count and abs(stamp_ns - self._last_ns) > self._limits.pause_s * 1e9:
                self._begin_segment(self._last_time, seconds)
            if self._count and seconds <= self._last_time:
                # A clock was set back; timestamps must increase.
                seconds = self._last_time + 1 / self.rate
            self._put(seconds, (kind, data))
            self._last_ns, self._last_time = stamp_ns, seconds

    def _take_info(self, topic: str, data: bytes) -> None:
        with self._changed:
            if self._info is None:
                self._info = topic, data
                self._changed.notify_all()

    def _wait_for_first(self, endpoint: str, domain: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None, self._limits.first_frame_s)
            if self._newest is not None:
                self._changed.wait_for(lambda: self._info is not None, CAMERA_SECONDS)
                return
        # A client learns of topics some time after it has connected.
        end = time.monotonic() + GRAPH_SECONDS
        while not (topics := sorted(self._image_topics(domain))) and time.monotonic() < end:
            time.sleep(0.1)
        listed = f"image topics there: {', '.join(topics)}" if topics else "no image topic is published there"
        raise InputError(
            f"no image arrives on {self._topic} by the zenoh router {endpoint}, ROS domain {domain}: {listed}; "
            "robots need RMW_IMPLEMENTATION=rmw_zenoh_cpp and a router (rmw_zenohd)"
        )

    def _image_topics(self, domain: int) -> set[str]:
        """Image topics in the graph."""
        topics = set()
        kinds = {dds_type(RAW), dds_type(COMPRESSED)}
        for reply in self._session.liveliness().get(f"@ros2_lv/{domain}/**", timeout=GRAPH_SECONDS):
            parts = str(reply.ok.key_expr).split("/") if reply.ok is not None else []
            if len(parts) > 10 and parts[5] == "MP" and parts[10] in kinds:
                topics.add(parts[9].replace("%", "/"))
        return topics

    def _camera(self) -> Calibration | None:
        """Camera of the topic's camera_info, if one arrived."""
        if self._info is None:
            return None
        try:
            message = self._store.deserialize_cdr(self._info[1], CAMERA)
            return camera_of(message, rectified=is_rectified(self._topic))
        except DAMAGE as error:
            self.warnings.append(f"the camera_info of {self._topic} is not used: {str(error)[:200]}")
        return None


def parse_topic(spec: str) -> tuple[str, str, int]:
    """Router ``host:port``, topic with a leading slash, and domain of an address. Raises ConfigError."""
    try:
        parts = urlsplit(spec)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        port, host = parts.port, parts.hostname or ""
    except ValueError as error:
        raise ConfigError(f"{spec} is not an address: {error}") from error
    if port is None:
        endpoint, topic = DEFAULT_ENDPOINT, f"{parts.netloc}{parts.path}"
    else:
        endpoint, topic = f"{f'[{host}]' if ':' in host else host}:{port}", parts.path
    topic = "/" + topic.strip("/")
    names = topic[1:].split("/")
    named = all(name.isascii() and name.replace("_", "a").isalnum() for name in names)
    if not named or set(options) - {"domain"}:
        raise ConfigError(f"{spec}: use zenoh://TOPIC or zenoh://HOST:PORT/TOPIC, with ?domain=N where it is not 0")
    return endpoint, topic, ros_domain(options.get("domain"))


def _header_ns(data: bytes) -> int:
    """Stamp of a message in CDR that begins with a header, without reading the rest; 0 where it is no time."""
    if len(data) < 12:
        return 0
    seconds, nanoseconds = struct.unpack_from("<iI" if data[1] & 1 else ">iI", data, 4)
    return int(seconds) * 10**9 + int(nanoseconds) if seconds >= 0 and nanoseconds < 10**9 else 0


def _types() -> tuple[Any, dict[str, str]]:
    """Types of ROS 2, and the hashes of those used here. Raises ResourceError."""
    try:
        from rosbags.typesys import Stores, get_typestore
    except ImportError as error:
        raise missing_library("zenoh", "eclipse-zenoh", "xxhash", "rosbags") from error
    store = get_typestore(Stores.ROS2_JAZZY)
    hashes = {kind: str(store.hash_rihs01(kind)) for kind in (RAW, COMPRESSED, CAMERA)}
    return store, hashes
