"""Metadata of a step of one frame per stream, in buffers whose addresses never change.

A captured CUDA graph replays the same kernels on the same addresses; only the contents of these buffers change. The
host fills them in pinned memory and sends them in one copy. A step of several streams has one row per frame. On the CPU
they serve kernels that Triton interprets.
"""

import math

import torch

SPANS = 2
"""Runs of visible tokens in a pool: one, or two around a hidden or free slot."""
TIME, SPECIAL_AT, PATCH_AT, CAMERA_SLOT, CAMERA_LIMIT, BATCH_SLOT, SPAN_BOUNDS = range(7)
"""Columns of a row; the bounds of the spans begin at the last one."""
NUMBERS = SPAN_BOUNDS + 2 * SPANS
"""Columns before the mask of camera slots."""


class StepMetadata:
    """Numbers of one step on the device, int32, a row for each of its frames:

    ``[time, first special position written, first patch position written, camera slot written, camera slots in use,
    batch slot of the stream, start and stop of each span of visible tokens]``, then one 0 or 1 for each camera slot:
    whether it is visible. The setters fill row 0; `copy_row` fills the others.
    """

    def __init__(self, camera_slots: int, device: torch.device, rows: int = 1, max_score: float = math.inf) -> None:
        """``max_score``: largest score of attention that the network's weights allow, as an exponent of 2. With a small
        one, attention needs no running maximum."""
        self.max_score = max_score
        size = NUMBERS + camera_slots
        self._pinned = torch.zeros(rows, size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._rows = self._pinned.numpy()
        self._host = self._rows[0]
        self._device = torch.zeros(rows, size, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self.stride = self._device.stride(0)
        """Numbers from one row to the next."""
        self.time = self._device[:, TIME]
        """Frames committed before this one, int32 [rows]."""
        self.special_at = self._device[:, SPECIAL_AT]
        """First pool position of the frame's special tokens, int32 [rows]."""
        self.patch_at = self._device[:, PATCH_AT]
        """First pool position of the frame's patches, int32 [rows]."""
        self.camera_slot = self._device[:, CAMERA_SLOT]
        """Camera slot of the frame's camera token, int32 [rows]."""
        self.camera_limit = self._device[:, CAMERA_LIMIT]
        """One more than the highest visible camera slot, int32 [rows]."""
        self.batch_slot = self._device[:, BATCH_SLOT]
        """Batch slot of the stream in a shared pool, int32 [rows]."""
        self.spans = self._device[:, SPAN_BOUNDS:NUMBERS]
        """Start and stop of each span, int32 [rows, 2 * SPANS]; empty ones are (0, 0)."""
        self.camera_visible = self._device[:, NUMBERS:]
        """1 for each visible camera slot, int32 [rows, slots]."""

    def copy_row(self, row: int, source: "StepMetadata", batch_slot: int, first_position: int) -> None:
        """Copy a stream's numbers from ``source``; its pool begins at ``first_position`` of the shared pool."""
        numbers = self._rows[row]
        numbers[:] = source._host
        numbers[BATCH_SLOT] = batch_slot
        numbers[[SPECIAL_AT, PATCH_AT]] += first_position
        spans = numbers[SPAN_BOUNDS:NUMBERS].reshape(-1, 2)
        spans[spans[:, 1] > spans[:, 0]] += first_position

    def wait_for_upload(self) -> None:
        """Wait until the previous upload is done: the host may not change its source earlier."""
        if self._copied is not None:
            self._copied.synchronize()

    def set_frame(self, time: int, special_at: int, patch_at: int) -> None:
        """Set the time and the first pool positions of special tokens and patches."""
        self._host[TIME], self._host[SPECIAL_AT], self._host[PATCH_AT] = time, special_at, patch_at

    def set_spans(self, spans: list[tuple[int, int]]) -> None:
        """Set the runs of visible tokens, at most `SPANS`."""
        assert len(spans) <= SPANS
        self._host[SPAN_BOUNDS:NUMBERS] = [*(bound for span in spans for bound in span), *[0, 0] * (SPANS - len(spans))]

    def set_camera(self, slot: int, visible: tuple[int, ...]) -> None:
        """``slot``: the camera slot written; ``visible``: all slots that are read, ``slot`` included."""
        self._host[CAMERA_SLOT], self._host[CAMERA_LIMIT] = slot, max(visible) + 1
        mask = self._host[NUMBERS:]
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
