"""An engine whose network runs in another process, together with those of other engines. Needs no torch."""

import time
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from stream_recon.app.core.types import FrameResult, PreparedFrame
from stream_recon.app.engine.messages import Close, Hello, Prefill, Request, Response, SharedBuffer, Step
from stream_recon.app.engine.session import StreamingSession, frame_result
from stream_recon.configs.errors import ResourceError, StreamReconError

POLL_SECONDS = 0.1
LOST = "the process that runs the network has ended: see what it said above"


class RemoteEngine(StreamingSession):
    """An `StreamingSession` that has its steps done by a `StreamServer`."""

    threads = 0
    """None here: see `FrameEngine`."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        """Raises StreamReconError where the server could not load the network."""
        self._connection = connection
        welcome = self._receive()
        assert isinstance(welcome, Hello)
        self._mailbox = SharedBuffer(welcome.preset)
        send_handle(connection, self._mailbox.handle, None)
        self._ends = False
        super().__init__(welcome.preset)
        self.weights_sha256 = welcome.weights_sha256
        self.device = welcome.device
        self.precision = welcome.precision
        self.cache = "full"
        self.attention = "auto"

    def reset(self) -> None:
        self._end()
        super().reset()

    def finish(self) -> list[FrameResult]:
        results = super().finish()
        self._end()
        return results

    def _begin_stream(self, frames: Sequence[PreparedFrame]) -> list[FrameResult]:
        transform = frames[0].transform
        self._ends = True
        return self._ask(Prefill(len(frames), transform.network_size, transform.crop[2:]), frames)

    def _advance(self, frame: PreparedFrame) -> FrameResult:
        return self._ask(Step(), [frame])[0]

    def _ask(self, request: Request, frames: Sequence[PreparedFrame]) -> list[FrameResult]:
        size = frames[0].transform.network_size
        for place, frame in zip(self._mailbox.images(len(frames), size), frames, strict=True):
            place[:] = frame.rgb
        self._send(request)
        answer = self._receive()
        assert isinstance(answer, Response)
        self.attention = answer.attention
        # Copies: the next answer is written there, too.
        depth = self._mailbox.depth(len(frames), size).copy()
        confidence = self._mailbox.confidence(len(frames), size).copy()
        return [
            frame_result(frame, *view, is_keyframe=answer.is_keyframe, flow=answer.flow)
            for frame, *view in zip(frames, answer.T_world_camera, answer.focals, depth, confidence, strict=True)
        ]

    def _end(self) -> None:
        if self._ends:
            self._ends = False
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
    """An engine by the server that listens, or will soon listen, at ``socket``.

    Raises:
        StreamReconError: it could not load the network, or none listens within so many seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            connection = Client(str(socket))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if time.monotonic() > deadline:
                raise ResourceError("the process that is to run the network does not answer") from error
            time.sleep(POLL_SECONDS)
        else:
            return RemoteEngine(connection)
