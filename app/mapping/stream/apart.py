"""The stage in a process of its own: beside a network that is done in 30 ms, what it computes in Python would hold up
the thread that feeds the network, and the writer's."""

import multiprocessing
import signal
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from stream_recon.app.mapping.stream.stage import Item, Sparse, StreamStage
from stream_recon.app.results import FrameResult, PreparedFrame
from stream_recon.configs.errors import ResourceError

AHEAD = 16
"""Results that the stage may be behind."""


@dataclass(frozen=True)
class _Said:
    """What a call of the stage gave."""

    items: Sequence[Item]
    told: str
    figures: dict[str, Any]
    sparse: Sparse | None
    """None: as before."""


class StageApart:
    """`run.listeners.Stage`: a `StreamStage` that runs elsewhere. What it gives is the same, and comes up to `AHEAD`
    results later.

    Args:
        options: of the `StreamStage`.
    """

    def __init__(self, **options: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, options), name="mapping", daemon=True)
        self._process.start()
        # Only theirs is left open for it: when the process ends, so does what is read here.
        theirs.close()
        self._answers: SimpleQueue[_Said | Exception] = SimpleQueue()
        Thread(target=_listen, args=(self._connection, self._answers), name="mapping", daemon=True).start()
        weakref.finalize(self, self._process.terminate)
        self._unanswered = 0
        self._sent: dict[int, FrameResult] = {}
        self.told = ""
        self.figures: dict[str, Any] = {}
        self.sparse = Sparse(np.zeros((0, 3), np.float32), np.zeros((0, 2), np.int32))
        """See `StreamStage.sparse`."""

    @property
    def wants_grey(self) -> bool:
        return True

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[Item]:
        """Hand a result over; gives what is ready of it and of those before.

        Raises:
            ResourceError: the process is gone.
        """
        self._send((result, frame))
        self._sent[result.index] = result
        items: list[Item] = []
        while self._unanswered and (self._unanswered > AHEAD or not self._answers.empty()):
            items += self._receive()
        return items

    def finish(self) -> Sequence[Item]:
        """What is known when the last frame is in. Raises ResourceError."""
        self._send(None)
        items: list[Item] = []
        while self._unanswered:
            items += self._receive()
        self._process.join()
        return items

    def _send(self, message: tuple[FrameResult, PreparedFrame] | None) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise _gone() from error
        self._unanswered += 1

    def _receive(self) -> list[Item]:
        said = self._answers.get()
        if isinstance(said, Exception):
            raise said
        self._unanswered -= 1
        self.told, self.figures = said.told, said.figures
        self.sparse = said.sparse or self.sparse
        return [self._whole(item) if isinstance(item, FrameResult) else item for item in said.items]

    def _whole(self, result: FrameResult) -> FrameResult:
        sent = self._sent.pop(result.index)
        return replace(result, rgb=sent.rgb, confidence=sent.confidence)


def _gone() -> ResourceError:
    return ResourceError(
        "the process that places the frames is gone, perhaps for want of memory: what was written is whole; "
        "go on with --resume, or without it by --mapping off"
    )


def _listen(connection: Connection, answers: "SimpleQueue[_Said | Exception]") -> None:
    """A thread reads, so that neither side waits for the other to read what it writes."""
    try:
        while True:
            answers.put(connection.recv())
    except (EOFError, OSError):
        answers.put(_gone())


def _serve(connection: Connection, options: dict[str, Any]) -> None:
    # Ctrl-C goes to all processes of a terminal; the one in front says when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stage = StreamStage(**options)
        sparse = stage.sparse
        message: tuple[FrameResult, PreparedFrame] | None = connection.recv()
        while message is not None:
            connection.send(_said(stage, stage.push(*message), sparse))
            sparse = stage.sparse
            message = connection.recv()
        connection.send(_said(stage, stage.finish(), sparse))
    except (EOFError, BrokenPipeError):
        pass  # whoever asked is gone
    except Exception as error:  # noqa: BLE001  it is raised again in the process in front
        connection.send(error)


def _said(stage: StreamStage, items: Sequence[Item], sparse: Sparse) -> _Said:
    nothing = np.zeros(0, np.uint8)
    slim = [
        # What a stage passes on as it came is not sent back.
        replace(item, rgb=nothing, confidence=nothing.astype(np.float32)) if isinstance(item, FrameResult) else item
        for item in items
    ]
    return _Said(slim, stage.told, stage.figures, None if stage.sparse is sparse else stage.sparse)
