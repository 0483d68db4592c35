"""The rasterizer of Gaussian splats: its interface, gsplat's as the one that trains, and the check that it is there."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from stream_recon.configs.errors import ResourceError, pip_install

Gaussians = dict[str, torch.nn.Parameter]
"""``means`` [N, 3], ``scales`` [N, 3] (logarithms), ``quats`` [N, 4], ``opacities`` [N] (logits), ``sh0`` [N, 1, 3] and
``shN`` [N, K - 1, 3]: spherical harmonics."""
NEAR = 0.01
"""Depth in the trainer's unit from which splats are drawn."""
OTHERS = "'stream-recon export OUT --format colmap' writes what Brush and other trainers read"
NEEDS = f"splats need an NVIDIA GPU, its CUDA compiler (nvcc) and gsplat: {{}}. Elsewhere: {OTHERS}"


@dataclass(frozen=True)
class Drawing:
    """What a camera sees of Gaussians."""

    rgb: Tensor  # [h, w, 3], over black
    depth: Tensor
    """[h, w] mean depth of what is drawn, along the optical axis; 0 where nothing is."""
    alpha: Tensor  # [h, w], opacity


class Rasterizer(Protocol):
    """Draws Gaussians as a pinhole camera sees them, with gradients for these and for the pose."""

    def __call__(
        self, gaussians: Gaussians, T_camera_world: Tensor, K: Tensor, size: tuple[int, int], sh_degree: int
    ) -> Drawing:
        """
        Args:
            T_camera_world: [4, 4]; the first two rows may have another scale than the third, which is the same as
                another focal length.
            K: [3, 3] in pixels; pixel (0, 0) covers [0, 1) x [0, 1).
            size: width and height.
            sh_degree: degree of the spherical harmonics that are used.
        """


def draw_gsplat(
    gaussians: Gaussians, T_camera_world: Tensor, K: Tensor, size: tuple[int, int], sh_degree: int
) -> Drawing:
    """The `Rasterizer` of gsplat, on a GPU."""
    drawn, alpha, _ = gsplat_rasterization(gaussians, T_camera_world, K, size, sh_degree)
    return Drawing(drawn[0, ..., :3], drawn[0, ..., 3], alpha[0, ..., 0])


def gsplat_rasterization(
    gaussians: Gaussians, T_camera_world: Tensor, K: Tensor, size: tuple[int, int], sh_degree: int
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """gsplat's own values of one view: colours and depth [1, h, w, 4], opacity [1, h, w, 1], and by-products."""
    from gsplat import rasterization

    drawn, alpha, info = rasterization(
        gaussians["means"],
        gaussians["quats"],
        torch.exp(gaussians["scales"]),
        torch.sigmoid(gaussians["opacities"]),
        torch.cat([gaussians["sh0"], gaussians["shN"]], 1),
        T_camera_world[None],
        K[None],
        *size,
        near_plane=NEAR,
        sh_degree=sh_degree,
        packed=False,
        render_mode="RGB+ED",
    )
    return drawn, alpha, info


def require_gsplat() -> None:
    """Check that splats can be trained here. Raises ResourceError with what is missing.

    The first start on a machine compiles gsplat's kernels, which takes minutes.
    """
    if not torch.cuda.is_available():
        raise ResourceError(NEEDS.format("no GPU is here"))
    try:
        import gsplat  # noqa: F401
        from gsplat.cuda._backend import _C
    except ImportError as error:
        raise ResourceError(NEEDS.format(pip_install("gsplat"))) from error
    except (RuntimeError, OSError) as error:
        first = next(iter(str(error).strip().splitlines()), "it failed")
        raise ResourceError(NEEDS.format(f"gsplat could not be compiled ({first})")) from error
    if _C is None:
        raise ResourceError(NEEDS.format("no CUDA compiler is here"))
