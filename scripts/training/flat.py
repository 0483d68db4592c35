"""Flat parameter buffer: exchange, clipping, decay and averaging are one operation each."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

ALIGNMENT = 64
"""Elements; compiled kernels copy inputs that do not start at a multiple of 16 bytes."""


@dataclass(frozen=True)
class FlatSegment:
    """Parameters of one shape, stored one after another in the vector."""

    start: int
    stride: int
    """Elements from one parameter to the next."""
    count: int
    shape: torch.Size

    @property
    def end(self) -> int:
        return self.start + self.stride * self.count

    def view(self, vector: Tensor) -> Tensor:
        """This segment's part of a vector laid out like the parameters, [count, *shape]."""
        rows = vector[self.start : self.end].view(self.count, self.stride)
        return rows[:, : self.shape.numel()].view(self.count, *self.shape)


class FlatParameters:
    """Moves parameters into one vector; the modules keep working on views of it.

    Args:
        groups: parameters in the order of the vector; those of a group that share a shape become one `FlatSegment`.
    """

    values: Tensor
    """float32 [N]"""
    gradient: Tensor
    """float32 [N], filled by `collect_gradient`; zero in the gaps."""

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]]) -> None:
        self.segments: list[list[FlatSegment]] = []
        self._parameters: list[nn.Parameter] = []
        position = 0
        for group in groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group:
                by_shape.setdefault(parameter.shape, []).append(parameter)
            segments = []
            for shape, parameters in by_shape.items():
                stride = -(-shape.numel() // ALIGNMENT) * ALIGNMENT
                segments.append(FlatSegment(position, stride, len(parameters), shape))
                self._parameters += parameters
                position += stride * len(parameters)
            self.segments.append(segments)
        device = self._parameters[0].device
        self.values = torch.zeros(position, device=device)
        self.gradient = torch.zeros(position, device=device)
        self._gradient_views = self.views(self.gradient)
        for parameter, view in zip(self._parameters, self.views(self.values), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view

    def views(self, vector: Tensor) -> list[Tensor]:
        """One view for each parameter, in the order of the vector."""
        return [view for group in self.segments for segment in group for view in segment.view(vector)]

    def span(self, group: int) -> tuple[int, int]:
        """Start and end of a group in the vector; equal if it is empty."""
        segments = self.segments[group]
        return (segments[0].start, segments[-1].end) if segments else (0, 0)

    @torch.no_grad()
    def collect_gradient(self) -> Tensor:
        """Move the parameters' gradients into ``gradient`` and free them."""
        views, gradients = [], []
        for parameter, view in zip(self._parameters, self._gradient_views, strict=True):
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                view.zero_()
            elif gradient.is_contiguous():
                views.append(view)
                gradients.append(gradient)
            else:  # another layout would make the joint copy launch a kernel for each parameter
                view.copy_(gradient)
        if views:
            torch._foreach_copy_(views, gradients)
        return self.gradient

    def named(self, module: nn.Module, vector: Tensor) -> dict[str, Tensor]:
        """The part of a vector that belongs to ``module``, as views under its parameters' names; frozen parameters are
        returned themselves."""
        views = {id(p): v for p, v in zip(self._parameters, self.views(vector), strict=True)}
        return {name: views.get(id(parameter), parameter.data) for name, parameter in module.named_parameters()}


class AveragedWeights:
    """Exponential moving average of the parameters, with faster decay in its first steps."""

    def __init__(self, parameters: FlatParameters, decay: float) -> None:
        self._parameters = parameters
        self._decay = decay
        self.values = parameters.values.clone()

    @torch.no_grad()
    def update(self, step: int) -> None:
        """``step`` counts from 0."""
        decay = min(self._decay, (step + 1) / (step + 20))
        self.values.lerp_(self._parameters.values, 1 - decay)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The modules compute with the average inside this context."""
        with torch.no_grad():
            kept = self._parameters.values.clone()
            self._parameters.values.copy_(self.values)
        try:
            yield
        finally:
            with torch.no_grad():
                self._parameters.values.copy_(kept)
