"""Metadata of a step of one frame per stream, in buffers whose addresses never change.

A captured CUDA graph replays the same kernels on the same addresses; only the contents of these buffers change. The
host fills them in pinned memory and sends them in one copy. A step of several streams has one row per frame. On the CPU
they serve kernels that Triton interprets.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

FULL_SPANS, COMPRESSED_SPANS = 2, 3
"""Runs of visible tokens in a pool, at most: they lie around a hidden or free slot, and in a pool with compressed
frames also around the new frame's slot."""
TIME, CAMERA_SLOT, CAMERA_LIMIT, BATCH_SLOT, POSITIONS = range(5)
"""Columns of a row; positions in the pools of full layers begin at the last one, then those of compressed layers."""


class PoolPositions:
    """A step's positions in the pools of the layers of one kind: columns of `StepMetadata`, a row for each frame."""

    def __init__(self, host: np.ndarray, device: Tensor, batch_slot: Tensor, first: int, spans: int, max_score: float):
        """``first``: the first column in rows of numbers on the host and on the device."""
        bounds, self.stop = first + 3, first + 3 + 2 * spans
        self.columns = slice(first, self.stop)
        self.max_spans = spans
        """Spans of a row."""
        self.max_score = max_score
        """See `StepMetadata`."""
        self.stride = device.stride(0)
        """Numbers from one row to the next."""
        self.special_at, self.patch_at, self.block_at = device[:, first:bounds].unbind(1)
        """First pool positions of the frame's special tokens, of its patches, and of its blocks in a compressed layer;
        int32 [rows] each."""
        self.spans = device[:, bounds : self.stop]
        """Start and stop of each span, int32 [rows, 2 * spans]; empty ones are (0, 0)."""
        self.batch_slot = batch_slot
        """Batch slot of the stream in a shared pool, int32 [rows]."""
        self._host = host[0, self.columns]

    def set_frame(self, special_at: int, patch_at: int, block_at: int = 0) -> None:
        """Set where row 0 is written."""
        self._host[:3] = special_at, patch_at, block_at

    def set_spans(self, spans: list[tuple[int, int]]) -> None:
        """Set the runs of visible tokens of row 0."""
        assert len(spans) <= self.max_spans
        numbers = [bound for span in spans for bound in span]
        self._host[3:] = [*numbers, *[0, 0] * (self.max_spans - len(spans))]

    def shift(self, numbers: np.ndarray, first_position: int) -> None:
        """Move the positions of a row of `StepMetadata`: its pool begins at ``first_position`` of a shared pool."""
        own = numbers[self.columns]
        own[:3] += first_position
        spans = own[3:].reshape(-1, 2)
        spans[spans[:, 1] > spans[:, 0]] += first_position


class StepMetadata:
    """Numbers of one step on the device, int32, a row for each of its frames:

    ``[time, camera slot written, camera slots in use, batch slot of the stream]``, the positions of full layers and of
    compressed ones, then one 0 or 1 for each camera slot: whether it is visible. The other
    setters fill row 0; `set_rows` fills all.
    """

    def __init__(self, camera_slots: int, device: torch.device, rows: int = 1, max_score: float = math.inf) -> None:
        """``max_score``: largest score of attention that the network's weights allow, as an exponent of 2. With a small
        one, attention needs no running maximum."""
        numbers = POSITIONS + 6 + 2 * (FULL_SPANS + COMPRESSED_SPANS)
        size = numbers + camera_slots
        self._pinned = torch.zeros(rows, size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._rows = self._pinned.numpy()
        self._host = self._rows[0]
        self._device = torch.zeros(rows, size, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self.stride = self._device.stride(0)
        """Numbers from one row to the next."""
        self.time = self._device[:, TIME]
        """Frames committed before this one, int32 [rows]."""
        self.camera_slot = self._device[:, CAMERA_SLOT]
        """Camera slot of the frame's camera token, int32 [rows]."""
        self.camera_limit = self._device[:, CAMERA_LIMIT]
        """One more than the highest visible camera slot, int32 [rows]."""
        self.batch_slot = self._device[:, BATCH_SLOT]
        """Batch slot of the stream in a shared pool, int32 [rows]."""
        shared = (self._rows, self._device, self.batch_slot)
        self.full = PoolPositions(*shared, POSITIONS, FULL_SPANS, max_score)
        """Positions in the pools of full layers."""
        self.compressed = PoolPositions(*shared, self.full.stop, COMPRESSED_SPANS, max_score)
        """Positions in the pools of compressed layers."""
        self._camera_columns = self.compressed.stop
        self.camera_visible = self._device[:, self._camera_columns :]
        """1 for each visible camera slot, int32 [rows, slots]."""

    def in_batch_slot(self, batch_slot: int, tokens: tuple[int, int]) -> np.ndarray:
        """Row 0 as a row for a shared pool; ``tokens``: of a slot's pools of full and of compressed layers."""
        numbers: np.ndarray = self._host.copy()
        numbers[BATCH_SLOT] = batch_slot
        self.full.shift(numbers, batch_slot * tokens[0])
        self.compressed.shift(numbers, batch_slot * tokens[1])
        return numbers

    def set_rows(self, rows: np.ndarray) -> None:
        """Set the first rows, each of `in_batch_slot`."""
        self._rows[: len(rows)] = rows

    def wait_for_upload(self) -> None:
        """Wait until the previous upload is done: the host may not change its source earlier."""
        if self._copied is not None:
            self._copied.synchronize()

    def set_time(self, time: int) -> None:
        """Set the number of frames committed before this one."""
        self._host[TIME] = time

    def set_camera(self, slot: int, visible: Sequence[int]) -> None:
        """``slot``: the camera slot written; ``visible``: all slots that are read, ``slot`` included."""
        self._host[CAMERA_SLOT], self._host[CAMERA_LIMIT] = slot, max(visible) + 1
        mask = self._host[self._camera_columns :]
        mask[:] = 0
        mask[list(visible)] = 1

    def repeat_row(self, row: int, stop: int) -> None:
        """Copy a row to all rows after it, up to ``stop``."""
        self._rows[row + 1 : stop] = self._rows[row]

    def upload(self) -> None:
        """Start the copy; work enqueued on the current stream afterwards reads the new numbers."""
        self._device.copy_(self._pinned, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
