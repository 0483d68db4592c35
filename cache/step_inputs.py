"""What the host decides before a step of one frame, in buffers whose addresses never change.

A captured CUDA graph replays the same kernels on the same addresses; only the contents of these buffers differ from
step to step. They are filled on the host, in pinned memory, and go over in one copy.
"""

import torch
from torch import Tensor

SPANS = 2
"""Runs of visible tokens in a pool: one, or two around a hidden slot or a free one."""
TIME, SPECIAL_AT, PATCH_AT, CAMERA_SLOT, CAMERA_LIMIT, SPAN_BOUNDS = range(6)
NUMBERS = SPAN_BOUNDS + 2 * SPANS


class StepInputs:
    """Numbers of one step on the device, int32:

    ``[time, first special position written, first patch position written, camera slot written, camera slots in use,
    start and stop of each span of visible tokens]``, then one 0 or 1 for each camera slot: whether it is visible.
    """

    def __init__(self, camera_slots: int, device: torch.device) -> None:
        size = NUMBERS + camera_slots
        self._pinned = torch.zeros(size, dtype=torch.int32, pin_memory=True)
        self._host = self._pinned.numpy()
        self._device = torch.zeros(size, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event()

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

    def upload(self) -> None:
        """Start the copy; what is enqueued on the current stream after it sees the new numbers."""
        self._device.copy_(self._pinned, non_blocking=True)
        self._copied.record()

    @property
    def time(self) -> Tensor:
        """int32 [1]. Frames committed before this one."""
        return self._device[TIME : TIME + 1]

    @property
    def special_at(self) -> Tensor:
        """int32 [1]. First pool position of the frame's special tokens."""
        return self._device[SPECIAL_AT : SPECIAL_AT + 1]

    @property
    def patch_at(self) -> Tensor:
        """int32 [1]. First pool position of its patches."""
        return self._device[PATCH_AT : PATCH_AT + 1]

    @property
    def camera_slot(self) -> Tensor:
        """int32 [1]. Where its camera token is kept."""
        return self._device[CAMERA_SLOT : CAMERA_SLOT + 1]

    @property
    def camera_limit(self) -> Tensor:
        """int32 [1]. One more than the highest camera slot that is visible."""
        return self._device[CAMERA_LIMIT : CAMERA_LIMIT + 1]

    @property
    def spans(self) -> Tensor:
        """int32 [2 * SPANS] on the device: start and stop of each; empty ones are (0, 0)."""
        return self._device[SPAN_BOUNDS:NUMBERS]

    @property
    def camera_visible(self) -> Tensor:
        """int32 [slots] on the device."""
        return self._device[NUMBERS:]
