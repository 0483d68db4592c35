"""Compilation of a step's Triton kernels side by side, before the step first runs."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

logger = logging.getLogger(__name__)

COMPILES = "compiling kernels for this GPU, once: up to 15 s"
"""Logged where kernels are not in Triton's cache."""
PATIENCE_S = 0.4
"""Compilation that lasts longer is announced; kernels of the cache are loaded in less."""
MAX_THREADS = 16
"""More gain nothing: a part of compilation holds Python's lock."""


def compile_kernels(step: Callable[[], object]) -> None:
    """Compile the kernels that ``step`` starts, side by side, without running any.

    ``step`` runs on the device without its kernels, so what it computes is meaningless, and what it wrote has to be
    written again. A kernel that does not compile raises its error where it is first used.
    """
    try:
        from triton import AsyncCompileMode
    except ImportError:  # older than 3.5: each kernel is compiled where it is first used
        return
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "compile") as pool:
        mode = AsyncCompileMode(pool, ignore_errors=True)
        with _announced(mode), mode, _without_launches():
            step()


@contextmanager
def _without_launches() -> Iterator[None]:
    """Kernels are compiled and not started."""
    from triton import JITFunction

    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **options)

    JITFunction.run = compile_only
    try:
        yield
    finally:
        JITFunction.run = run


@cache
def _announce() -> None:
    """Once per process: a first step and a later one have different kernels."""
    logger.warning(COMPILES)


@contextmanager
def _announced(mode: Any) -> Iterator[None]:
    """`COMPILES` is logged if compilation lasts."""
    done = threading.Event()

    def watch() -> None:
        waiting: set[Any] = set()
        while not done.wait(PATIENCE_S):
            before, waiting = waiting, {future for future in list(mode.raw_futures) if not future.done()}
            if waiting & before:
                _announce()
                return

    watcher = threading.Thread(target=watch, name="compilation", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
