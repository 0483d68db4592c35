"""A rasterizer of few Gaussians in plain torch, for tests on a CPU: projection, sorting and blending by the book."""

import torch
from torch import Tensor

from stream_recon.app.core.splats import SH_0
from stream_recon.app.splat.densification import rotations
from stream_recon.app.splat.rasterizer import NEAR, Drawing, Gaussians


def draw_plainly(
    gaussians: Gaussians, T_camera_world: Tensor, K: Tensor, size: tuple[int, int], sh_degree: int
) -> Drawing:
    """A `Rasterizer` with gradients for all of its input; colours of spherical harmonics up to degree 1."""
    R, t = T_camera_world[:3, :3], T_camera_world[:3, 3]
    local = gaussians["means"] @ R.T + t
    z = local[:, 2].clamp_min(NEAR)
    fx, fy = K[0, 0], K[1, 1]
    zero = torch.zeros_like(z)
    J = torch.stack([fx / z, zero, -fx * local[:, 0] / z**2, zero, fy / z, -fy * local[:, 1] / z**2], -1)
    axes = R @ rotations(gaussians["quats"]) * gaussians["scales"].exp()[:, None]
    flat = J.reshape(-1, 2, 3) @ axes
    covariance = flat @ flat.transpose(1, 2) + 0.3 * torch.eye(2)
    centre = local[:, :2] / z[:, None] * torch.stack([fx, fy]) + K[:2, 2]
    order = torch.argsort(z.detach())
    y, x = torch.meshgrid(torch.arange(size[1]) + 0.5, torch.arange(size[0]) + 0.5, indexing="ij")
    away = torch.stack([x, y], -1)[None] - centre[order, None, None]
    power = torch.einsum("nhwi,nij,nhwj->nhw", away, torch.linalg.inv(covariance[order]), away)
    seen = (local[order, 2] > NEAR).float()
    alpha = (gaussians["opacities"][order].sigmoid() * seen)[:, None, None] * torch.exp(-power / 2)
    alpha = alpha.clamp_max(0.999)
    through = torch.cumprod(torch.cat([torch.ones_like(alpha[:1]), 1 - alpha]), 0)
    weight = alpha * through[:-1]
    rgb = torch.einsum("nhw,nc->hwc", weight, _colours(gaussians, R, t, sh_degree)[order])
    opacity = 1 - through[-1]
    depth = torch.einsum("nhw,n->hw", weight, z[order]) / opacity.clamp_min(1e-6)
    return Drawing(rgb, depth, opacity)


def _colours(gaussians: Gaussians, R: Tensor, t: Tensor, sh_degree: int) -> Tensor:
    colour = 0.5 + SH_0 * gaussians["sh0"][:, 0]
    if sh_degree > 0:
        eye = -torch.linalg.inv(R) @ t
        x, y, z = torch.nn.functional.normalize(gaussians["means"] - eye, dim=-1).detach().unbind(-1)
        basis = 0.4886025119029199 * torch.stack([-y, z, -x], -1)
        colour = colour + torch.einsum("nk,nkc->nc", basis, gaussians["shN"][:, :3])
    return colour.clamp_min(0)
