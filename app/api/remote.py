"""A stream of images through the network of a server: the client of ``/v1/stream`` (docs/server.md)."""

import base64
import json
import ssl
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import cv2
import numpy as np
from numpy.typing import NDArray
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_socket

from stream_recon.app.api.camera import Camera
from stream_recon.app.core.types import FrameRevision, Intrinsics, Revision
from stream_recon.app.sources.images import NOMINAL_FPS, checked_image
from stream_recon.configs.errors import ConfigError, InputError, ResourceError

MAX_AGAIN = 16
"""Frames that are kept for another server; a stream holds fewer back."""
RETRY_SECONDS, CLOSE_SECONDS = 0.2, 2.0
"""Time between two attempts to connect again, and for the server to agree to the end."""


@dataclass(frozen=True)
class RemoteResult:
    """Pose, camera and depth of one frame; see `FrameResult`, whose names these are."""

    index: int
    timestamp: float  # seconds
    T_world_camera: NDArray[np.float64]  # [4, 4], camera to world
    intrinsics: Intrinsics
    segment: int
    is_keyframe: bool
    health: float | None
    state: str
    """``initialising``, ``tracking``, ``weak`` or ``lost``."""
    depth: NDArray[np.float32] | None
    """[h, w] along the optical axis; None: it was not asked for."""
    confidence: NDArray[np.float32] | None
    """[h, w], from 0 to 1."""


class RemoteStream:
    """A stream on a server; `connect` makes it. A context manager: the block's end finishes it.

    A cut connection is resumed within the time that the server allows: no image is lost, and no result comes twice. A
    server that does not know the session, such as one in the place of another, gets the images without a result again,
    and the stream goes on in a new segment.
    """

    def __init__(self, address: str, config: dict[str, Any], tls: ssl.SSLContext | None) -> None:
        self._address, self._config, self._tls = address, config, tls
        self._count = self._received = 0
        self._unanswered: deque[dict[str, Any]] = deque()
        """Messages that the server has neither acknowledged nor refused; the first one is on its way."""
        self._taken: deque[dict[str, Any]] = deque(maxlen=MAX_AGAIN)
        """Frames that it has taken, and that may come to have a result."""
        self._segment, self._first_segment, self._time = -1, 0, 0.0
        """Segment of the last result, that of the present session's first one, and the last result's time."""
        self._session, self._resume_s, self._is_over = "", 0.0, False
        self.name = ""
        """Name of the result, where the server keeps the images."""
        self._open()

    def push(self, image: NDArray[np.uint8] | bytes, timestamp: float | None = None) -> list[RemoteResult | Revision]:
        """Send the next image and wait until the network takes it; returns the results that have come, in order.

        Args:
            image: uint8 [H, W, 3], which is sent as JPEG, or a JPEG file's content; at most 2 MB.
            timestamp: seconds, above that of the image before; None: 1/30 s after it.

        Raises InputError: this image or its time, or those of the call before, are not valid; the stream goes on.
        ConfigError: the configuration is not. ResourceError: the server, its engine or the connection has ended.
        """
        if isinstance(image, np.ndarray | list | tuple):
            image = cv2.imencode(".jpg", checked_image(image)[:, :, ::-1])[1].tobytes()
        data = base64.b64encode(image).decode()
        self._count += 1
        return self._exchange({"type": "video.frame", "frame": self._count - 1, "time": timestamp, "data": data})

    def finish(self) -> list[RemoteResult | Revision]:
        """End the stream; returns what was still to come. A second call returns nothing."""
        items = [] if self._is_over else self._exchange({"type": "video.done"})
        self._close()
        return items

    def __enter__(self) -> "RemoteStream":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.finish()
        self._close()

    def _close(self) -> None:
        self._is_over = True
        self._socket.close()

    def _open(self) -> None:
        """Begin or resume the session. Raises OSError, WebSocketException; ConfigError, ResourceError."""
        resumed = {"type": "session.config", "session_id": self._session, "received": self._received}
        created = self._greet(resumed if self._session else self._config)
        if created.get("code") == "unknown_session":
            self._rewind()
            created = self._greet(self._config)
        if created["type"] == "error":
            raise _failure(created)
        self._session, self.name = created["session_id"], created.get("name", "")
        self._resume_s = created["resume_s"]
        # What the server did not get before a cut.
        if self._unanswered and self._unanswered[0].get("frame", self._count) > created["last_frame"]:
            self._send_first()

    def _greet(self, config: dict[str, Any]) -> dict[str, Any]:
        """Connect; gives the server's first answer."""
        self._socket: ClientConnection = connect_socket(
            self._address, ssl=self._tls, max_size=None, compression=None, close_timeout=CLOSE_SECONDS
        )
        self._socket.send(json.dumps(config))
        return dict(json.loads(self._socket.recv()))

    def _rewind(self) -> None:
        """Make ready for a new session."""
        self._socket.close()
        self._unanswered = self._taken + self._unanswered
        self._taken.clear()
        self._received, self._first_segment = 0, self._segment + 1
        if self._segment >= 0 and self._unanswered and self._unanswered[0].get("time", 0.0) is None:
            self._unanswered[0]["time"] = self._time + 1 / NOMINAL_FPS

    def _exchange(self, message: dict[str, Any]) -> list[RemoteResult | Revision]:
        """Send a message; returns what came until it is answered."""
        if self._is_over:
            raise InputError("the stream is finished: connect again")
        self._unanswered.append(message)
        if len(self._unanswered) == 1:
            self._send_first()
        items: list[RemoteResult | Revision] = []
        while self._unanswered and not self._is_over:
            items += self._next()
        return items

    def _send_first(self) -> None:
        with suppress(ConnectionClosed, OSError):  # sent again once the next answer is waited for
            self._socket.send(json.dumps({**self._unanswered[0], "received": self._received}))

    def _next(self) -> list[RemoteResult | Revision]:
        """Take the server's next message."""
        try:
            message = json.loads(self._socket.recv())
        except (ConnectionClosed, OSError):
            self._resume()
            return []
        if message.get("seq", 0) <= self._received and "seq" in message:
            return []
        self._received = message.get("seq", self._received)
        if message["type"] == "result":
            self._segment = message["segment"] = self._first_segment + message["segment"]
            self._time = message["time"]
            while self._taken and self._taken[0]["frame"] <= message["frame"]:
                self._taken.popleft()
            return [_result(message)]
        if message["type"] == "revision":
            return [Revision(tuple(map(_revised, message["frames"])))]
        if self._unanswered and message.get("frame", -1) == self._unanswered[0].get("frame"):
            self._taken.append(self._unanswered.popleft())
            if self._unanswered:
                self._send_first()
        self._is_over = message["type"] == "session.done" or message.get("code", "invalid_frame") != "invalid_frame"
        if message["type"] == "error":
            if self._taken and self._taken[-1]["frame"] == message.get("frame"):
                self._taken.pop()
            raise _failure(message)
        return []

    def _resume(self) -> None:
        """Connect again after a cut. Raises ResourceError where that takes too long."""
        ends = time.monotonic() + self._resume_s
        while True:
            try:
                return self._open()
            except (OSError, WebSocketException) as error:
                if time.monotonic() > ends:
                    raise ResourceError(f"the connection is cut: {error}") from error
                time.sleep(RETRY_SECONDS)


def connect(
    url: str,
    camera: Camera | None = None,
    mapping: Literal["stream", "off"] = "stream",
    include: Collection[Literal["depth", "confidence"]] = (),
    tls: ssl.SSLContext | None = None,
    keep: str | None = None,
) -> RemoteStream:
    """A stream of images on a server (``stream-recon serve``), which a cut connection does not end.

    Args:
        url: the address that the server printed, with its token.
        camera: the images' known camera; None: it is estimated.
        mapping: ``stream``: poses of the SLAM back end, which are revised later; ``off``: those of the network.
        include: arrays that results have.
        tls: for a certificate that this machine does not know.
        keep: name of a result: the server keeps the images and reconstructs them in a job; ``camera``, ``mapping`` and
            ``include`` do not go with it.

    Raises ConfigError: no server's address, or it refuses the token or an argument; ResourceError: no server, or it has
    no room.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is no address: give the one that stream-recon serve printed")
    address = parts._replace(scheme=parts.scheme.replace("http", "ws"), path=f"{parts.path.rstrip('/')}/v1/stream")
    config: dict[str, Any] = {"type": "session.config"} | ({} if keep is None else {"keep": keep})
    if keep is None or mapping != "stream" or include:
        config |= {"mapping": mapping, "include": list(include)}
    if camera is not None:
        config["camera"] = {name: getattr(camera, name) for name in Camera.__annotations__}
        config["camera"]["distortion"] = [float(value) for value in camera.distortion]
    try:
        return RemoteStream(address.geturl(), config, tls)
    except InvalidStatus as error:
        kind = ResourceError if error.response.status_code == 429 else ConfigError
        raise kind(f"the server refuses the connection ({error.response.status_code})") from error
    except (OSError, WebSocketException) as error:
        raise ResourceError(f"no server answers at {parts.hostname}: {error}") from error


def _failure(message: dict[str, Any]) -> Exception:
    kinds = {"invalid_config": ConfigError, "invalid_frame": InputError}
    return kinds.get(message["code"], ResourceError)(f"the server says: {message['message']}")


def _array(message: dict[str, Any] | None, kind: type[np.floating[Any]]) -> Any:
    """An array of a message, of a type; None: it has none."""
    if message is None:
        return None
    return np.frombuffer(base64.b64decode(message["data"]), "<f2").reshape(message["shape"]).astype(kind)


def _result(message: dict[str, Any]) -> RemoteResult:
    return RemoteResult(
        index=message["frame"],
        timestamp=message["time"],
        T_world_camera=np.array(message["pose"], np.float64),
        intrinsics=Intrinsics(**message["intrinsics"]),
        segment=message["segment"],
        is_keyframe=message["keyframe"],
        health=message["health"],
        state=message["state"],
        depth=_array(message.get("depth"), np.float32),
        confidence=_array(message.get("confidence"), np.float32),
    )


def _revised(message: dict[str, Any]) -> FrameRevision:
    camera = message.get("intrinsics")
    return FrameRevision(
        message["frame"],
        np.array(message["pose"], np.float64),
        message["depth_scale"],
        None if camera is None else Intrinsics(**camera),
        _array(message.get("depth_field"), np.float16),
    )
