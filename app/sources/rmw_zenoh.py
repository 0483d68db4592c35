"""Naming and metadata by which ROS 2 nodes with rmw_zenoh find and understand one another.

A topic's messages have the key ``<domain>/<topic>/<DDS type>/<type hash>``, and an attachment with sequence number,
time and identity of the publisher. Each node, publisher and subscription declares a liveliness token ``@ros2_lv/...``,
from which the others know the graph. Both are as in rmw_zenoh's design document (github.com/ros2/rmw_zenoh).
"""

import os
import struct
from dataclasses import dataclass
from itertools import count
from types import ModuleType
from typing import Any

from stream_recon.configs.errors import ConfigError, missing_library

DEFAULT_ENDPOINT = "localhost:7447"
"""Router that nodes of rmw_zenoh connect to."""
CONFIG_VARIABLE = "ZENOH_SESSION_CONFIG_URI"
"""Environment variable that names a file with the configuration of zenoh, as for rmw_zenoh."""
MAX_DOMAIN = 232
"""Largest domain number of ROS 2."""
DEFAULT_DEPTH = 42
"""Depth that tokens leave out."""


@dataclass(frozen=True)
class RosQos:
    """Quality of service of a topic. History is keep last, with ``depth`` messages."""

    depth: int
    reliable: bool = True
    latched: bool = False
    """Transient local: new subscribers get the last messages."""

    def token(self) -> str:
        """The profile in a liveliness token, where usual values are left out."""
        reliability = "" if self.reliable else "2"
        durability = "1" if self.latched else ""
        depth = "" if self.depth == DEFAULT_DEPTH else str(self.depth)
        return f"{reliability}:{durability}:,{depth}:,:,:,,"


def ros_domain(text: str | None = None) -> int:
    """A domain number; without ``text`` that of the environment, or 0. Raises ConfigError."""
    number = os.environ.get("ROS_DOMAIN_ID", "") if text is None else text
    if not number:
        return 0
    if not (number.isascii() and number.isdecimal() and int(number) <= MAX_DOMAIN):
        raise ConfigError(f"{number!r} is not a ROS domain: use a number from 0 to {MAX_DOMAIN}")
    return int(number)


def dds_type(ros_type: str) -> str:
    """``std_msgs::msg::dds_::String_`` of ``std_msgs/msg/String``."""
    package, kind, name = ros_type.split("/")
    return f"{package}::{kind}::dds_::{name}_"


def topic_key(domain: int, topic: str, ros_type: str, type_hash: str) -> str:
    """Key of a topic's messages; ``type_hash`` may be ``*``."""
    return f"{domain}/{topic.strip('/')}/{dds_type(ros_type)}/{type_hash}"


def attachment(number: int, time_ns: int, gid: bytes) -> bytes:
    """Attachment of a message: its number, from 1, its time, and the publisher's identity [16 bytes]."""
    return struct.pack("<qqB", number, time_ns, len(gid)) + gid


class RosNode:
    """Identity of this program in the graph. Tokens are held until `close`."""

    def __init__(self, session: Any, domain: int, name: str) -> None:
        self.session, self.domain, self._name = session, domain, name
        self._id, self._numbers = str(session.zid()), count(1)
        self._tokens = [session.liveliness().declare_token(f"@ros2_lv/{domain}/{self._id}/0/0/NN/%/%/{name}")]

    def declare(self, kind: str, topic: str, ros_type: str, type_hash: str, qos: RosQos) -> bytes:
        """Declare a publisher (``MP``) or subscription (``MS``); returns its identity."""
        token = (
            f"@ros2_lv/{self.domain}/{self._id}/0/{next(self._numbers)}/{kind}/%/%/{self._name}/"
            f"{topic.replace('/', '%')}/{dds_type(ros_type)}/{type_hash}/{qos.token()}"
        )
        self._tokens.append(self.session.liveliness().declare_token(token))
        return _gid(token)

    def close(self) -> None:
        """Leave the graph."""
        for token in self._tokens:
            token.undeclare()
        self._tokens = []


def zenoh_library() -> ModuleType:
    """The library zenoh. Raises ResourceError where it is not installed."""
    try:
        import xxhash  # noqa: F401  # which identities need
        import zenoh
        import zenoh.ext
    except ImportError as error:
        raise missing_library("zenoh", "eclipse-zenoh", "xxhash", "rosbags") from error
    return zenoh  # type: ignore[no-any-return,unused-ignore]


def open_session(endpoint: str) -> Any:
    """A zenoh session that connects to ``host:port`` and goes on trying; as rmw_zenoh's, it finds others by the router.

    Raises ConfigError: no such configuration or endpoint; ResourceError: the library is missing.
    """
    zenoh = zenoh_library()
    path = os.environ.get(CONFIG_VARIABLE)
    try:
        config = zenoh.Config.from_file(path) if path else zenoh.Config()
        settings = {
            "connect/endpoints": f'["{endpoint if "/" in endpoint else f"tcp/{endpoint}"}"]',
            "connect/timeout_ms": "0",
            "connect/exit_on_failure": "false",
            "listen/endpoints": '["tcp/localhost:0"]',
            "mode": '"peer"',
            "scouting/multicast/enabled": "false",
            "timestamping/enabled": "true",
        }
        for key, value in {} if path else settings.items():
            config.insert_json5(key, value)
        return zenoh.open(config)
    except zenoh.ZError as error:
        line = next(iter(str(error).splitlines()), "")[:200]
        raise ConfigError(f"zenoh cannot be started with {path or endpoint}: {line}") from error


def _gid(token: str) -> bytes:
    """Identity that rmw_zenoh computes from a liveliness token."""
    import xxhash

    return int(xxhash.xxh3_128(token.encode()).intdigest()).to_bytes(16, "little")
