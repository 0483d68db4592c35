"""Online back end in a separate process, with two more for its background work.

In a thread its Python code would delay the threads of the network and the writer.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

import numpy as np

from stream_recon.app.core.types import FrameResult, PreparedFrame
from stream_recon.app.core.worker import ProcessWorker, receive, serve, start_process, terminate
from stream_recon.app.slam.online.back_end import Item, OnlineBackEnd, SparseMap, output_depth
from stream_recon.app.slam.online.config import DEFAULT_ONLINE, OnlineConfig
from stream_recon.app.slam.online.global_ba import GlobalBA
from stream_recon.app.slam.online.place_recognition import KeyframeDatabase
from stream_recon.configs.errors import ResourceError

PROCESS_DIED = (
    "a process of the SLAM back end has ended, perhaps out of memory: the result so far is complete; "
    "continue with --resume, or without the back end by --mapping off"
)
_Message = tuple[FrameResult, PreparedFrame] | None

NO_IMAGE, NO_MAP = np.zeros(0, np.uint8), np.zeros(0, np.float32)


@dataclass(frozen=True)
class _Reply:
    """Result of one call."""

    items: Sequence[Item]
    status_line: str
    figures: dict[str, Any]
    sparse: SparseMap | None
    """None: unchanged."""


class ProcessBackEnd:
    """`OnlineBackEnd` with these arguments in a separate process: the same items, at most ``frames_ahead`` later."""

    def __init__(self, *, live: bool = False, config: OnlineConfig = DEFAULT_ONLINE, **options: Any) -> None:
        self._ahead = 0 if live else config.frames_ahead
        self._unanswered = 0
        self._processes: list[BaseProcess] = []
        # All are children of this process, so that they end with it.
        global_ba = self._start("global-ba", serve, partial(GlobalBA, config))
        loops = self._start("loops", serve, partial(KeyframeDatabase, config))
        options |= {"live": live, "config": config}
        self._connection = self._start("tracking", _serve, options, global_ba, loops)
        # Only the tracking process keeps these connections: when it ends, so do the other two.
        global_ba.close()
        loops.close()
        weakref.finalize(self, terminate, self._processes)
        self._sent: dict[int, FrameResult] = {}
        self.status_line = ""
        self.figures: dict[str, Any] = {}
        self.sparse = SparseMap(np.zeros((0, 3), np.float32), np.zeros((0, 2), np.int32))
        """See `OnlineBackEnd.sparse`."""

    def _start(self, name: str, main: Callable[..., None], *args: Any) -> Connection:
        """Start a process; returns a connection to it."""
        process, connection = start_process(name, main, *args)
        self._processes.append(process)
        return connection

    @property
    def wants_grey(self) -> bool:
        return True

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[Item]:
        """See `OnlineBackEnd.push`; returns the items so far. Raises ResourceError if a process has died."""
        self._sent[result.index] = result
        # Colour images are not needed there.
        self._send((replace(result, rgb=NO_IMAGE), replace(frame, rgb=NO_IMAGE)))
        return self._replies(self._ahead)

    def finish(self) -> Sequence[Item]:
        """See `OnlineBackEnd.finish`. Raises ResourceError."""
        self._send(None)
        items = self._replies(0)
        for process in self._processes:
            process.join()
        return items

    def _send(self, message: _Message) -> None:
        try:
            self._connection.send(message)
        except OSError:
            # An exception that it sent before it died tells more.
            self._replies(0)
            raise ResourceError(PROCESS_DIED) from None
        self._unanswered += 1

    def _replies(self, left: int) -> list[Item]:
        """Items of the replies so far, after waiting until at most ``left`` messages are unanswered."""
        items: list[Item] = []
        while self._unanswered > left or (self._unanswered and self._connection.poll()):
            reply = receive(self._connection, PROCESS_DIED)
            assert isinstance(reply, _Reply)
            self._unanswered -= 1
            self.status_line, self.figures, self.sparse = reply.status_line, reply.figures, reply.sparse or self.sparse
            items += [self._restored(item) if isinstance(item, FrameResult) else item for item in reply.items]
        return items

    def _restored(self, result: FrameResult) -> FrameResult:
        """A result of `_stripped` with the arrays of the one that was sent."""
        sent = self._sent.pop(result.index)
        assert result.network is not None
        depth = output_depth(sent, result.network)
        return replace(result, rgb=sent.rgb, confidence=sent.confidence, depth=depth)


def _serve(connection: Connection, options: dict[str, Any], global_ba: Connection, loops: Connection) -> None:
    """Main function of the tracking process."""
    # A thread receives continuously, so that the sender never blocks.
    messages: SimpleQueue[_Message | EOFError] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, messages), name="receive", daemon=True).start()
    try:
        workers = (ProcessWorker(global_ba, "global-ba", PROCESS_DIED), ProcessWorker(loops, "loops", PROCESS_DIED))
        back_end = OnlineBackEnd(**options, workers=workers)
        more = True
        while more:
            message = messages.get()
            if isinstance(message, EOFError):
                return
            more, before = message is not None, back_end.sparse
            items = back_end.finish() if message is None else back_end.push(*message)
            sparse = None if back_end.sparse is before else back_end.sparse
            connection.send(_Reply([_stripped(item) for item in items], back_end.status_line, back_end.figures, sparse))
    except BrokenPipeError:
        pass  # the main process has ended
    except Exception as error:  # noqa: BLE001  raised again in the main process
        connection.send(error)


def _receive(connection: Connection, messages: "SimpleQueue[_Message | EOFError]") -> None:
    message: _Message | EOFError = EOFError()
    try:
        while (message := connection.recv()) is not None:
            messages.put(message)
    except (EOFError, OSError):
        message = EOFError()  # the main process has ended
    messages.put(message)


def _stripped(item: Item) -> Item:
    """A result without the arrays that the main process has or can compute."""
    if not isinstance(item, FrameResult):
        return item
    return replace(item, rgb=NO_IMAGE, confidence=NO_MAP, depth=NO_MAP)
