"""Bounded densification: Gaussians that show nothing move to where opaque ones are, and new ones are added there.

As in 3D Gaussian splatting as Markov chain Monte Carlo (Kheradmand et al. 2024): a Gaussian that gets copies is divided
so that the image hardly changes, and positions get noise where opacity is low. The number never exceeds a bound.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stream_recon.app.splat.config import DensificationConfig
from stream_recon.app.splat.model import SplatModel


def bounded(max_splats: int, device: torch.device, config: DensificationConfig) -> int:
    """``max_splats``, or fewer where a GPU has less free memory."""
    if device.type != "cuda":
        return max_splats
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(max_splats, int(config.memory_share * free / config.bytes_per_splat)))


@dataclass
class Densification:
    """Moves and adds Gaussians of a model, up to ``max_splats``."""

    max_splats: int
    generator: torch.Generator
    config: DensificationConfig

    @torch.no_grad()
    def act(self, model: SplatModel) -> None:
        """Move what shows nothing, and add to the rest."""
        self._relocate(model)
        self._grow(model)

    @torch.no_grad()
    def add_noise(self, model: SplatModel, means_rate: float) -> None:
        """Move positions at random along their Gaussians' axes, the less opaque the more."""
        g = model.gaussians
        opacity = torch.sigmoid(g["opacities"])
        share = torch.sigmoid(100 * ((1 - opacity) - (1 - self.config.dead)))
        noise = torch.randn(g["means"].shape, generator=self.generator, device=opacity.device)
        factor = self.config.noise * model.rates["means"] * means_rate * share[:, None]
        R = rotations(g["quats"])
        local = torch.einsum("nji,nj->ni", R, noise * factor) * torch.exp(2 * g["scales"])
        g["means"].add_(torch.einsum("nij,nj->ni", R, local))

    def _relocate(self, model: SplatModel) -> None:
        opacity = torch.sigmoid(model.gaussians["opacities"])
        # A Gaussian whose values are no numbers would spoil its neighbours.
        broken = ~torch.isfinite(model.gaussians["means"]).all(1) | ~torch.isfinite(opacity)
        dead = torch.nonzero((opacity <= self.config.dead) | broken)[:, 0]
        alive = torch.nonzero((opacity > self.config.dead) & ~broken)[:, 0]
        if not len(dead) or not len(alive):
            return
        source = alive[self._sample(opacity[alive], len(dead))]
        self._divide(model, source)
        model.copy(source, dead)

    def _grow(self, model: SplatModel) -> None:
        count = len(model)
        added = min(self.max_splats, int(self.config.growth * count) + 1) - count
        if added <= 0:
            return
        source = self._sample(torch.sigmoid(model.gaussians["opacities"]), added)
        self._divide(model, source)
        model.append(source)

    def _sample(self, weight: Tensor, count: int) -> Tensor:
        """Rows [count] drawn by weight [N], with repetition."""
        ends = torch.cumsum(weight.double(), 0)
        at = torch.rand(count, generator=self.generator, device=weight.device, dtype=torch.float64) * ends[-1]
        return torch.searchsorted(ends, at).clamp_max(len(weight) - 1)

    def _divide(self, model: SplatModel, source: Tensor) -> None:
        """Give the rows ``source`` the opacity and size that each of their copies will have."""
        rows, counts = torch.unique(source, return_counts=True)
        g = model.gaussians
        opacity, factor = divided(torch.sigmoid(g["opacities"][rows]), counts + 1, self.config.max_copies)
        g["opacities"][rows] = torch.logit(opacity.clamp(1.001 * self.config.dead, 1 - 1e-6))
        g["scales"][rows] += torch.log(factor)[:, None]


def divided(opacity: Tensor, parts: Tensor, max_parts: int) -> tuple[Tensor, Tensor]:
    """Opacity [N] of each of ``parts`` [N] equal Gaussians in the place of one, and the factor [N] of their size.

    ``parts`` above ``max_parts`` count as that.
    Together they let as much through at the centre as the one, and their integral along a line through it is the same.
    """
    n = parts.clamp(1, max_parts).double()
    total_opacity = opacity.double().clamp(1e-6, 1 - 1e-6)
    part = 1 - (1 - total_opacity) ** (1 / n)
    total = torch.zeros_like(total_opacity)
    for i in range(1, int(n.max().item()) + 1):
        row = torch.zeros_like(total_opacity)
        for k in range(i):
            row += math.comb(i - 1, k) * (-1) ** k / math.sqrt(k + 1) * part ** (k + 1)
        total += torch.where(n >= i, row, 0.0)
    return part.to(opacity.dtype), (total_opacity / total.clamp_min(1e-12)).clamp(0.05, 1.0).to(opacity.dtype)


def rotations(quats: Tensor) -> Tensor:
    """Rotations [N, 3, 3] of quaternions [N, 4], w first, of any length but 0."""
    w, x, y, z = torch.nn.functional.normalize(quats, dim=-1).unbind(-1)
    rows = [
        *(1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
        *(2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
        *(2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
    ]
    return torch.stack(rows, -1).reshape(-1, 3, 3)
