"""What the host decides before a step of one frame, in buffers whose addresses never change.

A captured CUDA graph replays the same kernels on the same addresses; only the contents of these buffers differ from
step to step. They are filled on the host, in pinned memory, and go over in one copy. A step of several streams, with a
frame each, has a row of numbers for each frame.
"""

import torch
from torch import Tensor

SPANS = 2
"""Runs of visible tokens in a pool: one, or two around a hidden slot or a free one."""
TIME, SPECIAL_AT, PATCH_AT, CAMERA_SLOT, CAMERA_LIMIT, SEAT, SPAN_BOUNDS = range(7)
NUMBERS = SPAN_BOUNDS + 2 * SPANS


class StepMetadata:
    """Numbers of one step on the device, int32, a row for each of its frames:

    ``[time, first special position written, first patch position written, camera slot written, camera slots in use,
    the stream's seat, start and stop of each span of visible tokens]``, then one 0 or 1 for each camera slot: whether
    it is visible. Only row 0 is filled by the setters; see `copy_row`.
    """

    def __init__(self, camera_slots: int, device: torch.device, rows: int = 1) -> None:
        size = NUMBERS + camera_slots
        self._pinned = torch.zeros(rows, size, dtype=torch.int32, pin_memory=True)
        self._rows = self._pinned.numpy()
        self._host = self._rows[0]
        self._device = torch.zeros(rows, size, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event()

    @property
    def stride(self) -> int:
        """Numbers from one row to the next."""
        return self._device.stride(0)

    def copy_row(self, row: int, source: "StepMetadata", seat: int, first_position: int) -> None:
        """Take over another stream's numbers: of a seat whose pool begins at ``first_position`` of the pool of all."""
        numbers = self._rows[row]
        numbers[:] = source._host
        numbers[SEAT] = seat
        numbers[[SPECIAL_AT, PATCH_AT]] += first_position
        spans = numbers[SPAN_BOUNDS:NUMBERS].reshape(-1, 2)
        spans[spans[:, 1] > spans[:, 0]] += first_position

    def open(self) -> None:
        """Wait until the copy before has been made: only then may the host change what it reads."""
        self._copied.synchronize()

    def set_frame(self, time: int, special_at: int, patch_at: int) -> None:
        self._host[TIME], self._host[SPECIAL_AT], self._host[PATCH_AT] = time, special_at, patch_at

    def set_spans(self, spans: list[tuple[int, int]]) -> None:
        assert len(spans) <= SPANS
        self._host[SPAN_BOUNDS:NUMBERS] = [*(bound for span in spans for bound in span), *[0, 0] * (SPANS - len(spans))]

    def set_camera(self, slot: int, visible: tuple[int, ...]) -> None:
        """``slot``: where the step's token goes; ``visible``: all that it may read, itself among them."""
        self._host[CAMERA_SLOT], self._host[CAMERA_LIMIT] = slot, max(visible) + 1
        mask = self._host[NUMBERS:]
        mask[:] = 0
        mask[list(visible)] = 1

    def repeat_row(self, row: int, stop: int) -> None:
        """Make all rows after it, up to ``stop``, say the same."""
        self._rows[row + 1 : stop] = self._rows[row]

    def upload(self) -> None:
        """Start the copy; what is enqueued on the current stream after it sees the new numbers."""
        self._device.copy_(self._pinned, non_blocking=True)
        self._copied.record()

    @property
    def time(self) -> Tensor:
        """int32 [rows]. Frames committed before this one."""
        return self._device[:, TIME]

    @property
    def special_at(self) -> Tensor:
        """int32 [rows]. First pool position of the frame's special tokens."""
        return self._device[:, SPECIAL_AT]

    @property
    def patch_at(self) -> Tensor:
        """int32 [rows]. First pool position of its patches."""
        return self._device[:, PATCH_AT]

    @property
    def camera_slot(self) -> Tensor:
        """int32 [rows]. Where its camera token is kept."""
        return self._device[:, CAMERA_SLOT]

    @property
    def camera_limit(self) -> Tensor:
        """int32 [rows]. One more than the highest camera slot that is visible."""
        return self._device[:, CAMERA_LIMIT]

    @property
    def seat(self) -> Tensor:
        """int32 [rows]. Which of several streams that share a pool it is."""
        return self._device[:, SEAT]

    @property
    def spans(self) -> Tensor:
        """int32 [rows, 2 * SPANS] on the device: start and stop of each; empty ones are (0, 0)."""
        return self._device[:, SPAN_BOUNDS:NUMBERS]

    @property
    def camera_visible(self) -> Tensor:
        """int32 [rows, slots] on the device."""
        return self._device[:, NUMBERS:]
