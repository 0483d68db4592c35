"""ROS 2 topics over zenoh, as nodes with rmw_zenoh publish them."""

import time
from collections.abc import Callable
from typing import Any

from stream_recon.app.publishing import ros_messages
from stream_recon.app.publishing.messages import LATCHED, NODE, Message, Topic
from stream_recon.app.publishing.ros_messages import QOS, TYPES
from stream_recon.app.sources import rmw_zenoh


class ZenohSink:
    """Publishers of all topics. A peer that does not keep up misses messages; nothing waits for it.

    Raises ConfigError or ResourceError, see `open_session`.
    """

    lossless = False

    def __init__(self, endpoint: str = rmw_zenoh.DEFAULT_ENDPOINT, domain: int = 0) -> None:
        ros_messages.typestore()
        self._session = rmw_zenoh.open_session(endpoint)
        self._node = rmw_zenoh.RosNode(self._session, domain, NODE)
        self._wake: Callable[[], None] = lambda: None
        self._joined: set[Topic] = set()
        self._publishers = {topic: _Publisher(self._node, topic, QOS[topic], self._on_match) for topic in Topic}
        self._endpoint, self._domain = endpoint, domain

    @property
    def address(self) -> str:
        return f"zenoh, router {self._endpoint}, ROS domain {self._domain}"

    def start(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        if self._joined:
            wake()

    def wants(self, topic: Topic) -> bool:
        publisher = self._publishers.get(topic)
        return publisher is not None and (topic is Topic.TF_STATIC or publisher.has_peer)

    def joined(self) -> frozenset[Topic]:
        topics = frozenset(self._joined)
        self._joined -= topics
        return topics

    def send(self, topic: Topic, message: Message) -> None:
        self._publishers[topic].put(ros_messages.encode(topic, message))

    def close(self) -> None:
        if self._publishers:
            publishers, self._publishers = self._publishers, {}
            self._node.close()
            for publisher in publishers.values():
                publisher.close()
            self._session.close()

    def _on_match(self, topic: Topic) -> None:
        """A first peer subscribed to a topic; called by a thread of zenoh."""
        self._joined.add(topic)
        self._wake()


class _Publisher:
    """Publisher of one topic."""

    def __init__(
        self, node: rmw_zenoh.RosNode, topic: Topic, qos: rmw_zenoh.RosQos, on_match: Callable[[Topic], None]
    ) -> None:
        zenoh = rmw_zenoh.zenoh_library()
        kind, digest = TYPES[topic], ros_messages.type_hash(topic)
        key = rmw_zenoh.topic_key(node.domain, topic, kind, digest)
        reliability = zenoh.Reliability.RELIABLE if qos.reliable else zenoh.Reliability.BEST_EFFORT
        options = {"congestion_control": zenoh.CongestionControl.DROP, "reliability": reliability}
        self._plain = node.session.declare_publisher(key, **options)
        self._sender: Any = self._plain
        if topic in LATCHED:
            # It keeps the last message for subscribers that ask for it; the plain one knows whether there are any.
            cache = zenoh.ext.CacheConfig(qos.depth)
            self._sender = zenoh.ext.declare_advanced_publisher(
                node.session, key, cache=cache, publisher_detection=True, **options
            )

        def listen(status: Any) -> None:
            if status.matching:
                on_match(topic)

        self._listener = self._plain.declare_matching_listener(listen)
        self._gid = node.declare("MP", topic, kind, digest, qos)
        self._number = 0

    @property
    def has_peer(self) -> bool:
        """Whether anybody subscribes."""
        return bool(self._plain.matching_status.matching)

    def put(self, data: bytes) -> None:
        self._number += 1
        self._sender.put(data, attachment=rmw_zenoh.attachment(self._number, time.time_ns(), self._gid))

    def close(self) -> None:
        self._listener.undeclare()
        if self._sender is not self._plain:
            self._sender.undeclare()
        self._plain.undeclare()
