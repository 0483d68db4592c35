"""Peers for tests: a router and a plain zenoh subscriber, and a client of Foxglove, all without ROS."""

import json
import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

# Where pyzeros compiles its types; otherwise in the current folder.
os.environ.setdefault("CYDR_CACHE_DIR", os.path.join(tempfile.gettempdir(), "stream-recon-tests-cydr"))  # noqa: PTH118


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


WAIT_S = 60.0
"""Bound of each wait: a busy machine is slow, and what comes ends the wait."""


def eventually(check: Callable[[], Any], timeout_s: float = WAIT_S) -> bool:
    """Whether a condition becomes true within the time."""
    deadline = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _config(mode: str, **endpoints: str) -> Any:
    import zenoh

    lists = ",".join(f'{kind}:{{endpoints:["tcp/{place}"]}}' for kind, place in endpoints.items())
    return zenoh.Config.from_json5(f'{{mode:"{mode}",scouting:{{multicast:{{enabled:false}}}},{lists}}}')


@contextmanager
def router() -> Iterator[str]:
    """A zenoh router as robots have it; gives its endpoint."""
    import zenoh

    endpoint = f"127.0.0.1:{free_port()}"
    with zenoh.open(_config("router", listen=endpoint)):
        yield endpoint


@contextmanager
def session(endpoint: str) -> Iterator[Any]:
    """A session of another program, connected to a router."""
    import zenoh

    with zenoh.open(_config("peer", listen="127.0.0.1:0", connect=endpoint)) as opened:
        yield opened


class PlainSubscriber:
    """Subscribes to keys by zenoh alone; keeps key, payload and attachment of each message."""

    def __init__(self, opened: Any, key: str) -> None:
        self.samples: list[tuple[str, bytes, bytes]] = []
        self._subscriber = opened.declare_subscriber(key, self._take)

    def _take(self, sample: Any) -> None:
        self.samples.append((str(sample.key_expr), sample.payload.to_bytes(), sample.attachment.to_bytes()))

    def of(self, topic: str) -> list[tuple[str, bytes, bytes]]:
        """The samples of a ROS topic of domain 0."""
        return [sample for sample in list(self.samples) if sample[0].startswith(f"0{topic}/")]


class FoxgloveClient:
    """A client by the WebSocket protocol."""

    def __init__(self, url: str, subprotocol: str = "foxglove.sdk.v1", **options: Any) -> None:
        self.connection: ClientConnection = connect(
            url, subprotocols=[subprotocol], max_size=None, open_timeout=WAIT_S, **options
        )  # type: ignore[list-item]
        self.info = json.loads(self.connection.recv(WAIT_S))
        self.channels = {each["topic"]: each for each in json.loads(self.connection.recv(WAIT_S))["channels"]}

    def subscribe(self, *topics: str) -> None:
        wanted = [{"id": 100 + self.channels[t]["id"], "channelId": self.channels[t]["id"]} for t in topics]
        self.connection.send(json.dumps({"op": "subscribe", "subscriptions": wanted}))

    def receive(self, timeout_s: float = WAIT_S) -> tuple[str, int, bytes]:
        """Topic, stamp and payload of the next message."""
        data = self.connection.recv(timeout_s)
        assert isinstance(data, bytes)
        opcode, number, stamp = struct.unpack("<BIQ", data[:13])
        assert opcode == 1
        return next(t for t, each in self.channels.items() if each["id"] == number - 100), stamp, data[13:]

    def close(self) -> None:
        self.connection.close()
