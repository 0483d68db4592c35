"""CPU cores that this process may use: those that the system gives it, or its share of them among several processes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import cv2


class _Limit:
    """Cores that this process may use at most; None: all."""

    cores: int | None = None


def all_cores() -> int:
    """Cores that this process may run on, also those left to the processes it shares them with."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cores() -> int:
    """Cores that this process may use."""
    return all_cores() if _Limit.cores is None else min(all_cores(), _Limit.cores)


def are_limited() -> bool:
    """Whether this process has only a share of the cores."""
    return _Limit.cores is not None


def limit_cores(count: int) -> None:
    """Use at most so many cores, also in OpenCV, which else starts a thread per core in each of several processes."""
    _Limit.cores = max(count, 1)
    cv2.setNumThreads(_Limit.cores)


@contextmanager
def serial_opencv() -> Iterator[None]:
    """Within the block, OpenCV's functions start no threads: several of them already run in threads of ours."""
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)
