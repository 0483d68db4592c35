"""Time since the start, equal on all workers, and device time of the parts of a step."""

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


class PartTimer:
    """Device time of the parts of a step, measured by events; only `totals` waits for them."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[str, torch.cuda.Event | float]] = []

    def mark(self, part: str) -> None:
        """End ``part``, which began at the mark before; ``"start"`` begins a step, and ends the part "between"."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((part, event))
        else:
            self._marks.append((part, time.perf_counter()))

    def totals(self) -> dict[str, float]:
        """Seconds for each part since the last call."""
        if self._cuda:
            torch.cuda.synchronize()
        totals: dict[str, float] = {}
        for (_, begin), (part, end) in zip(self._marks, self._marks[1:], strict=False):
            part = "between" if part == "start" else part
            totals[part] = totals.get(part, 0.0) + _seconds(begin, end)
        self._marks.clear()
        return totals


def _seconds(begin: "torch.cuda.Event | float", end: "torch.cuda.Event | float") -> float:
    if isinstance(begin, float) and isinstance(end, float):
        return end - begin
    assert isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event)
    return float(begin.elapsed_time(end)) / 1000
