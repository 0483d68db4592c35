"""Sessions of ``/v1/stream``: frames by web socket, results in order, and a resume after a cut.

What a session tells has numbers and is kept until the client confirms it. One frame is with the engine and one waits,
which a newer one replaces: a frame is acknowledged when it goes to the engine, or is dropped.

Where the engine dies, or does not answer in time, another one is started. It gets the frames without a result again,
and sessions go on in a new segment. Frames that the dead one was at work on are tried one session at a time: one that
kills engines is found.
"""

import asyncio
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, TypeGuard

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from stream_recon.app.sources.images import NOMINAL_FPS
from stream_recon.app.viewer.guard import RateLimiter
from stream_recon.app.web.engine_process import EngineProcess, Message
from stream_recon.app.web.limits import RETRY, SLOW_START, WebLimits
from stream_recon.app.web.monitoring import ServerMetrics
from stream_recon.configs.errors import StreamReconError

CONFIG_SECONDS = 15.0
"""Time for the first message."""
LARGEST_FRAME = 2**53
MAX_AGAIN = 16
"""Frames that are kept for another engine; a stream holds fewer back."""
MAX_SESSION_LOSSES, MAX_LOSSES = 1, 8
"""Engines that may die at work on a session without a result of it in between, and at all without any result."""
FRAME = ("type", "frame", "time", "format", "width", "height", "data")
"""Keys of a frame."""

log = logging.getLogger(__name__)


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
        if not _is_number(number, self.confirmed + len(self.told) + 1):
            raise ProtocolError("invalid_message", "received is the seq of the last message that came")
        while self.told and self.confirmed < number:
            self.told_bytes -= len(self.told.popleft())
            self.confirmed += 1


class Sessions:
    """All sessions of the server. Used from its event loop."""

    def __init__(self, program: Sequence[str], metrics: ServerMetrics, limits: WebLimits) -> None:
        """``program``: the command of the engine."""
        self._metrics, self._limits = metrics, limits
        self._sessions: dict[str, StreamSession] = {}
        self._trials: list[StreamSession] = []
        """Those that an engine died with. The first one has the new engine to itself."""
        self._losses = 0
        """Engines that died since the last result."""
        self._restart: asyncio.Task[None] | None = None
        self._has_results = False
        self.engine = EngineProcess(program, self._hear, self._lose)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def waiting(self) -> int:
        """Frames that wait for the engine."""
        return sum(session.waiting is not None for session in self._sessions.values())

    async def stream(self, socket: WebSocket) -> None:
        """The web socket ``/v1/stream``."""
        await socket.accept()
        session, sender, rate = None, None, RateLimiter()
        try:
            session = await self._admit(socket)
            sender = asyncio.create_task(_send(session, socket))
            while True:
                message = await _next(socket)
                self._take(session, message)
                await asyncio.sleep(rate.next_wait_s())
        except (ProtocolError, TimeoutError) as error:
            code = getattr(error, "code", "timeout")
            self._metrics.count("refusals_total", code=code)
            retry = {"retry_after": int(RETRY["Retry-After"])} if code == "busy" else {}
            with suppress(RuntimeError, WebSocketDisconnect):
                await socket.send_text(
                    json.dumps({"type": "error", "code": code, "message": str(error) or "nothing came", **retry})
                )
                await socket.close(1013 if retry else 1008)
        except (WebSocketDisconnect, RuntimeError) as error:  # RuntimeError: another connection took the session over
            if session is not None and session.socket is socket and getattr(error, "code", 1006) == 1000:
                self._end(session, "closed")
        finally:
            if sender is not None:
                sender.cancel()
            if session is not None and session.socket is socket:
                session.socket, session.came = None, time.monotonic()

    async def close_idle(self) -> None:
        """End the sessions that nobody resumed, or uses; and the engine without any."""
        now = time.monotonic()
        for session in list(self._sessions.values()):
            is_left = session.socket is None or session.is_over
            if now - session.came > (self._limits.resume_s if is_left else self._limits.scan_idle_s):
                self._end(session, "left")
                if session.socket is not None:
                    with suppress(RuntimeError, WebSocketDisconnect):
                        await session.socket.close(1001)
        if not self._sessions:
            await self.engine.close_idle(self._limits.viewer_idle_s)

    def check_engine(self) -> None:
        """Replace an engine that owes answers and says nothing, or answers other sessions alone."""
        now, short_s, long_s = time.monotonic(), self._limits.engine_s, self._limits.engine_s * SLOW_START
        for session in self._sessions.values():
            is_quick = session.engine == "busy" and self._has_results
            limit_s = short_s if is_quick and now - self.engine.heard > short_s else long_s
            is_asked = session.engine in ("begun", "busy") and not session.is_over
            if is_asked and now - session.asked > limit_s:
                self.engine.give_up(f"the engine has not answered for {limit_s:g} s")
                break

    async def _admit(self, socket: WebSocket) -> StreamSession:
        """The session that the first message begins or resumes. Raises ProtocolError."""
        config = await asyncio.wait_for(_next(socket), CONFIG_SECONDS)
        if config["type"] != "session.config":
            raise ProtocolError("invalid_message", "the first message is session.config")
        if "session_id" in config:
            session = self._sessions.get(str(config["session_id"]))
            if session is None:
                raise ProtocolError("unknown_session", "there is no such session, or it was cut for too long")
            session.confirm(config.get("received"))
            earlier, session.socket = session.socket, socket
            if earlier is not None:
                with suppress(RuntimeError, WebSocketDisconnect):
                    await earlier.close(1008)
            self._metrics.count("session_resumes_total")
        else:
            session = await self._begin(config)
            session.socket = socket
        log.info("session begins or goes on", extra={"session": session.id})
        created = {"session_id": session.id, "resume_s": self._limits.resume_s, "last_frame": session.last_frame}
        await socket.send_text(json.dumps({"type": "session.created", **created}))
        return session

    async def _begin(self, config: Message) -> StreamSession:
        if len(self._sessions) >= self._limits.sessions:
            raise ProtocolError("busy", f"{self._limits.sessions} sessions are open")
        session = StreamSession(secrets.token_hex(16), config)
        self._sessions[session.id] = session
        try:
            await self.engine.start()
        except OSError as error:
            del self._sessions[session.id]
            raise ProtocolError("busy", f"the engine cannot be started: {error.strerror}") from error
        self._metrics.count("sessions_total")
        self._introduce(session)
        return session

    def _introduce(self, session: StreamSession) -> None:
        """Make a session known to the engine."""
        if not session.engine and not session.is_over:
            session.engine, session.asked = "begun", time.monotonic()
            self.engine.send({**session.config, "session": session.id})

    def _take(self, session: StreamSession, message: Message) -> None:
        """Carry out a client's message. Raises ProtocolError."""
        session.came = time.monotonic()
        if "received" in message:
            session.confirm(message["received"])
        if message["type"] == "video.frame":
            if len(session.told) > self._limits.unread or session.told_bytes > self._limits.unread_bytes:
                raise ProtocolError("unread", "too many messages are not confirmed: say what was received")
            self._take_frame(session, message)
        elif message["type"] == "video.done":
            session.is_finishing = True
        elif message["type"] != "session.received":
            raise ProtocolError("invalid_message", "send video.frame, session.received or video.done")
        self._feed(session)

    def _take_frame(self, session: StreamSession, message: Message) -> None:
        number = message.get("frame")
        if not _is_number(number, LARGEST_FRAME):
            raise ProtocolError("invalid_message", "each frame has a number, larger than that of the frame before")
        if number <= session.last_frame or session.is_finishing or session.is_over:
            return  # sent again after a resume
        session.last_frame = number
        if session.waiting is not None:
            self._acknowledge(session, session.waiting, "dropped")
            session.dropped += 1
        # The engine looks at what they are.
        session.waiting = {"came": session.came, **{key: message[key] for key in FRAME if key in message}}

    def _feed(self, session: StreamSession) -> None:
        """Give the engine what waits, if it asks for it."""
        if session.engine != "ready" or (self._trials and self._trials[0] is not session):
            return
        if session.again:
            message = session.again.popleft()
        elif session.waiting is not None:
            message, session.waiting = session.waiting, None
            self._acknowledge(session, message, "taken")
            session.frames += 1
        elif session.is_finishing:
            message = {"type": "video.done"}
        else:
            return
        if message["type"] == "video.frame":
            if message.get("time") is None and session.next_time is not None:
                message["time"] = session.next_time
            session.next_time = None
            session.taken.append(message)
        session.engine, session.asked = "busy", time.monotonic()
        self.engine.send({**message, "session": session.id})

    def _end_trial(self, session: StreamSession) -> None:
        """Go on with the other sessions, if they wait for this one."""
        if session in self._trials:
            self._trials.remove(session)
            for each in self._sessions.values():
                self._feed(each)

    def _acknowledge(self, session: StreamSession, frame: Message, state: str) -> None:
        session.tell({"type": "video.ack", "frame": frame["frame"], "state": state})
        self._metrics.count("frames_total", state=state)
        self._metrics.observe("ack_seconds", time.monotonic() - frame["came"])

    def _hear(self, message: Message) -> None:
        """Take what the engine says of a session."""
        session = self._sessions.get(message.pop("session"))
        if session is None or session.is_over:
            return
        session.asked = time.monotonic()
        if message["type"] == "ready":
            session.engine = "ready"
            if not session.again and not session.is_finishing:
                self._end_trial(session)
            self._feed(session)
            return
        number = message.get("frame", -1)
        if message["type"] == "session.done":
            message |= {"frames": session.frames, "dropped": session.dropped}
        elif message["type"] == "error":
            self._metrics.count("refusals_total", code=message["code"])
            if message["code"] == "invalid_frame":
                session.frames -= 1
                session.taken.pop()
        self._metrics.count("messages_total", type=message["type"])
        if message["type"] == "result":
            self._losses = session.losses = 0
            self._has_results = True
            session.last_time = message["time"]
            session.segment = message["segment"] = session.first_segment + message["segment"]
            while session.taken and session.taken[0]["frame"] <= number:
                frame = session.taken.popleft()
                if frame["frame"] == number:
                    self._metrics.observe("result_seconds", time.monotonic() - frame["came"])
        session.is_over = message["type"] == "session.done" or message.get("code", "invalid_frame") != "invalid_frame"
        session.tell(message)
        if session.is_over:
            self._end_trial(session)

    def _lose(self, reason: str, has_worked: bool) -> None:
        """Go on with another engine. One that never worked would do so again, and sessions are told."""
        log.error("%s", reason)
        self._metrics.count("engine_losses_total")
        self._losses += 1
        is_hopeless = not has_worked or self._losses > MAX_LOSSES
        known, suspects = [each for each in self._sessions.values() if each.engine], self._trials
        self._trials = []
        for session in known:
            is_busy, session.engine = session.engine == "busy", ""
            session.losses += is_busy
            session.rewind()
            if is_hopeless or session.losses > MAX_SESSION_LOSSES:
                self._fail(session, reason)
            elif (is_busy or session in suspects) and (session.again or session.is_finishing) and not session.is_over:
                self._trials.append(session)
        if known and not is_hopeless:
            self._restart = asyncio.create_task(self._start_again())

    async def _start_again(self) -> None:
        try:
            await self.engine.start()
        except OSError as error:
            for session in list(self._sessions.values()):
                self._fail(session, f"the engine cannot be started: {error.strerror}")
        for session in list(self._sessions.values()):
            self._introduce(session)

    def _fail(self, session: StreamSession, reason: str) -> None:
        self._hear({"type": "error", "code": "engine_failed", "message": reason, "session": session.id})

    def _end(self, session: StreamSession, reason: str) -> None:
        log.info("session ended: %s", reason, extra={"session": session.id})
        self._sessions.pop(session.id, None)
        self._end_trial(session)
        if session.engine:
            self.engine.send({"type": "session.close", "session": session.id})


async def _send(session: StreamSession, socket: WebSocket) -> None:
    """Send what a session tells, from the first message that its client does not have."""
    sent = session.confirmed
    with suppress(RuntimeError, WebSocketDisconnect):  # the receiving side sees the end, too
        while True:
            session.news.clear()
            while (at := max(sent, session.confirmed) - session.confirmed) < len(session.told):
                sent = session.confirmed + at + 1
                await socket.send_text(session.told[at])
            await session.news.wait()


async def _next(socket: WebSocket) -> Message:
    """A client's next message. Raises ProtocolError, WebSocketDisconnect."""
    try:
        message = msgspec.json.decode(await socket.receive_text())
    except (msgspec.MsgspecError, RecursionError, UnicodeError, KeyError) as error:
        raise ProtocolError("invalid_message", "a message is a JSON object in a text frame") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError("invalid_message", "a message is a JSON object with a type")
    return message


def _is_number(value: object, limit: int) -> TypeGuard[int]:
    """Whether a value of JSON is an integer from 0 to below ``limit``."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit
