"""Sessions of ``/v1/stream``: frames by web socket, results in order, and a resume after a cut.

What a session tells has numbers and is kept until the client confirms it. One frame is with the engine and one waits,
which a newer one replaces: a frame is acknowledged when it goes to the engine, or is dropped.

Where the engine dies, or does not answer in time, another one is started. It gets the frames without a result again,
and sessions go on in a new segment. Frames that the dead one was at work on are tried one session at a time: one that
kills engines is found.

The engine of a session whose frames are kept is a run of its own; see `Scans`.
"""

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from stream_recon.app.viewer.guard import RateLimiter
from stream_recon.app.web.engine_process import EngineProcess, Message
from stream_recon.app.web.limits import RETRY, SLOW_START, USER, NoRoomError, WebLimits, check_share
from stream_recon.app.web.monitoring import ServerMetrics
from stream_recon.app.web.scans import Scans
from stream_recon.app.web.stream_session import ProtocolError, StreamSession, is_number
from stream_recon.configs.errors import ConfigError, StreamReconError

CONFIG_SECONDS = 15.0
"""Time for the first message."""
LARGEST_FRAME = 2**53
MAX_SESSION_LOSSES, MAX_LOSSES = 1, 8
"""Engines that may die at work on a session without a result of it in between, and at all without any result."""
FRAME = ("type", "frame", "time", "format", "width", "height", "data")
"""Keys of a frame."""

log = logging.getLogger(__name__)


class Sessions:
    """All sessions of the server. Used from its event loop."""

    def __init__(self, program: Sequence[str], scans: Scans, metrics: ServerMetrics, limits: WebLimits) -> None:
        """``program``: the command of the engine."""
        self._scans, self._metrics, self._limits = scans, metrics, limits
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
            if now - session.came > (session.resume_s if is_left else self._limits.scan_idle_s):
                self._end(session, "left")
                if session.socket is not None:
                    with suppress(RuntimeError, WebSocketDisconnect):
                        await session.socket.close(1001)
        if not self._sessions:
            await self.engine.close_idle(self._limits.viewer_idle_s)

    async def close(self) -> None:
        self._scans.close()
        await self.engine.close()

    def check_engine(self) -> None:
        """Replace an engine that owes answers and says nothing, or answers other sessions alone."""
        now, short_s, long_s = time.monotonic(), self._limits.engine_s, self._limits.engine_s * SLOW_START
        for session in self._sessions.values():
            is_quick = session.engine == "busy" and self._has_results and not session.kept
            limit_s = short_s if is_quick and now - self.engine.heard > short_s else long_s
            is_asked = session.engine in ("begun", "busy") and not session.is_over
            if is_asked and now - session.asked > limit_s:
                reason = f"the engine has not answered for {limit_s:g} s"
                if session.kept:
                    self._fail(session, reason)
                else:
                    self.engine.give_up(reason)
                    break

    async def _admit(self, socket: WebSocket) -> StreamSession:
        """The session that the first message begins or resumes. Raises ProtocolError."""
        config = await asyncio.wait_for(_next(socket), CONFIG_SECONDS)
        if config["type"] != "session.config":
            raise ProtocolError("invalid_message", "the first message is session.config")
        if "session_id" in config:
            session = self._sessions.get(str(config["session_id"]))
            if session is None or session.user != USER.get():
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
        log.info("session begins or goes on", extra={"session": session.id, "user": session.user})
        created = {"session_id": session.id, "resume_s": session.resume_s, "last_frame": session.last_frame}
        await socket.send_text(json.dumps({"type": "session.created", **created, **session.kept}))
        return session

    async def _begin(self, config: Message) -> StreamSession:
        if len(self._sessions) >= self._limits.sessions:
            raise ProtocolError("busy", f"{self._limits.sessions} sessions are open")
        keeps = "keep" in config
        session = StreamSession(
            secrets.token_hex(16), config, self._limits.scan_idle_s if keeps else self._limits.resume_s
        )
        limit = self._limits.scans if keeps else self._limits.sessions
        try:
            mine = [each for each in self._sessions.values() if each.user == session.user]
            check_share(sum(bool(each.kept) or not keeps for each in mine), limit, "sessions")
            self._sessions[session.id] = session
            if keeps:
                session.kept = await self._scans.begin(session.id, config, self._hear)
            else:
                await self.engine.start()
        except (OSError, StreamReconError) as error:
            self._sessions.pop(session.id, None)
            is_full = isinstance(error, NoRoomError) or (keeps and isinstance(error, OSError))
            code = "invalid_config" if isinstance(error, ConfigError) else "no_room" if is_full else "busy"
            raise ProtocolError(code, f"the session cannot begin: {error}") from error
        self._metrics.count("sessions_total")
        self._introduce(session)
        return session

    def _introduce(self, session: StreamSession) -> None:
        """Make a session known to the engine."""
        if not session.engine and not session.is_over:
            session.engine, session.asked = "begun", time.monotonic()
            if not session.kept:
                self._engine_of(session).send({**session.config, "session": session.id})

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
        if not is_number(number, LARGEST_FRAME):
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
        is_barred = self._trials and self._trials[0] is not session and not session.kept
        if session.engine != "ready" or is_barred:
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
        self._engine_of(session).send({**message, "session": session.id})

    def _engine_of(self, session: StreamSession) -> EngineProcess | Scans:
        return self._scans if session.kept else self.engine

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
            session.losses = 0
            self._losses *= bool(session.kept)  # a run of its own tells nothing of the engine
            self._has_results |= not session.kept
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
        known = [each for each in self._sessions.values() if each.engine and not each.kept]
        suspects = self._trials
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
                if not session.kept:
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
            self._engine_of(session).send({"type": "session.close", "session": session.id})


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
