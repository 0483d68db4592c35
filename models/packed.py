"""Prepacked weight matrices for a CPU's bf16 instructions; plain ones are repacked for each product.

oneDNN packs them, by the operators that torch's own compiler calls. Results differ in the last bit only.
"""

import torch
from torch import Tensor, nn

from stream_recon.models.layers import Block, Mlp

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
