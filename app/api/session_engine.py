"""Engine process of a server: sessions of frames through one network, in lines of JSON on stdin and stdout.

A line is a message of the protocol (docs/server.md) with its ``session``. ``ready`` asks for a session's next message,
and ``session.close`` forgets one.
"""

import base64
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import cv2
import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from stream_recon.app.api.camera import Camera
from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.core.depth_points import confidence_levels
from stream_recon.app.core.types import FrameResult, FrameRevision, Revision
from stream_recon.app.publishing.tracking_state import TrackingState, result_message
from stream_recon.app.web.scans import checked_config, frame_data, jpeg_size
from stream_recon.configs.errors import ConfigError, InputError, StreamReconError

if TYPE_CHECKING:
    from stream_recon.app.api.model import Model
    from stream_recon.app.api.stream import Stream

Message = dict[str, Any]
PRESET = "small"
"""The network with weights of its own."""
CONFIG = ("camera", "include", "mapping", "preset")
INCLUDED = ("depth", "confidence")
"""Arrays that a session may ask for."""


class EngineSession:
    """One session in a thread of its own."""

    def __init__(self, number: str, model: "Model", say: Callable[[Message], None]) -> None:
        self._model, self._include = model, list[str]()
        self._say: Callable[[Message], None] = lambda message: say({**message, "session": number})
        self._state = TrackingState()
        self._numbers: list[int] = []
        """The client's number of each image that went into the stream."""
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self.put = self._messages.put
        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        code = "invalid_config"
        try:
            with self._begun(self._messages.get()) as stream:
                code = "engine_failed"
                self._say({"type": "ready"})
                while (message := self._messages.get())["type"] == "video.frame":
                    self._frame(stream, message)
                    self._say({"type": "ready"})
                if message["type"] == "session.close":
                    raise Cancelled
                self._tell(stream.finish())
            self._say({"type": "session.done"})
        except Cancelled:
            pass
        except Exception as error:  # noqa: BLE001  # the other sessions go on
            is_known = isinstance(error, StreamReconError)
            code = code if isinstance(error, ConfigError) else "engine_failed"
            if not is_known:
                traceback.print_exc()
            self._say({"type": "error", "code": code, "message": str(error) if is_known else type(error).__name__})

    def _begun(self, config: Message) -> "Stream":
        """The stream of a session's configuration. Raises ConfigError."""
        checked_config(config, CONFIG)
        if config.get("preset", PRESET) != PRESET:
            raise ConfigError(f"the preset of this server is {PRESET}")
        include = config.get("include", [])
        if not isinstance(include, list) or any(name not in INCLUDED for name in include):
            raise ConfigError(f"include lists some of {', '.join(INCLUDED)}")
        self._include = include
        try:
            camera = None if config.get("camera") is None else Camera(**config["camera"])
        except TypeError as error:
            raise ConfigError(f"a camera has {', '.join(Camera.__annotations__)}") from error
        return self._model.stream(camera, config.get("mapping", "stream"))

    def _frame(self, stream: "Stream", message: Message) -> None:
        number = message["frame"]
        try:
            items = stream.push(_image(message), message.get("time"))
        except InputError as error:
            self._say({"type": "error", "code": "invalid_frame", "frame": number, "message": str(error)})
            return
        self._numbers.append(number)
        self._tell(items)

    def _tell(self, items: Iterable[FrameResult | Revision]) -> None:
        for item in items:
            self._say(self._revision(item) if isinstance(item, Revision) else self._result(item))

    def _result(self, result: FrameResult) -> Message:
        self._state.add(result)
        return {
            **result_message(result, self._state.state),
            "frame": self._numbers[result.index],
            **({"depth": _array(result.depth)} if "depth" in self._include else {}),
            **({"confidence": _array(confidence_levels(result))} if "confidence" in self._include else {}),
        }

    def _revision(self, revision: Revision) -> Message:
        return {"type": "revision", "frames": [self._revised(frame) for frame in revision.frames]}

    def _revised(self, frame: FrameRevision) -> Message:
        message: Message = {"frame": self._numbers[frame.index], "pose": frame.T_world_camera.tolist()}
        message["depth_scale"] = frame.depth_scale
        if frame.intrinsics is not None:
            message["intrinsics"] = asdict(frame.intrinsics)
        if frame.depth_field is not None and "depth" in self._include:
            message["depth_field"] = _array(frame.depth_field)
        return message


def _array(values: ArrayLike) -> Message:
    """An array as its shape and its little-endian float16 values, row by row, in base64."""
    halves = np.asarray(values, "<f2")
    return {"shape": halves.shape, "data": base64.b64encode(halves.tobytes()).decode()}


def _image(message: Message) -> NDArray[np.uint8]:
    """A frame's image, [H, W, 3]. Raises InputError."""
    data, form = frame_data(message), message.get("format", "jpeg")
    pixels = np.frombuffer(data, np.uint8)
    if form == "rgb":
        try:
            return pixels.reshape(message["height"], message["width"], 3)
        except (ValueError, TypeError, KeyError) as error:
            raise InputError("a raw frame has width, height and 3 bytes a pixel") from error
    if form != "jpeg":
        raise InputError("format is jpeg or rgb")
    jpeg_size(data)
    bgr = cv2.imdecode(pixels, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if bgr is None:
        raise InputError("the picture cannot be decoded")
    return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)


def serve_sessions(load: Callable[[], "Model"]) -> None:
    """Carry out the messages of stdin until it ends; ``load`` gives the network."""
    # What libraries print must not come between the messages.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    lock, sessions = Lock(), dict[str, EngineSession]()

    def say(message: Message) -> None:
        with lock:
            out.write(msgspec.json.encode(message) + b"\n")
            out.flush()

    try:
        model = load()
    except StreamReconError as error:
        say({"type": "error", "message": str(error)})
        return
    for line in sys.stdin.buffer:
        message = msgspec.json.decode(line)
        number = message.pop("session")
        if number not in sessions:
            sessions[number] = EngineSession(number, model, say)
        sessions[number].put(message)
        if message["type"] == "session.close":
            del sessions[number]


if __name__ == "__main__":
    from stream_recon.app.api.model import load_model

    serve_sessions(lambda: load_model(PRESET))
