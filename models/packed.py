"""Blocks' matrices laid out once for a CPU's bf16 instructions, where plain ones are laid out anew for each product.

oneDNN does this, by the operators that torch's own compiler calls. What comes out is the same but for the last bit.
"""

import torch
from torch import Tensor, nn

from stream_recon.models.layers import Block, Mlp

TOKENS = 198
"""Rows that products mostly have: oneDNN chooses a layout by it, which serves others as well."""


def pack_blocks(part: nn.Module) -> None:
    """Pack the matrices of all blocks, which are bf16 by now; nothing where this torch or this CPU has no such way.

    Nothing can learn any more, and the plain matrices are gone.
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
    """``gelu``: of what comes out, before it is rounded to bf16."""

    def __init__(self, layer: nn.Linear, *, gelu: bool = False) -> None:
        super().__init__()
        # No parameter: copying or moving it would lose its layout.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), TOKENS)
        self._bias = layer.bias.detach() if layer.bias is not None else None
        self._after: tuple[str, list[float], str] = ("gelu", [], "none") if gelu else ("none", [], "")
        self(layer.weight.detach()[:1])  # raises here, if anywhere

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs] in bf16."""
        product = torch.ops.mkldnn._linear_pointwise
        return product(x.to(torch.bfloat16), self._weight, self._bias, *self._after)  # type: ignore[no-any-return]


class PackedMlp(nn.Module):
    def __init__(self, mlp: Mlp) -> None:
        super().__init__()
        self.fc1, self.fc2 = PackedLinear(mlp.fc1, gelu=True), PackedLinear(mlp.fc2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x))  # type: ignore[no-any-return]
