"""Matrices in 8-bit integers for a CPU: weights with one scale per output channel, activations with
one per call, or one per frame where frames of several streams are in one call. Outputs are in fp32.

Products are oneDNN's, by the operators that torch's own compiler calls. Sums are exact in 32 bits where the CPU has
instructions for such products (VNNI, AMX). Without them it adds pairs of products in 16 bits; half of the weights'
levels then keep these sums exact.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stream_recon.cache.int8_frame_cache import CLEARLY_FASTER, thread_seconds
from stream_recon.models.layers import TOKENS, Block, Mlp, PackedLinear

LEVELS = 254
"""Steps of an activation's range. One less than 8 bits hold, so that rounding never leaves them."""
ALL_LEVELS, HALF_LEVELS = 127, 63
"""Largest weight in 8 bits, and the largest whose pairs of products fit in 16 bits."""
PROBED = (384, 1536)
"""Inputs and outputs of the product that is timed: a layer of the embedded network."""


class Int8Linear(nn.Module):
    """A linear layer with weights in int8; ``gelu``: followed by GELU.

    Raises AttributeError, NotImplementedError or RuntimeError where this torch or this CPU cannot run it.
    """

    separate = False
    """Each frame of a call has its own scale; see `separate_frames`."""

    def __init__(self, layer: nn.Linear, levels: int, *, gain: Tensor | None = None, gelu: bool = False) -> None:
        """``levels``: the largest weight, see `exact_levels`; ``gain`` [outputs]: factors on the outputs."""
        super().__init__()
        weight, self._scale = round_weights(layer.weight, levels)
        # Not parameters: copying or moving the packed matrix would lose its layout.
        self._weight = torch.ops.onednn.qlinear_prepack(weight, [TOKENS, layer.in_features])
        self._zeros = torch.zeros(layer.out_features, dtype=torch.int32)
        self._bias = layer.bias.detach().float() if layer.bias is not None else None
        if gain is not None:
            self._scale, self._bias = self._scale * gain, None if self._bias is None else self._bias * gain
        self._after: tuple[str, list[float], str] = ("gelu", [], "none") if gelu else ("none", [], "")
        self(layer.weight.detach()[:1])  # unsupported operators raise here

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs] in fp32."""
        return _frame_by_frame(self.product, x) if self.separate else self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """`forward` with one scale for all of ``x``."""
        rows, step, zero = quantise(x)
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows.flatten(0, -2), step, zero, self._weight, self._scale, self._zeros, self._bias, 1.0, 0,
            torch.float32, *self._after,
        )  # fmt: skip
        return y.view(*x.shape[:-1], -1)


class Int8Mlp(nn.Module):
    """`Mlp` in int8."""

    def __init__(self, mlp: Mlp, levels: int, gain: Tensor) -> None:
        super().__init__()
        self.fc1, self.fc2 = Int8Linear(mlp.fc1, levels, gelu=True), Int8Linear(mlp.fc2, levels, gain=gain)

    def forward(self, x: Tensor) -> Tensor:
        return _frame_by_frame(self._product, x) if self.fc1.separate else self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        return self.fc2.product(self.fc1.product(x))


def separate_frames(network: nn.Module) -> None:
    """Let each frame of a call have its own scales, so that no stream depends on others in its batch."""
    for part in network.modules():
        if isinstance(part, Int8Linear):
            part.separate = True


def _frame_by_frame(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``run`` for each of the frames [N, T, C], or for all of ``x`` [T, C]."""
    return torch.stack([run(frame) for frame in x]) if x.dim() > 2 and len(x) > 1 else run(x)


def round_weights(weight: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Weights [outputs, ...] as int8 up to ``levels``, and the scale of each output."""
    weight = weight.detach().float()
    scale = weight.abs().flatten(1).amax(1).clamp_min(torch.finfo(torch.float32).tiny) / levels
    return (weight / scale.view(-1, *(1,) * (weight.dim() - 1))).round().to(torch.int8), scale


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


def quantise_blocks(part: nn.Module) -> None:
    """Replace the matrices of all blocks by int8 ones, with the blocks' gains in them, for inference only.

    The plain matrices are freed. Only where `exact_levels` is not 0.
    """
    levels = exact_levels()
    for block in part.modules():
        if isinstance(block, Block):
            block.attn.register_module("qkv", Int8Linear(block.attn.qkv, levels))
            block.attn.register_module("proj", Int8Linear(block.attn.proj, levels, gain=block.ls1.gamma))
            block.register_module("mlp", Int8Mlp(block.mlp, levels, block.ls2.gamma))
            block.register_module("ls1", nn.Identity())
            block.register_module("ls2", nn.Identity())


@cache
def exact_levels() -> int:
    """The largest weight with which products of full activations are exact on this CPU; 0: there is none."""
    for levels in (ALL_LEVELS, HALF_LEVELS):
        layer = nn.Linear(64, 64, bias=False)
        layer.weight.data.fill_(1.0)
        try:
            product = Int8Linear(layer, levels)
        except (AttributeError, NotImplementedError, RuntimeError):
            return 0
        if torch.allclose(product(torch.ones(4, 64)), torch.full((4, 64), 64.0), rtol=1e-3):
            return levels
    return 0


@cache
def is_fastest(other: torch.dtype) -> bool:
    """Whether products in int8 are clearly faster on this CPU than in ``other``; measured once, in milliseconds."""
    with torch.no_grad():
        layer, x = nn.Linear(*PROBED), torch.randn(TOKENS, PROBED[0])
        levels = exact_levels()
        if not levels:
            return False
        return _seconds(Int8Linear(layer, levels), x) < CLEARLY_FASTER * _seconds(_plain(layer, other), x)


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
    """Time of a product; infinite where there is none."""
    return float("inf") if run is None else thread_seconds(lambda: run(x))
