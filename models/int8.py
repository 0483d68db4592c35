"""Matrices in 8-bit integers for a CPU: weights with one scale per output channel, activations with one per call.

Products are oneDNN's, by the operators that torch's own compiler calls. Sums are exact in 32 bits where the CPU has
instructions for such products (VNNI, AMX). Without them it adds pairs of products in 16 bits; half of the weights'
levels then keep these sums exact.
"""

import time
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stream_recon.models.layers import TOKENS, Block, Mlp, PackedLinear

LEVELS = 254
"""Steps of an activation's range. One less than 8 bits hold, so that rounding never leaves them."""
ALL_LEVELS, HALF_LEVELS = 127, 63
"""Largest weight in 8 bits, and the largest whose pairs of products fit in 16 bits."""
CLEARLY_FASTER = 0.8
"""Share of the time of a wider product that one in int8 may take at most to be chosen."""
PROBED = (384, 1536)
"""Inputs and outputs of the product that is timed: a layer of the embedded network."""
REPEATS = 8
"""Repetitions of a timed product, of which the fastest counts."""


class Int8Linear(nn.Module):
    """A linear layer with weights in int8; ``gelu``: followed by GELU.

    Raises AttributeError, NotImplementedError or RuntimeError where this torch or this CPU cannot run it.
    """

    def __init__(self, layer: nn.Linear, levels: int, out: torch.dtype, *, gelu: bool = False) -> None:
        """``levels``: the largest weight, see `exact_levels`; ``out``: type of the outputs."""
        super().__init__()
        weight = layer.weight.detach().float()
        scale = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / levels
        rounded = (weight / scale[:, None]).round().to(torch.int8)
        # Not parameters: copying or moving the packed matrix would lose its layout.
        self._weight = torch.ops.onednn.qlinear_prepack(rounded, [TOKENS, weight.shape[1]])
        self._scale, self._zeros = scale, torch.zeros(len(scale), dtype=torch.int32)
        self._bias = layer.bias.detach().float() if layer.bias is not None else None
        self._out = out
        self._after: tuple[str, list[float], str] = ("gelu", [], "none") if gelu else ("none", [], "")
        self(weight[:1])  # unsupported operators raise here

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]"""
        rows, step, zero = quantise(x)
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows.flatten(0, -2), step, zero, self._weight, self._scale, self._zeros, self._bias, 1.0, 0, self._out,
            *self._after,
        )  # fmt: skip
        return y.view(*x.shape[:-1], -1)


class Int8Mlp(nn.Module):
    """`Mlp` in int8."""

    def __init__(self, mlp: Mlp, levels: int, out: torch.dtype) -> None:
        super().__init__()
        self.fc1, self.fc2 = Int8Linear(mlp.fc1, levels, out, gelu=True), Int8Linear(mlp.fc2, levels, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x))  # type: ignore[no-any-return]


def quantise(x: Tensor) -> tuple[Tensor, float, int]:
    """Activations of any shape as uint8, the step between two levels, and the level of 0."""
    x = x.float()
    low, high = (bound.item() for bound in torch.aminmax(x))
    low, high = min(low, 0.0), max(high, 0.0)
    step = max((high - low) / LEVELS, torch.finfo(torch.float32).tiny)
    zero = int(-low / step + 1)
    # Conversion cuts off the fraction; half a level more rounds.
    return torch.add(_constant(zero + 0.5), x, alpha=1 / step).to(torch.uint8), step, zero


@cache
def _constant(value: float) -> Tensor:
    return torch.tensor(value)


def quantise_blocks(part: nn.Module, out: torch.dtype) -> bool:
    """Replace the matrices of all blocks by int8 ones, for inference only; whether this CPU can run them.

    ``out``: type of their outputs. The plain matrices are freed.
    """
    levels = exact_levels()
    if not levels:
        return False
    for block in part.modules():
        if isinstance(block, Block):
            qkv, proj = (Int8Linear(layer, levels, out) for layer in (block.attn.qkv, block.attn.proj))
            mlp = Int8Mlp(block.mlp, levels, out)
            block.attn.register_module("qkv", qkv)
            block.attn.register_module("proj", proj)
            block.register_module("mlp", mlp)
    return True


@cache
def exact_levels() -> int:
    """The largest weight with which products of full activations are exact on this CPU; 0: there is none."""
    for levels in (ALL_LEVELS, HALF_LEVELS):
        layer = nn.Linear(64, 64, bias=False)
        layer.weight.data.fill_(1.0)
        try:
            product = Int8Linear(layer, levels, torch.float32)
        except (AttributeError, NotImplementedError, RuntimeError):
            return 0
        if torch.allclose(product(torch.ones(4, 64)), torch.full((4, 64), 64.0), rtol=1e-3):
            return levels
    return 0


@cache
def is_fastest(other: torch.dtype) -> bool:
    """Whether products in int8 are clearly faster on this CPU than in ``other``; measured once, in a few milliseconds."""
    with torch.no_grad():
        layer, x = nn.Linear(*PROBED), torch.randn(TOKENS, PROBED[0])
        levels = exact_levels()
        if not levels:
            return False
        return _seconds(Int8Linear(layer, levels, other), x) < CLEARLY_FASTER * _seconds(_plain(layer, other), x)


@cache
def bf16_is_faster() -> bool:
    """Whether products in bf16 are faster on this CPU than in fp32; measured once."""
    with torch.no_grad():
        layer, x = nn.Linear(*PROBED), torch.randn(TOKENS, PROBED[0])
        return _seconds(_plain(layer, torch.bfloat16), x) < _seconds(_plain(layer, torch.float32), x)


def _plain(layer: nn.Linear, dtype: torch.dtype) -> Callable[[Tensor], Tensor] | None:
    if dtype == torch.float32:
        return lambda x: F.linear(x, layer.weight, layer.bias)
    half = nn.Linear(layer.in_features, layer.out_features)
    half.load_state_dict(layer.state_dict())
    try:
        return PackedLinear(half.to(dtype))
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def _seconds(run: Callable[[Tensor], Tensor] | None, x: Tensor) -> float:
    """Time of the fastest of `REPEATS` runs; infinite where there is nothing to run."""
    if run is None:
        return float("inf")
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        run(x)
        times.append(time.perf_counter() - begin)
    return min(times[1:])  # the first one also makes the kernel
