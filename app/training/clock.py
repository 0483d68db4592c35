"""Time as all workers agree on it, and time as the device spends it."""

import time
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from stream_recon.app.training.distributed import Workers

LAG = 3
"""Steps between asking for the time and using it. Also the most steps that the host runs ahead of the device."""


@dataclass(frozen=True)
class _Asked:
    seconds: Tensor  # float64 [1] on the host, valid once ``ready`` has happened
    ready: torch.cuda.Event | None


class SharedClock:
    """The first worker's clock. Workers that act on their own clocks would draw different steps and wait for ever.

    The answer of `now` is ``LAG`` steps old, so that reading it hardly stalls the device.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._start = time.monotonic()
        self._asked: deque[_Asked] = deque()
        self._seconds = 0.0

    def now(self) -> float:
        """Seconds since the start, the same on all workers. To be called once a step by all of them."""
        device = self._workers.device
        asked = torch.tensor([time.monotonic() - self._start], dtype=torch.float64)
        if device.type != "cuda":
            self._asked.append(_Asked(self._workers.share_(asked), None))
        else:
            on_device = self._workers.share_(asked.pin_memory().to(device, non_blocking=True))
            answer = torch.empty(1, dtype=torch.float64, pin_memory=True)
            answer.copy_(on_device, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
            self._asked.append(_Asked(answer, ready))
        if len(self._asked) > LAG:
            oldest = self._asked.popleft()
            if oldest.ready is not None:
                oldest.ready.synchronize()
            self._seconds = float(oldest.seconds[0])
        return self._seconds


class PartTimer:
    """Device time of the parts of a step, by events between them; nothing waits until `totals` is asked for."""

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
