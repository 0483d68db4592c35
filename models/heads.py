"""Camera head: pose codes from camera tokens. Dense head: DPT (Ranftl et al. 2021) over four aggregator outputs."""

from collections.abc import Sequence
from functools import cache, lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stream_recon.cache.attention import KVCache
from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.encoder import STEM_CHANNELS
from stream_recon.models.layers import Block, Mlp, in_fp32
from stream_recon.models.rope import exact_device

POSE_CODE = 9
"""Translation (3), quaternion xyzw (4), vertical and horizontal field of view in radians (2)."""


class CameraHead(nn.Module):
    """Iterative refinement of pose codes.

    Each iteration modulates the token by the last pose code (adaptive layer norm, Peebles & Xie 2023). The trunk
    attends to all cached frames' tokens of the same iteration, and its output is added to the code. ``fused``:
    operations between matrix products run as Triton kernels, for inference on a GPU.
    """

    fused = False

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        dim = config.camera_dim or 2 * config.dim
        self.iterations = config.camera_iterations
        self.token_norm = nn.LayerNorm(2 * config.dim)
        self.project = nn.Linear(2 * config.dim, dim) if config.camera_dim else nn.Identity()
        self.empty_pose = nn.Parameter(torch.zeros(1, 1, POSE_CODE))
        self.embed_pose = nn.Linear(POSE_CODE, dim)
        self.modulation = nn.Linear(dim, 3 * dim)
        self.trunk = nn.ModuleList(
            Block(dim, config.camera_heads, 4.0, qk_norm=False, eps=1e-5, layer_scale=0.01)
            for _ in range(config.camera_depth)
        )
        self.trunk_norm = nn.LayerNorm(dim)
        self.pose_branch = Mlp(dim, dim // 2, POSE_CODE)

    def forward(self, camera_tokens: Tensor, kv_cache: KVCache) -> Tensor:
        """camera_tokens [B, S, 2*dim] -> pose codes of all iterations, [I, B, S, 9], fields of view not negative."""
        if self.fused:
            from stream_recon.models.fused_camera import camera_poses  # needs Triton

            return camera_poses(self, camera_tokens, kv_cache)
        tokens = self.project(self.token_norm(camera_tokens))
        pose = self.empty_pose.expand(*tokens.shape[:2], -1)
        total: Tensor | None = None
        poses = []
        for iteration in range(self.iterations):
            # Each iteration learns its own correction: no gradient through the code it starts from.
            embedded = self.embed_pose(pose.detach() if iteration else pose)
            shift, scale, gate = self.modulation(F.silu(embedded)).chunk(3, dim=-1)
            normed = F.layer_norm(tokens, tokens.shape[-1:], eps=1e-6)
            x = tokens + gate * (normed * (1 + scale) + shift)
            for depth, block in enumerate(self.trunk):
                x = block(x, partial(kv_cache.attend_camera, iteration * len(self.trunk) + depth))
            # In fp32 on any device: rounded to bf16, a pose has an error of tenths of a degree.
            with in_fp32(x):
                delta = self.pose_branch(self.trunk_norm(x.float()))
            total = delta if total is None else total.detach() + delta
            pose = total
            poses.append(torch.cat([total[..., :7], F.relu(total[..., 7:])], dim=-1))
        return torch.stack(poses)


@lru_cache(maxsize=64)
def _weights(source: int, target: int, align_corners: bool, device: torch.device) -> Tensor:
    """Weights [target, source] of linear interpolation along one axis."""
    unit = torch.eye(source, device=device, dtype=torch.float64)[:, None]
    mode = {"mode": "linear", "align_corners": align_corners}
    return F.interpolate(unit, size=target, **mode)[:, 0].T.contiguous()  # type: ignore[arg-type]


class _Resize(torch.autograd.Function):
    """Bilinear interpolation whose gradient is two matrix products; torch's, by atomics, took a third of a step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, height: int, width: int, align_corners: bool) -> Tensor:
        ctx.shape, ctx.target, ctx.align_corners = x.shape[-2:], (height, width), align_corners
        return F.interpolate(x, size=(height, width), mode="bilinear", align_corners=align_corners)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = gradients
        rows, columns = (
            _weights(source, target, ctx.align_corners, gradient.device).to(gradient.dtype)
            for source, target in zip(ctx.shape, ctx.target, strict=True)
        )
        return rows.T @ (gradient @ columns), None, None, None


def resize_bilinear(x: Tensor, size: tuple[int, int], *, align_corners: bool) -> Tensor:
    """x [F, C, H, W] -> [F, C, *size]."""
    if x.shape[-2:] == size:
        return x
    if x.requires_grad:
        return _Resize.apply(x, *size, align_corners)  # type: ignore[no-any-return, no-untyped-call]
    return F.interpolate(x, size=size, mode="bilinear", align_corners=align_corners)


HIDDEN = 32
"""Channels of the last layer before the output."""
POSITION_RATIO = 0.1
"""Amplitude of the position code, as in published heads."""
POSITION_BASE = 100.0
"""Base of the position code's frequencies, as in published heads."""
NEIGHBOURS = 9
"""Pixels that convex upsampling mixes: 3 x 3."""
TENSOR_CORE_CHANNELS = 8
"""Fast kernels of cuBLAS need rows of 16 bytes, which is this number of channels in bf16."""


@cache
def position_grid(
    size: tuple[int, int], channels: int, aspect: float, device: torch.device, dtype: torch.dtype, channels_last: bool
) -> Tensor:
    """Sine-cosine code of pixel positions, [1, channels, height, width]; the image's diagonal has length 2."""
    height, width = size
    diagonal = (aspect**2 + 1) ** 0.5
    exact = exact_device(device)
    x = torch.linspace(-1, 1, width, device=exact) * (aspect / diagonal * (width - 1) / width)
    y = torch.linspace(-1, 1, height, device=exact) * (1 / diagonal * (height - 1) / height)
    quarter = channels // 4
    frequency = POSITION_BASE ** -(torch.arange(quarter, dtype=torch.float64, device=exact) / quarter)

    def waves(positions: Tensor) -> Tensor:
        angles = positions.double()[:, None] * frequency
        return torch.cat([angles.sin(), angles.cos()], dim=1).float()

    along_x = waves(x)[None].expand(height, -1, -1)
    along_y = waves(y)[:, None].expand(-1, width, -1)
    code = torch.cat([along_x, along_y], dim=-1) * POSITION_RATIO
    code = code.to(device, dtype).permute(2, 0, 1)[None]
    return code if channels_last else code.contiguous()


def add_position(x: Tensor, aspect: float) -> Tensor:
    """x [F, C, H, W] plus the code of its pixels' positions; ``aspect``: width by height."""
    channels_last = x.is_contiguous(memory_format=torch.channels_last)
    return x + position_grid((x.shape[2], x.shape[3]), x.shape[1], aspect, x.device, x.dtype, channels_last)


def project_channels(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """A 1x1 convolution to few channels as a matrix product: x [F, C, H, W], channels last -> [F, outputs, H, W].

    cuDNN has no tensor-core kernel for two output channels: its three passes took 10 ms of a training step. On a GPU
    missing columns are padded with zeros. The product and its gradient keep the map's memory layout.
    """
    weight, bias = conv.weight.flatten(1), conv.bias
    assert conv.kernel_size == (1, 1) and bias is not None
    missing = -conv.out_channels % TENSOR_CORE_CHANNELS if x.is_cuda else 0
    if missing:
        weight, bias = F.pad(weight, (0, 0, 0, missing)), F.pad(bias, (0, missing))
    y = F.linear(x.permute(0, 2, 3, 1), weight, bias)
    return y[..., : conv.out_channels].permute(0, 3, 1, 2)


class ResidualConv(nn.Module):
    """Two convolutions with a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        # The skip carries the rectified input: published weights were trained with an in-place ReLU.
        x = F.relu(x)
        return x + self.conv2(F.relu(self.conv1(x)))  # type: ignore[no-any-return]


class ConvexUpsampling(nn.Module):
    """Upsampling by two in which each new pixel is a learned convex mixture of nine neighbours (RAFT, Teed & Deng
    2020), so that edges stay sharp."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mixture = nn.Conv2d(channels, 4 * NEIGHBOURS, 1)

    def forward(self, x: Tensor, features: Tensor) -> Tensor:
        """x [F, C, h, w], features [F, D, h, w] -> [F, C, 2h, 2w]."""
        frames, channels, height, width = x.shape
        shares = project_channels(features, self.mixture).float().unflatten(1, (4, NEIGHBOURS)).softmax(2)
        around = F.unfold(F.pad(x.float(), (1, 1, 1, 1), mode="replicate"), 3)
        around = around.view(frames, channels, 1, NEIGHBOURS, height, width)
        mixed = (around * shares[:, None]).sum(3)
        return F.pixel_shuffle(mixed.flatten(1, 2), 2)


class Fusion(nn.Module):
    """Fusion of a coarser level with a finer one, then upsampling."""

    def __init__(self, channels: int, *, has_skip: bool) -> None:
        super().__init__()
        self.skip = ResidualConv(channels) if has_skip else None
        self.refine = ResidualConv(channels)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor, finer: Tensor | None, size: tuple[int, int]) -> Tensor:
        if self.skip is not None and finer is not None:
            x = x + self.skip(finer)
        # A 1x1 convolution and resizing commute; before the map grows, the convolution costs a quarter.
        return resize_bilinear(self.out(self.refine(x)), size, align_corners=True)


class DPTHead(nn.Module):
    """Dense outputs at image resolution, without activations.

    ``fused``: with convex upsampling, operations between convolutions run as Triton kernels, for inference on a GPU.
    """

    fused = False

    def __init__(self, config: NetworkConfig, outputs: int) -> None:
        super().__init__()
        features, channels = config.dpt_features, config.dpt_channels
        self.patch_size = config.patch_size
        self.norm = nn.LayerNorm(2 * config.dim)
        self.projects = nn.ModuleList(nn.Conv2d(2 * config.dim, c, 1) for c in channels)
        self.resize = nn.ModuleList(
            [
                nn.ConvTranspose2d(channels[0], channels[0], 4, stride=4),
                nn.ConvTranspose2d(channels[1], channels[1], 2, stride=2),
                nn.Identity(),
                nn.Conv2d(channels[3], channels[3], 3, stride=2, padding=1),
            ]
        )
        self.reduce = nn.ModuleList(nn.Conv2d(c, features, 3, padding=1, bias=False) for c in channels)
        self.fusions = nn.ModuleList(Fusion(features, has_skip=level < 3) for level in range(4))
        self.out1 = nn.Conv2d(features, features // 2, 3, padding=1)
        self.detail = nn.Conv2d(STEM_CHANNELS, features // 2, 1) if config.encoder_stem == "conv" else None
        self.out2 = nn.Conv2d(features // 2, HIDDEN, 3, padding=1)
        self.out3 = nn.Conv2d(HIDDEN, outputs, 1)
        convex = config.dpt_upsampling == "convex"
        self.sharpen = ResidualConv(HIDDEN) if convex else None
        self.upsample = ConvexUpsampling(HIDDEN) if convex else None

    def forward(self, taps: Sequence[Tensor], grid: tuple[int, int], detail: Tensor | None) -> Tensor:
        """Four taps [F, gh*gw, 2*dim], coarse levels last -> [F, outputs, gh*patch, gw*patch]."""
        if self.fused and self.upsample is not None and detail is not None:
            from stream_recon.models.fused_maps import dense_outputs  # needs Triton

            return dense_outputs(self, taps, grid, detail)
        height, width = grid[0] * self.patch_size, grid[1] * self.patch_size
        aspect = width / height
        levels = []
        for tap, project, resize, reduce in zip(taps, self.projects, self.resize, self.reduce, strict=True):
            x = self.norm(tap).transpose(1, 2).unflatten(2, grid)
            levels.append(reduce(resize(add_position(project(x), aspect))))
        x = levels[3]
        for level in (3, 2, 1, 0):
            finer = levels[level] if level < 3 else None
            size = levels[level - 1].shape[-2:] if level else tuple(2 * s for s in x.shape[-2:])
            x = self.fusions[level](x, finer, (int(size[0]), int(size[1])))
        last = (height, width) if self.upsample is None else (height // 2, width // 2)
        x = resize_bilinear(self.out1(x), last, align_corners=True)
        x = add_position(x, aspect)
        if self.detail is not None and detail is not None:
            x = x + resize_bilinear(self.detail(detail), last, align_corners=False)
        x = F.relu(self.out2(x))
        if self.sharpen is not None and self.upsample is not None:
            x = F.relu(self.sharpen(x))
            return self.upsample(project_channels(x, self.out3), x)  # type: ignore[no-any-return]
        return project_channels(x, self.out3)
