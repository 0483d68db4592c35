"""Work that may wait for a drive, in threads: each has a time limit, after which the server goes on without it."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from stream_recon.configs.errors import ResourceError

THREAD_SECONDS = 20.0
"""Time limit of work of a moment."""
LONG_SECONDS = 6 * 3600.0
"""That of work on whole videos: hashing, packing, unpacking."""
T = TypeVar("T")


async def in_thread(work: Callable[..., T], *arguments: Any, limit_s: float = THREAD_SECONDS) -> T:
    """Result of a function, which runs in a thread. Raises what it raises, and ResourceError after ``limit_s``.

    A thread that was given up does not keep the program from ending, as those of an executor do.
    """
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(work(*arguments))
        except BaseException as error:  # noqa: BLE001  # raised where the result is awaited
            answer.set_exception(error)

    try:
        threading.Thread(target=run, daemon=True).start()
        return await asyncio.wait_for(asyncio.wrap_future(answer), limit_s)
    except TimeoutError as error:
        if answer.done():
            raise
        raise ResourceError(f"a drive did not answer within {limit_s:g} s: try again") from error
    except RuntimeError as error:
        if answer.done():
            raise
        raise ResourceError("the machine gives no more threads: try again") from error
