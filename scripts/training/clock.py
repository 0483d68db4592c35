"""Time since the start, equal on all workers."""

import time
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from training.distributed import Workers

LAG = 3
"""Steps between requesting the time and using it; the host runs at most this number of steps ahead of the device."""


@dataclass(frozen=True)
class _Request:
    seconds: Tensor  # float64 [1] on the host, valid once ``ready`` has happened
    ready: torch.cuda.Event | None


class DistributedTimer:
    """The first worker's clock for all workers: with clocks of their own they would draw different steps and deadlock.

    The result of `now` is ``LAG`` steps old, so that reading it hardly stalls the device.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._start = time.monotonic()
        self._requests: deque[_Request] = deque()
        self._seconds = 0.0

    def now(self) -> float:
        """Seconds since the start, equal on all workers; all of them call it once a step."""
        device = self._workers.device
        elapsed = torch.tensor([time.monotonic() - self._start], dtype=torch.float64)
        if device.type != "cuda":
            self._requests.append(_Request(self._workers.share_(elapsed), None))
        else:
            on_device = self._workers.share_(elapsed.pin_memory().to(device, non_blocking=True))
            answer = torch.empty(1, dtype=torch.float64, pin_memory=True)
            answer.copy_(on_device, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
            self._requests.append(_Request(answer, ready))
        if len(self._requests) > LAG:
            oldest = self._requests.popleft()
            if oldest.ready is not None:
                oldest.ready.synchronize()
            self._seconds = float(oldest.seconds[0])
        return self._seconds
