"""Work for many threads whose results are wanted in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

Result = TypeVar("Result")


def in_order(
    pool: Executor, work: Callable[..., Result], arguments: Iterable[tuple[Any, ...]], ahead: int
) -> Iterator[Result]:
    """As the pool's own ``map``, which would read all of the arguments at once; here at most ``ahead`` of them wait."""
    waiting: deque[Future[Result]] = deque()
    try:
        for some in arguments:
            waiting.append(pool.submit(work, *some))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
