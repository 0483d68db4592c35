"""One process with the network, for engines of many others: what they ask for at the same time is one step.

It waits for nobody: whatever frames have come while a step was under way make up the next one. Scale frames of a stream
that begins are a step by themselves.
"""

import logging
import selectors
from collections import deque
from multiprocessing.connection import Connection, Listener
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

import numpy as np

from stream_recon.app.engine.batched import StreamBatch
from stream_recon.app.engine.device_transfer import host_views, to_images
from stream_recon.app.engine.engine import LoadedModel
from stream_recon.app.engine.keyframes import Decision
from stream_recon.app.engine.messages import Close, Hello, Prefill, Response, SharedBuffer, Step
from stream_recon.app.engine.stream import available_memory, stream_schema
from stream_recon.app.pipeline.process import memory_errors
from stream_recon.configs.errors import ResourceError, StreamReconError
from stream_recon.models.prediction import Prediction

logger = logging.getLogger(__name__)

Grid = tuple[int, int]
SHARE_BESIDE = 0.4
"""Of what memory is free, that images of a further shape may take beside those that are there."""


class _Client:
    """An engine of another process, and its stream."""

    def __init__(self, connection: "Connection[Any, Any]", mailbox: SharedBuffer) -> None:
        self.connection = connection
        self.mailbox = mailbox
        self.first: Prefill | None = None
        """Of its stream."""
        self.batch: StreamBatch | None = None
        self.seat = -1

    def leave(self) -> None:
        if self.batch is not None:
            self.batch.leave(self.seat)
        self.batch = None

    def answer(self, answer: Response | StreamReconError) -> None:
        try:
            self.connection.send(answer)
        except OSError:
            logger.debug("an engine has gone")  # which its connection will tell


class StreamServer:
    """Serves engines until its process is ended."""

    def __init__(self, listener: Listener, model: LoadedModel, seats: int) -> None:
        """``seats``: streams at once, at most."""
        self._listener = listener
        self._model = model
        self._device = model.network.image_mean.device
        self._seats = seats
        self._batches: dict[Grid, StreamBatch] = {}
        """By patch rows and columns: scenes of one shape share a step."""
        self._beginning: deque[_Client] = deque()
        self._stepping: list[_Client] = []
        self._selector = selectors.DefaultSelector()
        # The socket itself: a listener only knows how to wait.
        self._selector.register(listener._listener._socket, selectors.EVENT_READ)  # type: ignore[attr-defined]

    def serve(self) -> None:
        """For ever."""
        while True:
            busy = bool(self._stepping) or self._can_begin()
            for key, _ in self._selector.select(0 if busy else None):
                if key.data is None:
                    self._welcome()
                else:
                    self._hear(key.data)
            self._work()

    def _welcome(self) -> None:
        model = self._model
        try:
            connection = self._listener.accept()
            connection.send(Hello(model.preset, model.weights_sha256, str(self._device), model.precision))
            mailbox = SharedBuffer(model.preset, recv_handle(connection))
        except (OSError, EOFError):
            return  # it has gone before it began
        self._selector.register(connection, selectors.EVENT_READ, _Client(connection, mailbox))

    def _hear(self, client: _Client) -> None:
        try:
            request = client.connection.recv()
        except (EOFError, OSError):
            self._forget(client)
            return
        if isinstance(request, Prefill):
            client.first = request
            self._beginning.append(client)
        elif isinstance(request, Step):
            self._stepping.append(client)
        else:
            assert isinstance(request, Close)
            client.leave()

    def _forget(self, client: _Client) -> None:
        self._selector.unregister(client.connection)
        client.connection.close()
        client.leave()
        if client in self._beginning:
            self._beginning.remove(client)
        if client in self._stepping:
            self._stepping.remove(client)

    def _can_begin(self) -> bool:
        return any(self._has_room(client) for client in self._beginning)

    def _has_room(self, client: _Client) -> bool:
        batch = self._batches.get(self._grid_of(client))
        if client.batch is not None and client.batch is batch:
            return True
        if batch is not None:
            return batch.taken < batch.seats
        return self._fits_beside(self._grid_of(client)) or self._nobody_but(client)

    def _fits_beside(self, grid: Grid) -> bool:
        """Whether there is memory for images of a further shape, too."""
        model = self._model
        schema = stream_schema(model.preset, grid, self._device, half=model.precision == "bf16")
        return schema.bytes * self._seats <= SHARE_BESIDE * available_memory(self._device)

    def _nobody_but(self, client: _Client) -> bool:
        """Whether what was taken for other shapes may be given back."""
        return all(batch.taken == (client.batch is batch) for batch in self._batches.values())

    def _work(self) -> None:
        """One stream that begins, and a step of those that go on."""
        for client in self._beginning:
            if self._has_room(client):
                self._beginning.remove(client)
                self._begin(client)
                break
        together: dict[StreamBatch, list[_Client]] = {}
        stepping, self._stepping = self._stepping, []
        for client in stepping:
            assert client.batch is not None, "a next frame of no stream"
            together.setdefault(client.batch, []).append(client)
        for batch, clients in together.items():
            self._step(batch, clients)

    def _begin(self, client: _Client) -> None:
        assert client.first is not None
        try:
            with memory_errors():
                batch = self._batch_for(client)
                pixels = client.mailbox.images(client.first.count, client.first.size)
                prediction, decision = batch.begin(client.seat, to_images(pixels, self._device))
        except StreamReconError as error:
            client.leave()
            client.answer(error)
            return
        self._answer([client], prediction, [decision], client.first.count)

    def _batch_for(self, client: _Client) -> StreamBatch:
        """Where the client has a seat from now on, and an empty one."""
        grid = self._grid_of(client)
        if client.batch is not None and client.batch.grid == grid:
            client.batch.clear(client.seat)
            return client.batch
        client.leave()
        if grid not in self._batches:
            if not self._fits_beside(grid):
                self._batches.clear()
            model = self._model
            self._batches[grid] = StreamBatch(model.network, model.preset, grid, self._seats, model.precision)
            logger.info("%d streams at once, images of %dx%d patches", self._batches[grid].seats, *grid[::-1])
        batch = self._batches[grid]
        seat = batch.take()
        assert seat is not None
        client.batch, client.seat = batch, seat
        return batch

    def _step(self, batch: StreamBatch, clients: list[_Client]) -> None:
        images = [client.mailbox.images(1, _size(client))[0] for client in clients]
        try:
            with memory_errors():
                seats = [client.seat for client in clients]
                prediction, decisions = batch.step(seats, to_images(np.stack(images), self._device))
        except ResourceError as error:
            for client in clients:
                client.leave()
                client.answer(error)
            return
        self._answer(clients, prediction, decisions, 1)

    def _answer(self, clients: list[_Client], prediction: Prediction, decisions: list[Decision], count: int) -> None:
        """``prediction``: of as many clips as clients, with ``count`` frames each."""
        crops = [client.first.crop for client in clients if client.first is not None for _ in range(count)]
        pose, depth, confidence = prediction.pose, prediction.depth, prediction.confidence
        views = list(host_views(pose.flatten(0, 1), depth.flatten(0, 1), confidence.flatten(0, 1), crops))
        for number, (client, decision) in enumerate(zip(clients, decisions, strict=True)):
            own = views[number * count : (number + 1) * count]
            size = _size(client)
            client.mailbox.depth(count, size)[:] = [view[2] for view in own]
            client.mailbox.confidence(count, size)[:] = [view[3] for view in own]
            poses, focals = np.stack([view[0] for view in own]), tuple(view[1] for view in own)
            assert client.batch is not None
            client.answer(Response(poses, focals, decision.is_keyframe, decision.flow, client.batch.attention))

    def _grid_of(self, client: _Client) -> Grid:
        width, height = _size(client)
        side = self._model.preset.network.patch_size
        return height // side, width // side


def _size(client: _Client) -> tuple[int, int]:
    assert client.first is not None
    return client.first.size


def refuse(listener: Listener, error: StreamReconError) -> None:
    """Tell every engine that comes what went wrong, until the process is ended."""
    while True:
        with listener.accept() as connection:
            connection.send(error)


def open_listener(socket: Path, engines: int) -> Listener:
    """Where so many engines may come at the same time."""
    return Listener(str(socket), family="AF_UNIX", backlog=engines)
