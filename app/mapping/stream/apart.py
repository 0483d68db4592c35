"""The stage in a process of its own: beside a network that is done in 30 ms, what it computes in Python would hold up
the thread that feeds the network, and the writer's."""

import multiprocessing
import signal
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from stream_recon.app.mapping.stream.stage import Item, Sparse, StreamStage
from stream_recon.app.results import FrameResult, PreparedFrame
from stream_recon.configs.errors import ResourceError

_Message = tuple[FrameResult, PreparedFrame] | None


@dataclass(frozen=True)
class _Said:
    """What a call of the stage gave."""

    items: Sequence[Item]
    told: str
    figures: dict[str, Any]
    sparse: Sparse | None
    """None: as before."""


class StageApart:
    """`run.listeners.Stage`: a `StreamStage` that runs elsewhere, and gives the same.

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
        weakref.finalize(self, self._process.terminate)
        self._sent: dict[int, FrameResult] = {}
        self.told = ""
        self.figures: dict[str, Any] = {}
        self.sparse = Sparse(np.zeros((0, 3), np.float32), np.zeros((0, 2), np.int32))
        """See `StreamStage.sparse`."""

    @property
    def wants_grey(self) -> bool:
        return True

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[Item]:
        """See `StreamStage.push`. Raises ResourceError: the process is gone."""
        self._sent[result.index] = result
        return self._asked((result, frame))

    def finish(self) -> Sequence[Item]:
        """See `StreamStage.finish`. Raises ResourceError."""
        items = self._asked(None)
        self._process.join()
        return items

    def _asked(self, message: _Message) -> list[Item]:
        try:
            self._connection.send(message)
            said = self._connection.recv()
        except (EOFError, OSError) as error:
            raise ResourceError(
                "the process that places the frames is gone, perhaps for want of memory: what was written is whole; "
                "go on with --resume, or without it by --mapping off"
            ) from error
        if isinstance(said, Exception):
            raise said
        assert isinstance(said, _Said)
        self.told, self.figures, self.sparse = said.told, said.figures, said.sparse or self.sparse
        return [self._whole(item) if isinstance(item, FrameResult) else item for item in said.items]

    def _whole(self, result: FrameResult) -> FrameResult:
        sent = self._sent.pop(result.index)
        return replace(result, rgb=sent.rgb, confidence=sent.confidence)


def _serve(connection: Connection, options: dict[str, Any]) -> None:
    # Ctrl-C goes to all processes of a terminal; the one in front says when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stage = StreamStage(**options)
        more = True
        while more:
            message: _Message = connection.recv()
            more, before = message is not None, stage.sparse
            items = stage.finish() if message is None else stage.push(*message)
            sparse = None if stage.sparse is before else stage.sparse
            connection.send(_Said([_slim(item) for item in items], stage.told, stage.figures, sparse))
    except (EOFError, BrokenPipeError):
        pass  # whoever asked is gone
    except Exception as error:  # noqa: BLE001  it is raised again in the process in front
        connection.send(error)


def _slim(item: Item) -> Item:
    """Without what a stage passes on as it came: that is not sent back."""
    if not isinstance(item, FrameResult):
        return item
    return replace(item, rgb=np.zeros(0, np.uint8), confidence=np.zeros(0, np.float32))
