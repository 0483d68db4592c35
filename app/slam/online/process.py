"""The stage in a process of its own: beside a network that is done in 30 ms, what it computes in Python would hold up
the thread that feeds the network, and the writer's. What it has done beside it is in two more, for the same reason."""

import multiprocessing
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

import numpy as np

from stream_recon.app.core.types import FrameResult, PreparedFrame
from stream_recon.app.slam.online.back_end import Item, OnlineBackEnd, Sparse, given_depth
from stream_recon.app.slam.online.global_ba import GlobalBA
from stream_recon.app.slam.online.place_recognition import KeyframeDatabase
from stream_recon.app.slam.online.worker import GONE, ProcessWorker, received, serve
from stream_recon.configs.errors import ResourceError

_Message = tuple[FrameResult, PreparedFrame] | None

AHEAD = 12
"""Frames of a file that `push` does not wait for: a frame takes half a network's step in the mean, but those at which
an adjustment is waited for take several. A live source's are waited for."""
NO_IMAGE, NO_MAP = np.zeros(0, np.uint8), np.zeros(0, np.float32)


@dataclass(frozen=True)
class _Said:
    """What a call of the stage gave."""

    items: Sequence[Item]
    status_line: str
    figures: dict[str, Any]
    sparse: Sparse | None
    """None: as before."""


class ProcessBackEnd:
    """An `OnlineBackEnd` in a process of its own: the same items in the same order, up to `AHEAD` frames later.

    Args:
        live: see `OnlineBackEnd`.
        options: further ones of the `OnlineBackEnd`.
    """

    def __init__(self, *, live: bool = False, **options: Any) -> None:
        self._ahead = 0 if live else AHEAD
        self._unanswered = 0
        self._processes: list[BaseProcess] = []
        # Not the stage's own children: whoever ends this process ends all of them.
        whole, memory = self._begun("whole", serve, GlobalBA), self._begun("loops", serve, KeyframeDatabase)
        self._connection = self._begun("mapping", _serve, {**options, "live": live}, whole, memory)
        # Only the stage's are left open: when it ends, so do those that it asks.
        whole.close()
        memory.close()
        weakref.finalize(self, _end, self._processes)
        self._sent: dict[int, FrameResult] = {}
        self.status_line = ""
        self.figures: dict[str, Any] = {}
        self.sparse = Sparse(np.zeros((0, 3), np.float32), np.zeros((0, 2), np.int32))
        """See `OnlineBackEnd.sparse`."""

    def _begun(self, name: str, body: Callable[..., None], *given: Any) -> Connection:
        """A connection to a process that begins."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=body, args=(theirs, *given), name=name, daemon=True)
        # Ctrl-C goes to all processes of a terminal, but the one in front says when to end. A signal that is blocked
        # here when it begins stays so there, while its modules are read, too.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        # Only theirs is left open for it: when the process ends, so does what is read here.
        theirs.close()
        self._processes.append(process)
        return ours

    @property
    def wants_grey(self) -> bool:
        return True

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[Item]:
        """See `OnlineBackEnd.push`; what is known by now. Raises ResourceError: a process is gone."""
        self._sent[result.index] = result
        # Nobody there looks at colours.
        self._send((replace(result, rgb=NO_IMAGE), replace(frame, rgb=NO_IMAGE)))
        return self._answers(self._ahead)

    def finish(self) -> Sequence[Item]:
        """See `OnlineBackEnd.finish`. Raises ResourceError."""
        self._send(None)
        items = self._answers(0)
        for process in self._processes:
            process.join()
        return items

    def _send(self, message: _Message) -> None:
        try:
            self._connection.send(message)
        except OSError:
            # What it said before it went tells more.
            self._answers(0)
            raise ResourceError(GONE) from None
        self._unanswered += 1

    def _answers(self, left: int) -> list[Item]:
        """What came, waiting until at most ``left`` messages are unanswered."""
        items: list[Item] = []
        while self._unanswered > left or (self._unanswered and self._connection.poll()):
            said = received(self._connection)
            assert isinstance(said, _Said)
            self._unanswered -= 1
            self.status_line, self.figures, self.sparse = said.status_line, said.figures, said.sparse or self.sparse
            items += [self._whole(item) if isinstance(item, FrameResult) else item for item in said.items]
        return items

    def _whole(self, result: FrameResult) -> FrameResult:
        sent = self._sent.pop(result.index)
        assert result.network is not None
        depth = given_depth(sent, result.network)
        return replace(result, rgb=sent.rgb, confidence=sent.confidence, depth=depth)


def _end(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.terminate()


def _serve(connection: Connection, options: dict[str, Any], whole: Connection, memory: Connection) -> None:
    # Read as they come, however long a frame takes: nobody waits in the middle of sending one.
    messages: SimpleQueue[_Message | EOFError] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, messages), name="receive", daemon=True).start()
    try:
        back_end = OnlineBackEnd(**options, beside=(ProcessWorker(whole, "whole"), ProcessWorker(memory, "loops")))
        more = True
        while more:
            message = messages.get()
            if isinstance(message, EOFError):
                return
            more, before = message is not None, back_end.sparse
            items = back_end.finish() if message is None else back_end.push(*message)
            sparse = None if back_end.sparse is before else back_end.sparse
            connection.send(_Said([_slim(item) for item in items], back_end.status_line, back_end.figures, sparse))
    except BrokenPipeError:
        pass  # whoever asked is gone
    except Exception as error:  # noqa: BLE001  it is raised again in the process in front
        connection.send(error)


def _receive(connection: Connection, messages: "SimpleQueue[_Message | EOFError]") -> None:
    message: _Message | EOFError = EOFError()
    try:
        while (message := connection.recv()) is not None:
            messages.put(message)
    except (EOFError, OSError):
        message = EOFError()  # whoever asked is gone
    messages.put(message)


def _slim(item: Item) -> Item:
    """Without what is there already, or comes of that: it is not sent back."""
    if not isinstance(item, FrameResult):
        return item
    return replace(item, rgb=NO_IMAGE, confidence=NO_MAP, depth=NO_MAP)
