"""Image encoder: a DINOv2-style ViT with registers (Oquab et al. 2023, Darcet et al. 2024)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.layers import Block, attend_within

STEM_CHANNELS = 32
"""Channels of the convolutional stem's detail."""


def project_patches(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """A convolution with a stride of its kernel's size: x [F, C, H, W] -> [F, gh*gw, outputs].

    On a GPU it is one matrix product: cuDNN's three passes took 10 of a step's 120 ms. A CPU convolves faster.
    """
    if not x.is_cuda:
        return conv(x).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]
    return unfolded_product(x, conv)


def unfolded_product(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """`project_patches` as one matrix product. With channels last, unfolding copies rows of ``side`` pixels at once."""
    side = conv.kernel_size[0]
    assert conv.kernel_size == conv.stride == (side, side) and conv.bias is not None
    cells = x.permute(0, 2, 3, 1).unflatten(2, (-1, side)).unflatten(1, (-1, side))  # [F, gh, side, gw, side, C]
    flat = cells.transpose(2, 3).flatten(3).flatten(1, 2)
    return F.linear(flat, conv.weight.permute(0, 2, 3, 1).flatten(1), conv.bias)


class ConvStem(nn.Module):
    """Overlapping convolutions in addition to the patch projection.

    With them, a ViT trained from scratch on few frames learns local detail faster (Xiao et al. 2021). Their features at
    half resolution also sharpen the depth head.
    """

    def __init__(self, dim: int, patch_size: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, STEM_CHANNELS, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(STEM_CHANNELS, STEM_CHANNELS, 3, padding=1)
        self.proj = nn.Conv2d(STEM_CHANNELS, dim, patch_size // 2, stride=patch_size // 2)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """images [F, 3, H, W] -> patch features [F, gh*gw, dim], detail [F, STEM_CHANNELS, H/2, W/2]."""
        detail = F.gelu(self.conv2(F.gelu(self.conv1(images))))
        return project_patches(detail, self.proj), detail


class Encoder(nn.Module):
    """ViT over the patches of each frame alone.

    ``fused``: operations between matrix products run as Triton kernels, for inference on a GPU; see `fused_encoder`.
    """

    fused = False

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        dim, patch = config.dim, config.patch_size
        side = config.image_size // patch
        self.patch_size = patch
        self.registers = config.registers
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.register_tokens = nn.Parameter(torch.zeros(1, config.registers, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + side * side, dim))
        self.patch_embed = nn.Conv2d(3, dim, patch, stride=patch)
        self.stem = ConvStem(dim, patch) if config.encoder_stem == "conv" else None
        self.blocks = nn.ModuleList(
            Block(dim, config.heads, config.mlp_ratio, qk_norm=config.encoder_qk_norm, eps=1e-6, layer_scale=1.0)
            for _ in range(config.encoder_depth)
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self._resized: dict[tuple[int, ...], Tensor] = {}
        self._resized_from = 0
        self._constants: dict[str, tuple[int, Tensor]] = {}

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Normalised images [F, 3, H, W] -> patch tokens [F, gh*gw, dim] and, with a conv stem, its detail."""
        x, detail = self.patch_embed(images), None
        grid = x.shape[-2:]
        x = x.flatten(2).transpose(1, 2)
        if self.stem is not None:
            features, detail = self.stem(images)
            x = x + features
        x = x.float() + self.positions(tuple(grid))
        x = torch.cat([self.leading_tokens().expand(x.shape[0], -1, -1), x], dim=1)
        for block in self.blocks:
            x = block(x, attend_within)
        return self.norm(x)[:, 1 + self.registers :], detail

    def leading_tokens(self) -> Tensor:
        """Tokens before the patches, [1, 1 + registers, dim]."""
        return torch.cat([self.cls_token + self.pos_embed[:, :1], self.register_tokens], dim=1)

    def constant(self, name: str, weight: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What is made of a weight that does not learn, once: captured graphs read it at its address."""
        made_from, made = self._constants.get(name, (0, weight))
        if made_from != weight.data_ptr():
            made = make(weight)
            self._constants[name] = (weight.data_ptr(), made)
        return made

    def positions(self, grid: tuple[int, ...]) -> Tensor:
        """The position table resized to the patch grid, [1, gh*gw, dim].

        Where the table does not learn, the result for each grid is kept: captured graphs read it at its address.
        """
        if self.pos_embed.requires_grad:
            return self._resized_positions(grid)
        if self._resized_from != self.pos_embed.data_ptr():
            self._resized, self._resized_from = {}, self.pos_embed.data_ptr()
        if grid not in self._resized:
            self._resized[grid] = self._resized_positions(grid)
        return self._resized[grid]

    def _resized_positions(self, grid: tuple[int, ...]) -> Tensor:
        table = self.pos_embed[:, 1:].float()
        side = int(table.shape[1] ** 0.5)
        if grid == (side, side):
            return table
        table = table.unflatten(1, (side, side)).permute(0, 3, 1, 2)
        table = F.interpolate(table, size=grid, mode="bicubic", antialias=True)
        return table.flatten(2).transpose(1, 2)
