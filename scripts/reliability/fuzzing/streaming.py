"""Cases of sessions of frames: clients that mean harm, next to one whose frames all have their results, once."""

import base64
import json
import random
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from starlette.websockets import WebSocketDisconnect

from fuzzing.mutate import WORDS, broken_text
from stream_recon.app.web.limits import WebLimits
from tests.app.web.fake_session_engine import DEADLY, UNWANTED
from tests.app.web.serving import served
from tests.app.web.test_sessions import ADDRESS, begin, figure, heard, picture, send, until

STEPS = 25
KINDS = ("session.config", "video.frame", "video.done", "session.received", "session.close", "ready", "result", "")
KEYS = ("frame", "time", "data", "format", "width", "height", "received", "session", "session_id", "seq", "camera")
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 7, 2.5, 1e300, 2**64, "jpeg", "rgb", "=" * 5, [], {}, [[]], {"fx": 1}, *WORDS[:-1],
    base64.b64encode(bytes(range(256))).decode(), picture(), picture(UNWANTED), picture(DEADLY),
)  # fmt: skip
ENDS = {"error", "session.done"}


def stream(folder: Path, source: Path, draw: random.Random) -> None:
    """Send sessions what no client sends. None of it reaches the session of another client."""
    limits = WebLimits(sessions=4, sockets=8, unread=draw.choice((5, 1000)))
    with served(folder / "data", limits=limits) as client, ExitStack() as stack:
        honest = stack.enter_context(client.websocket_connect(ADDRESS))
        begin(honest, mapping=draw.choice(("off", "stream", "stream", "stream")))  # off: a step is long
        told, sockets, frame = list[dict[str, Any]](), list[Any](), 0
        for _ in range(STEPS):
            match draw.randrange(5):
                case 0 if len(sockets) < 6:
                    sockets.append(stack.enter_context(client.websocket_connect(ADDRESS)))
                    key = draw.choice(("camera", "include", "preset", "mapping", "session_id", "keep"))
                    config = {key: draw.choice(VALUES)}
                    sockets[-1].send_json({"type": "session.config", **(config if draw.random() < 0.3 else {})})
                case 1 if sockets:
                    sockets.pop(draw.randrange(len(sockets))).close(draw.choice((1000, 1001, 1011)))
                case 2:
                    send(honest, frame, received=told[-1]["seq"] if told else 0)
                    for socket in draw.sample(sockets, min(2, len(sockets))):
                        _say(socket, draw)
                    told += until(honest, "result", frame=frame)
                    frame += draw.randrange(1, 4)
                case _ if sockets:
                    _say(draw.choice(sockets), draw)
        for socket in sockets:
            socket.send_json({"type": "session.config"})  # refused, if nothing was before
            with suppress(WebSocketDisconnect):
                while heard(socket)["type"] not in ENDS:
                    pass
        send(honest, frame)
        honest.send_json({"type": "video.done"})
        told += until(honest, "session.done")
        assert [each["seq"] for each in told] == list(range(1, len(told) + 1))
        assert {each["type"] for each in told} <= {"video.ack", "result", "revision", "session.done"}, told
        for kind in ("video.ack", "result"):
            counts = Counter(each["frame"] for each in told if each["type"] == kind)
            assert set(counts.values()) == {1} and list(counts) == sorted(counts) and frame in counts, counts
        assert figure(client, "sessions") <= limits.sessions


def _say(socket: Any, draw: random.Random) -> None:
    message = {"type": draw.choice(KINDS if draw.random() < 0.3 else ("video.frame",)), "frame": draw.randrange(99)}
    message |= {draw.choice(KEYS): draw.choice(VALUES) for _ in range(draw.randrange(3))}
    message["data"] = draw.choice((picture(), picture(), picture(DEADLY), message.get("data")))
    text = json.dumps(message)
    with suppress(WebSocketDisconnect, RuntimeError):
        match draw.randrange(8):
            case 0:
                socket.send_text(broken_text(text, draw))
            case 1:
                socket.send_bytes(text.encode())
            case _:
                socket.send_text(text)
