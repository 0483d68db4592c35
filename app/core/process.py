"""This process: peak memory, out-of-memory errors, end with the parent."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait

from stream_recon.app.core.platform import ignore_interrupts
from stream_recon.configs.errors import ResourceError


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn out-of-memory errors of GPU or host into a `ResourceError` that says what to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        first = str(error).strip().splitlines()[0] if str(error).strip() else "no memory left"
        raise ResourceError(
            f"out of memory ({first}): use a smaller --preset, or one of your own (--preset FILE.toml) with a lower "
            "[stream] window or a smaller image ([image] max_patches)"
        ) from error


def _is_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    import torch

    # The CPU allocator raises a plain RuntimeError, as does a failed memory map.
    text = str(error).lower()
    is_plain = "can't allocate memory" in text or "cannot allocate memory" in text
    return is_plain or isinstance(error, MemoryError | torch.OutOfMemoryError)


def peak_host_memory_mb() -> float:
    """Peak resident memory of this process; 0 on Windows."""
    if sys.platform == "win32":
        return 0.0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


def peak_device_memory_mb(device: str) -> float | None:
    """Peak memory of this process's tensors on a GPU; None where it uses none."""
    # A worker whose network runs in another process has no torch.
    torch = sys.modules.get("torch")
    if not device.startswith("cuda") or torch is None or not torch.cuda.is_initialized():
        return None
    return round(float(torch.cuda.max_memory_allocated(device)) / 2**20, 1)


def exit_with_parent() -> None:
    """End this worker process with its parent: another batch may take over the folder then. Call it first."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)

    # The terminal sends Ctrl-C to all processes; the parent forwards it to busy workers.
    ignore_interrupts()
    threading.Thread(target=wait_for_parent, daemon=True).start()
