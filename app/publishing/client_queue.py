"""Messages that wait for one client of a server."""

from collections import deque

from stream_recon.app.publishing.messages import BULKY, Topic

MAX_SMALL = 1000
"""Small messages, such as poses, that wait for a client; beyond it the oldest are dropped."""


class ClientQueue:
    """Of bulky topics only the newest message waits; poses wait in order."""

    def __init__(self) -> None:
        self.dropped = 0
        """Messages that were dropped because the client did not keep up."""
        self._small: deque[tuple[Topic, int, bytes]] = deque()
        self._bulky: dict[Topic, tuple[int, bytes]] = {}

    def __len__(self) -> int:
        return len(self._small) + len(self._bulky)

    def put(self, topic: Topic, stamp_ns: int, data: bytes) -> None:
        """Add a message."""
        if topic in BULKY:
            self.dropped += topic in self._bulky
            self._bulky[topic] = stamp_ns, data
            return
        self._small.append((topic, stamp_ns, data))
        if len(self._small) > MAX_SMALL:
            self._small.popleft()
            self.dropped += 1

    def take(self) -> tuple[Topic, int, bytes] | None:
        """Remove the next message: poses first, so that clouds never delay them."""
        if self._small:
            return self._small.popleft()
        if self._bulky:
            topic = next(iter(self._bulky))
            return (topic, *self._bulky.pop(topic))
        return None
