"""Server process that runs the network for the engines of many workers, with their frames batched.

The frames that arrive during one step form the next step; the server waits for no client. The scale frames of a new
stream (prefill) are a step without other frames.
"""

import logging
import selectors
from collections import deque
from multiprocessing.connection import Connection, Listener
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

import numpy as np

from stream_recon.app.core.process import memory_errors
from stream_recon.app.engine.batched import StreamBatch
from stream_recon.app.engine.device_transfer import computes_in_half, to_host, to_images
from stream_recon.app.engine.engine import LoadedModel
from stream_recon.app.engine.keyframes import Decision
from stream_recon.app.engine.messages import Close, Hello, Prefill, Response, SharedBuffer, Step
from stream_recon.app.engine.stream import available_memory, stream_schema
from stream_recon.configs.errors import ResourceError, StreamReconError
from stream_recon.models.prediction import Prediction

logger = logging.getLogger(__name__)

Grid = tuple[int, int]
"""Patch rows and columns."""
NEW_SHAPE_SHARE = 0.4
"""Share of free memory that caches for images of another shape may take; the rest is for the steps of both shapes."""


class _Client:
    """One worker's engine, and its stream."""

    def __init__(self, connection: "Connection[Any, Any]", buffer: SharedBuffer) -> None:
        self.connection = connection
        self.buffer = buffer
        self.prefill: Prefill | None = None
        """First request of its stream."""
        self.batch: StreamBatch | None = None
        self.slot, self.keep = -1, False

    def release_slot(self) -> None:
        """Free the stream's batch slot, if it has one."""
        if self.batch is not None:
            self.batch.release_slot(self.slot)
        self.batch = None

    def respond(self, response: Response | StreamReconError) -> None:
        """Send a response; a client that has gone is noticed later, by its connection."""
        try:
            self.connection.send(response)
        except OSError:
            logger.debug("a client has gone")


class StreamServer:
    """Serves engines until its process is ended."""

    def __init__(self, listener: Listener, model: LoadedModel, slots: int) -> None:
        """``slots``: most streams at once."""
        self._listener = listener
        self._model = model
        self._device = model.network.image_mean.device
        self._slots = slots
        self._batches: dict[Grid, StreamBatch] = {}
        """Streams of one image shape share a step."""
        self._prefills: deque[_Client] = deque()
        self._steps: list[_Client] = []
        self._selector = selectors.DefaultSelector()
        # The socket itself: a listener can only block.
        self._selector.register(listener._listener._socket, selectors.EVENT_READ)  # type: ignore[attr-defined]

    def serve(self) -> None:
        """Accept clients and run their requests, for ever."""
        while True:
            busy = bool(self._steps) or any(map(self._has_room, self._prefills))
            for key, _ in self._selector.select(0 if busy else None):
                if key.data is None:
                    self._accept()
                else:
                    self._receive(key.data)
            self._run_step()

    def _accept(self) -> None:
        model = self._model
        try:
            connection = self._listener.accept()
            connection.send(Hello(model.preset, model.weights_sha256, str(self._device), model.precision))
            buffer = SharedBuffer(model.preset, recv_handle(connection))
        except (OSError, EOFError):
            return  # the client has gone
        self._selector.register(connection, selectors.EVENT_READ, _Client(connection, buffer))

    def _receive(self, client: _Client) -> None:
        try:
            request = client.connection.recv()
        except (EOFError, OSError):
            self._disconnect(client)
            return
        if isinstance(request, Prefill):
            client.prefill = request
            self._prefills.append(client)
        elif isinstance(request, Step):
            client.keep = request.keep
            self._steps.append(client)
        else:
            assert isinstance(request, Close)
            client.release_slot()

    def _disconnect(self, client: _Client) -> None:
        self._selector.unregister(client.connection)
        client.connection.close()
        client.release_slot()
        if client in self._prefills:
            self._prefills.remove(client)
        if client in self._steps:
            self._steps.remove(client)

    def _has_room(self, client: _Client) -> bool:
        batch = self._batches.get(self._grid_of(client))
        if client.batch is not None and client.batch is batch:
            return True
        if batch is not None:
            return batch.used < batch.slots
        return self._fits_new_shape(self._grid_of(client)) or self._is_alone(client)

    def _fits_new_shape(self, grid: Grid) -> bool:
        """Whether there is memory for caches of images of another shape."""
        model = self._model
        schema = stream_schema(model.preset, grid, self._device, half=computes_in_half(model.precision, self._device))
        return schema.bytes * self._slots <= NEW_SHAPE_SHARE * available_memory(self._device)

    def _is_alone(self, client: _Client) -> bool:
        """Whether no other client has a stream, so that caches of other shapes may be freed."""
        return all(batch.used == (client.batch is batch) for batch in self._batches.values())

    def _run_step(self) -> None:
        """Run one prefill, and one step for each image shape that has frames."""
        for client in self._prefills:
            if self._has_room(client):
                self._prefills.remove(client)
                self._prefill(client)
                break
        batches: dict[StreamBatch, list[_Client]] = {}
        steps, self._steps = self._steps, []
        for client in steps:
            assert client.batch is not None, "a step before the prefill"
            batches.setdefault(client.batch, []).append(client)
        for batch, clients in batches.items():
            self._step(batch, clients)

    def _prefill(self, client: _Client) -> None:
        assert client.prefill is not None
        try:
            with memory_errors():
                batch = self._batch_for(client)
                pixels = client.buffer.images(client.prefill.count, client.prefill.size)
                prediction, decision = batch.begin(client.slot, to_images(pixels, self._device))
        except StreamReconError as error:
            client.release_slot()
            client.respond(error)
            return
        self._respond([client], prediction, [decision], client.prefill.count)

    def _batch_for(self, client: _Client) -> StreamBatch:
        """The batch for a client's images, in which it gets an empty slot."""
        assert client.prefill is not None
        grid, min_gap = self._grid_of(client), client.prefill.min_gap
        if client.batch is not None and client.batch.grid == grid:
            client.batch.reset_slot(client.slot, min_gap)
            return client.batch
        client.release_slot()
        if grid not in self._batches:
            if not self._fits_new_shape(grid):
                self._batches.clear()
            model = self._model
            self._batches[grid] = StreamBatch(model.network, model.preset, grid, self._slots, model.precision)
            logger.info("%d streams at once, images of %dx%d patches", self._batches[grid].slots, *grid[::-1])
        batch = self._batches[grid]
        slot = batch.allocate_slot(min_gap)
        assert slot is not None
        client.batch, client.slot = batch, slot
        return batch

    def _step(self, batch: StreamBatch, clients: list[_Client]) -> None:
        images = [client.buffer.images(1, _size(client))[0] for client in clients]
        try:
            with memory_errors():
                slots, keep = [client.slot for client in clients], {client.slot for client in clients if client.keep}
                running = batch.start(slots, to_images(np.stack(images), self._device))
                prediction, decisions = batch.finish(running, keep)
        except ResourceError as error:
            for client in clients:
                client.release_slot()
                client.respond(error)
            return
        self._respond(clients, prediction, decisions, 1)

    def _respond(self, clients: list[_Client], prediction: Prediction, decisions: list[Decision], count: int) -> None:
        """Send results: ``prediction`` has one clip per client, with ``count`` frames each."""
        crops = [client.prefill.crop for client in clients if client.prefill is not None for _ in range(count)]
        pose, depth, confidence = prediction.pose, prediction.depth, prediction.confidence
        outputs = list(to_host(pose.flatten(0, 1), depth.flatten(0, 1), confidence.flatten(0, 1), crops))
        for number, (client, decision) in enumerate(zip(clients, decisions, strict=True)):
            own = outputs[number * count : (number + 1) * count]
            size = _size(client)
            client.buffer.depth(count, size)[:] = [output.depth for output in own]
            client.buffer.confidence(count, size)[:] = [output.confidence for output in own]
            poses, focals = np.stack([output.T_world_camera for output in own]), tuple(output.focal for output in own)
            assert client.batch is not None
            known = client.batch.attention, client.batch.use_of(client.slot)
            client.respond(Response(poses, focals, decision.is_keyframe, decision.flow, *known))

    def _grid_of(self, client: _Client) -> Grid:
        width, height = _size(client)
        side = self._model.preset.network.patch_size
        return height // side, width // side


def _size(client: _Client) -> tuple[int, int]:
    assert client.prefill is not None
    return client.prefill.size


def serve_error(listener: Listener, error: StreamReconError) -> None:
    """Send every client the error that ended the start, for ever."""
    while True:
        with listener.accept() as connection:
            connection.send(error)


def open_listener(socket: Path, engines: int) -> Listener:
    """Listener at a Unix socket to which ``engines`` clients may connect at the same time."""
    return Listener(str(socket), family="AF_UNIX", backlog=engines)
