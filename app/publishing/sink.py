"""Interface of what sends or records messages."""

from collections.abc import Callable
from typing import Protocol

from stream_recon.app.publishing.messages import Message, Topic


class Sink(Protocol):
    """Receiver of messages. Only `wants` and `send` are called often, from one thread; no call waits for a peer."""

    lossless: bool
    """Whether it takes every message, as a file does; the run then waits for it. Else slow peers miss bulky ones."""

    @property
    def address(self) -> str:
        """Where it publishes to, for the user."""

    def start(self, wake: Callable[[], None]) -> None:
        """Begin; ``wake`` is to be called, from any thread, when a peer joins."""
        return

    def wants(self, topic: Topic) -> bool:
        """Whether anybody listens to a topic, so that its messages are worth making."""
        return True

    def joined(self) -> frozenset[Topic]:
        """Topics that a peer has joined since the last call."""
        return frozenset()

    def send(self, topic: Topic, message: Message) -> None:
        """Encode and send a message. Raises StreamReconError where it cannot go on."""

    def close(self) -> None:
        """Stop; what was sent so far is delivered or dropped. May be called more than once."""
