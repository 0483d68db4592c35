"""A step as one captured CUDA graph."""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class StepGraph(Generic[T]):
    """Runs ``body`` as it stands the first time, which compiles and warms up all kernels, and from its capture later.

    ``body`` must take all that changes from tensors that stay where they are. What it returns is overwritten by the
    next run.
    """

    def __init__(self, body: Callable[[], T]) -> None:
        self._body = body
        self._graph: torch.cuda.CUDAGraph | None = None
        self._is_warm = False
        self._output: T | None = None

    def run(self) -> T:
        if not self._is_warm:
            self._is_warm = True
            return self._body()
        if self._graph is None:
            self._capture()
        assert self._graph is not None and self._output is not None
        self._graph.replay()
        return self._output

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._output = self._body()
        self._graph = graph
