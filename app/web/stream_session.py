"""A session of ``/v1/stream``: what its client sent and confirmed, and what it is told."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Literal, TypeGuard

import msgspec
from starlette.websockets import WebSocket

from stream_recon.app.sources.images import NOMINAL_FPS
from stream_recon.app.web.engine_process import Message
from stream_recon.app.web.limits import USER
from stream_recon.configs.errors import StreamReconError

MAX_AGAIN = 16
"""Frames that are kept for another engine; a stream holds fewer back."""


class ProtocolError(StreamReconError):
    """Ends a connection by a code of the protocol; the session can be resumed."""

    def __init__(self, code: str, line: str) -> None:
        super().__init__(line)
        self.code = code


@dataclass
class StreamSession:
    """A session, with or without a connection."""

    id: str
    config: Message
    resume_s: float
    """Time within which it can be resumed."""
    user: str = field(default_factory=USER.get)
    kept: Message = field(default_factory=dict)
    """Job and name of the result, where its frames are kept."""
    socket: WebSocket | None = None
    came: float = field(default_factory=time.monotonic)
    """Time of its last message, or of the cut of its connection."""
    last_frame: int = -1
    """Number of the last frame that came."""
    waiting: Message | None = None
    engine: Literal["", "begun", "ready", "busy"] = ""
    """What the engine does: it does not know the session, knows it, asks for a message, has one."""
    asked: float = 0.0
    """When it got the session's last message, or said something of it."""
    taken: deque[Message] = field(default_factory=lambda: deque(maxlen=MAX_AGAIN))
    """Frames that went to the engine, without those before the last result."""
    again: deque[Message] = field(default_factory=deque)
    """Frames that go to it once more."""
    losses: int = 0
    """Engines that died at work on the session since its last result."""
    segment: int = -1
    """Segment of the last result."""
    first_segment: int = 0
    """That of the present engine's first one."""
    last_time: float | None = None
    next_time: float | None = None
    """Time of the next frame if it has none."""
    is_finishing: bool = False
    """No frame follows."""
    is_over: bool = False
    """The engine has told the last of it."""
    confirmed: int = 0
    """Number of the last message that the client has."""
    told: deque[str] = field(default_factory=deque)
    """The messages after it."""
    told_bytes: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    frames: int = 0
    dropped: int = 0

    def tell(self, message: Message) -> None:
        """Send a message, at once or after the next resume."""
        text = msgspec.json.encode({**message, "seq": self.confirmed + len(self.told) + 1}).decode()
        self.told.append(text)
        self.told_bytes += len(text)
        self.news.set()

    def rewind(self) -> None:
        """Make it ready for another engine."""
        self.again = self.taken + self.again
        self.taken.clear()
        self.first_segment = self.segment + 1
        self.next_time = None if self.last_time is None else self.last_time + 1 / NOMINAL_FPS

    def confirm(self, number: object) -> None:
        """Forget the messages that the client has, up to ``number``. Raises ProtocolError."""
        if not is_number(number, self.confirmed + len(self.told) + 1):
            raise ProtocolError("invalid_message", "received is the seq of the last message that came")
        while self.told and self.confirmed < number:
            self.told_bytes -= len(self.told.popleft())
            self.confirmed += 1


def is_number(value: object, limit: int) -> TypeGuard[int]:
    """Whether a value of JSON is an integer from 0 to below ``limit``."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit
