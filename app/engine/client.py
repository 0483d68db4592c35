"""Engine whose network runs in another process, shared with other engines. Needs no torch."""

import time
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from stream_recon.app.core.types import FrameResult, PreparedFrame
from stream_recon.app.engine.messages import Close, Hello, Prefill, Request, Response, SharedBuffer, Step
from stream_recon.app.engine.session import HostOutput, StreamingSession, frame_result
from stream_recon.configs.errors import ResourceError, StreamReconError

POLL_SECONDS = 0.1
"""Pause between two attempts to connect, short against the seconds that a model takes to load."""
LOST = "the process that runs the network has ended: see its messages above"
"""Message where the connection breaks."""


class RemoteEngine(StreamingSession):
    """A `StreamingSession` whose steps are done by a `StreamServer`."""

    threads = 0
    """The network has no CPU threads in this process; see `FrameEngine`."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        """Raises StreamReconError where the server could not load the network."""
        self._connection = connection
        hello = self._receive()
        assert isinstance(hello, Hello)
        self._buffer = SharedBuffer(hello.preset)
        send_handle(connection, self._buffer.handle, None)
        self._has_stream = False
        super().__init__(hello.preset)
        self.weights_sha256 = hello.weights_sha256
        self.device = hello.device
        self.precision = hello.precision
        self.cache = "full"
        self.attention = "auto"

    def reset(self) -> None:
        self._close_stream()
        super().reset()

    def finish(self) -> list[FrameResult]:
        results = super().finish()
        self._close_stream()
        return results

    def _begin_stream(self, frames: Sequence[PreparedFrame]) -> list[FrameResult]:
        transform = frames[0].transform
        self._has_stream = True
        return self._request(Prefill(len(frames), transform.network_size, transform.crop[2:], self.min_gap), frames)

    def _advance(self, frame: PreparedFrame, *, keep: bool = False) -> FrameResult:
        return self._request(Step(keep), [frame])[0]

    def _request(self, request: Request, frames: Sequence[PreparedFrame]) -> list[FrameResult]:
        size = frames[0].transform.network_size
        for image, frame in zip(self._buffer.images(len(frames), size), frames, strict=True):
            image[:] = frame.rgb
        self._send(request)
        response = self._receive()
        assert isinstance(response, Response)
        self.attention, self._use = response.attention, response.use
        # Copies, as the next response overwrites the buffer.
        depth = self._buffer.depth(len(frames), size).copy()
        confidence = self._buffer.confidence(len(frames), size).copy()
        return [
            frame_result(frame, HostOutput(*output), is_keyframe=response.is_keyframe, flow=response.flow)
            for frame, *output in zip(frames, response.T_world_camera, response.focals, depth, confidence, strict=True)
        ]

    def _close_stream(self) -> None:
        if self._has_stream:
            self._has_stream = False
            self._send(Close())

    def _send(self, message: object) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise ResourceError(LOST) from error

    def _receive(self) -> Any:
        try:
            message = self._connection.recv()
        except (EOFError, OSError) as error:
            raise ResourceError(LOST) from error
        if isinstance(message, StreamReconError):
            raise message
        return message


def connect(socket: Path, seconds: float) -> RemoteEngine:
    """An engine of the server at ``socket``, which may still be starting.

    Raises StreamReconError: the server could not load the network, or does not listen within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            connection = Client(str(socket))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if time.monotonic() > deadline:
                raise ResourceError("the process that should run the network does not answer") from error
            time.sleep(POLL_SECONDS)
        else:
            return RemoteEngine(connection)
