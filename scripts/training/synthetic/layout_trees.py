"""Trees without leaves, branch by branch."""

import math

import torch
from torch import Tensor

from training.synthetic.cameras import Path
from training.synthetic.draws import Draws
from training.synthetic.parts import Catalogue, Objects

_BOUGHS, _TWIGS = 5, 6  # of a tree: from its trunk, and from its boughs


def _upright(direction: Tensor) -> Tensor:
    """Rotations [..., 3, 3] that turn z to unit directions [..., 3]."""
    side = torch.stack([-direction[..., 1], direction[..., 0], torch.full_like(direction[..., 0], 1e-4)], -1)
    x = torch.nn.functional.normalize(torch.linalg.cross(side, direction), dim=-1)
    return torch.stack([x, torch.linalg.cross(direction, x), direction], -1)


def _toward(azimuth: Tensor, elevation: Tensor) -> Tensor:
    c = elevation.cos()
    return torch.stack([c * azimuth.cos(), c * azimuth.sin(), elevation.sin()], -1)


def bare_trees(draws: Draws, catalogue: Catalogue, foot: Tensor, path: Path, clear: Tensor, present: Tensor) -> Objects:
    """Trees at feet [B, T, 3] that leave cameras clear [B] metres; present bool [B, T]. A trunk, its boughs, and
    their twigs, all of one bark."""
    clips, trees = present.shape
    tall = draws.uniform(4.0, 10.0, clips, trees)
    thick = tall * draws.uniform(0.025, 0.05, clips, trees)
    near = (foot[:, :, None, :2] - path.position[:, None, :, :2]).norm(dim=-1).amin(-1)
    present = present & (near > thick + clear[:, None] + 0.2)
    lean = _toward(draws.uniform(0, 2 * math.pi, clips, trees), draws.uniform(1.35, 1.57, clips, trees))

    shape = (clips, trees, _BOUGHS)
    index = torch.arange(_BOUGHS, device=draws.device)
    share = 0.32 + 0.5 * (index + draws.uniform(0.0, 1.0, *shape)) / _BOUGHS
    azimuth = draws.uniform(0, 2 * math.pi, clips, trees, 1) + 2.4 * index + draws.normal(*shape, deviation=0.3)
    bough = _toward(azimuth, draws.uniform(0.4, 1.2, *shape))
    bough_from = foot[:, :, None] + lean[:, :, None] * (share * tall[..., None])[..., None]
    bough_long = tall[..., None] * draws.uniform(0.25, 0.5, *shape) * (1.25 - share)
    bough_thick = thick[..., None] * (1 - 0.72 * share) * draws.uniform(0.5, 0.8, *shape)

    shape = (clips, trees, _TWIGS)
    parent = torch.arange(_TWIGS, device=draws.device) % _BOUGHS
    out = draws.uniform(0.3, 0.85, *shape)
    twig = bough[:, :, parent] + draws.normal(*shape, 3, deviation=0.45) + draws.constant([0.0, 0.0, 0.3])
    twig = torch.nn.functional.normalize(twig, dim=-1)
    twig_from = bough_from[:, :, parent] + bough[:, :, parent] * (out * bough_long[:, :, parent])[..., None]
    twig_long = bough_long[:, :, parent] * draws.uniform(0.4, 0.8, *shape)
    twig_thick = bough_thick[:, :, parent] * (1 - 0.75 * out)

    def flat(trunks: Tensor, boughs: Tensor, twigs: Tensor) -> Tensor:
        return torch.cat([trunks, boughs.flatten(1, 2), twigs.flatten(1, 2)], 1)

    direction = flat(lean, bough, twig)
    long = flat(tall, bough_long, twig_long)
    wide = flat(thick, bough_thick, twig_thick)
    number = torch.arange(trees, device=draws.device)
    owner = torch.cat([number, number.repeat_interleave(_BOUGHS), number.repeat_interleave(_TWIGS)])
    names = draws.constant([catalogue.names.index(name) for name in ("trunk", "branch")], torch.int64)
    template = names[(torch.arange(owner.shape[0], device=draws.device) >= trees).long()].expand(clips, -1)
    position = flat(foot, bough_from, twig_from)
    size = torch.stack([wide, wide, long], -1)
    return Objects(template, position, size, _upright(direction), present[:, owner], owner.expand(clips, -1))
