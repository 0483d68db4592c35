"""Random draws of one generator on its device, without host synchronisation."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Draws:
    """All randomness of the scenes: the same seed gives the same clips.

    Small constants are kept on the device, since copying one there would wait for the stream.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._constants: dict[tuple[object, ...], Tensor] = {}

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        draw = torch.rand(shape, generator=self._generator, device=self.device)
        return draw.mul_(high - low).add_(low)

    def log_uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return self.uniform(math.log(low), math.log(high), *shape).exp_()

    def normal(self, *shape: int, deviation: float = 1.0) -> Tensor:
        draw = torch.randn(shape, generator=self._generator, device=self.device)
        return draw if deviation == 1.0 else draw.mul_(deviation)

    def chance(self, probability: float, *shape: int) -> Tensor:
        """Bool, true with the given probability."""
        return torch.rand(shape, generator=self._generator, device=self.device) < probability

    def sign(self, *shape: int) -> Tensor:
        return self.chance(0.5, *shape).to(torch.float32) * 2 - 1

    def integer(self, high: int, *shape: int) -> Tensor:
        """int64 in 0..high-1."""
        return torch.randint(0, high, shape, generator=self._generator, device=self.device)

    def choice(self, weights: Sequence[float], *shape: int) -> Tensor:
        """int64 index into weights, drawn with those probabilities (they need not sum to 1)."""
        total = sum(weights)
        edges: list[float] = []
        for weight in weights[:-1]:
            edges.append((edges[-1] if edges else 0.0) + weight / total)
        return torch.bucketize(self.uniform(0.0, 1.0, *shape), self.constant(edges))

    def pick(self, values: Sequence[float], *shape: int) -> Tensor:
        """One of the values, with equal probability."""
        return self.constant(values)[self.integer(len(values), *shape)]

    def between(self, bounds: Tensor) -> Tensor:
        """Uniform between bounds[..., 0] and bounds[..., 1]."""
        low, high = bounds.unbind(-1)
        draw = torch.rand(low.shape, generator=self._generator, device=self.device)
        return low + (high - low) * draw

    def constant(self, values: object, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values (a number, or nested sequences) as a tensor on the device, made once."""
        key = (repr(values), dtype)
        if key not in self._constants:
            self._constants[key] = torch.tensor(values, dtype=dtype, device=self.device)
        return self._constants[key]


class SamplingProbability:
    """Probability of a property of clips, with a number of clips per batch that the host knows without waiting.

    Which clips have it is drawn on the device. Fractions of a clip carry over to the next batch.
    """

    def __init__(self, draws: Draws, share: float) -> None:
        self._draws = draws
        self._share = share
        self.left = 0.0

    def some(self, clips: int) -> Tensor | None:
        """The chosen clips of a batch, as int64 indices; None: no clip, and nothing is drawn."""
        self.left += clips * self._share
        count = min(int(self.left), clips)
        self.left -= count
        return self._draws.uniform(0.0, 1.0, clips).argsort()[:count] if count else None


def wave(draws: Draws, clips: int, frames: int, low: float, high: float, parts: int = 3) -> Tensor:
    """A smooth random function of time with zero mean and a deviation near 1, float32 [clips, frames].

    A sum of sines whose angular speeds are log-uniform between low and high radians per frame.
    """
    speed = draws.log_uniform(low, high, clips, parts, 1)
    phase = draws.uniform(0.0, 2 * math.pi, clips, parts, 1)
    time = torch.arange(frames, device=draws.device, dtype=torch.float32)
    return torch.sin(speed * time + phase).sum(1) * math.sqrt(2 / parts)
