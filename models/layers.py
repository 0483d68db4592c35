"""The transformer block of encoder, aggregator, camera head and flow head, and its matrices packed for a CPU.

A CPU's bf16 instructions need packed matrices; plain ones are repacked for each product. oneDNN packs them, by the
operators that torch's own compiler calls. Results differ in the last bit only.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stream_recon.models.rope import Rotation

Rotate = Callable[[Tensor, Rotation], Tensor]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q, k, v [N, T, H, D] -> [N, T, H, D]."""


def attend_within(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Plain attention of a sequence to itself, [N, T, H, D]."""
    y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return y.transpose(1, 2)


def in_fp32(like: Tensor) -> torch.autocast:
    """A context without autocast on the device of ``like``: matrix products keep the precision of their inputs."""
    return torch.autocast("cpu" if like.is_meta else like.device.type, enabled=False)  # meta has no autocast


class LayerScale(nn.Module):
    """A learned gain for each channel of a residual branch (Touvron et al. 2021)."""

    def __init__(self, dim: int, initial: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), initial))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Attention(nn.Module):
    """Projections before and after attention, which the caller computes; queries and keys are optionally normalised."""

    def __init__(self, dim: int, heads: int, qk_norm: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_norm = nn.LayerNorm(dim // heads) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(dim // heads) if qk_norm else nn.Identity()
        self.proj = nn.Linear(dim, dim)


class Mlp(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, dim: int, hidden: int, out: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Pre-norm transformer block on x [N, T, C], in two halves around the attention.

    ``project`` and ``finish`` are separate, so that each can be compiled while the cache implements the attention
    between them. ``fused``: operations between matrix products, in bf16 for inference on a GPU, run as Triton kernels;
    see `fused.run_blocks` for several blocks.
    """

    fused = False

    def __init__(
        self, dim: int, heads: int, mlp_ratio: float, *, qk_norm: bool, eps: float, layer_scale: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.attn = Attention(dim, heads, qk_norm)
        self.ls1 = LayerScale(dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), dim)
        self.ls2 = LayerScale(dim, layer_scale)

    def project(self, x: Tensor, rotate: Rotate | None, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """x [N, T, C] -> q, k, v [N, T, H, D], queries and keys normalised and with RoPE applied."""
        if self.fused:
            from stream_recon.models import fused  # needs Triton, which only GPU builds of torch bring

            return fused.project(self, fused.norm(x, self.norm1, self.attn.qkv.weight.dtype), rotate, rotation)
        qkv = self.attn.qkv(self.norm1(x)).unflatten(-1, (3, self.attn.heads, -1))
        q, k, v = qkv.unbind(-3)
        q, k = self.attn.q_norm(q), self.attn.k_norm(k)
        if rotate is not None and rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        return q.to(v.dtype), k.to(v.dtype), v

    def finish(self, x: Tensor, y: Tensor) -> Tensor:
        """Residual stream x [N, T, C] and attention output y [N, T, H, D] -> next x."""
        x = x + self.ls1(self.attn.proj(y.flatten(-2)))
        return x + self.ls2(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]

    def forward(
        self, x: Tensor, attend: Attend, rotate: Rotate | None = None, rotation: Rotation | None = None
    ) -> Tensor:
        if self.fused:
            from stream_recon.models import fused

            return fused.run_blocks(x, [fused.BlockCall(self, attend, rotate, rotation)])[0]
        q, k, v = self.project(x, rotate, rotation)
        return self.finish(x, attend(q, k, v))


TOKENS = 198
"""Typical number of rows of a product: oneDNN chooses a layout by it, which serves other numbers as well."""


def pack_blocks(part: nn.Module) -> None:
    """Pack the matrices of all blocks, which have to be bf16, for inference only.

    Does nothing where this torch or this CPU does not support it. The plain matrices are freed.
    """
    for block in part.modules():
        if isinstance(block, Block):
            try:
                qkv, proj, mlp = PackedLinear(block.attn.qkv), PackedLinear(block.attn.proj), PackedMlp(block.mlp)
            except (AttributeError, NotImplementedError, RuntimeError):
                return
            block.attn.register_module("qkv", qkv)
            block.attn.register_module("proj", proj)
            block.register_module("mlp", mlp)


class PackedLinear(nn.Module):
    """A linear layer with packed weights; ``gelu``: followed by GELU, before rounding to bf16."""

    def __init__(self, layer: nn.Linear, *, gelu: bool = False) -> None:
        super().__init__()
        # Not a parameter: copying or moving it would lose its layout.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), TOKENS)
        self._bias = layer.bias.detach() if layer.bias is not None else None
        self._after: tuple[str, list[float], str] = ("gelu", [], "none") if gelu else ("none", [], "")
        self(layer.weight.detach()[:1])  # unsupported operators raise here

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs] in bf16."""
        product = torch.ops.mkldnn._linear_pointwise
        return product(x.to(torch.bfloat16), self._weight, self._bias, *self._after)  # type: ignore[no-any-return]


class PackedMlp(nn.Module):
    """`Mlp` with packed weights."""

    def __init__(self, mlp: Mlp) -> None:
        super().__init__()
        self.fc1, self.fc2 = PackedLinear(mlp.fc1, gelu=True), PackedLinear(mlp.fc2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x))  # type: ignore[no-any-return]
