"""A step as one captured CUDA graph."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


class StepGraph(Generic[T]):
    """Runs a body as it stands the first time, which compiles and warms up all kernels, and from its capture later.

    The body must take all that changes from tensors that stay where they are. What it returns is overwritten by the
    next run. Constants that it makes once have to be kept for good, of all shapes (`functools.cache`): a graph goes on
    reading them where they were.
    """

    def __init__(self, pool: Any = None) -> None:
        """``pool``: memory that several graphs share (`torch.cuda.graph_pool_handle`), each overwriting what others
        returned."""
        self._pool = pool
        self._graph: torch.cuda.CUDAGraph | None = None
        self._is_warm = False
        self._output: T | None = None

    def run(self, body: Callable[[], T]) -> T:
        """``body``: the same every time. It is not kept: what owns both would then outlive its last user, memory and
        all, until cycles are collected."""
        if not self._is_warm:
            self._is_warm = True
            return body()
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                self._output = body()
            self._graph = graph
        assert self._output is not None
        self._graph.replay()
        return self._output
