"""Muon (Jordan et al. 2024) for the blocks' matrices, AdamW (Loshchilov & Hutter 2019) for everything else."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stream_recon.models.layers import Block
from training.flat import FlatParameters

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Quintic whose iterates push all singular values to about 1 (Jordan et al. 2024)."""
NEWTON_SCHULZ_STEPS = 5
"""Iterations of Newton-Schulz (Jordan et al. 2024)."""
RMS_OF_ADAM = 0.2
"""Typical size of an AdamW update; scaled to it, Muon takes AdamW's learning rate (Liu et al. 2025)."""

MATRICES, DECAYED, UNDECAYED = 0, 1, 2
"""Groups of parameters: matrices of blocks (Muon), other arrays, and vectors, without weight decay (AdamW)."""


@dataclass(frozen=True)
class OptimizerConfig:
    """Settings of Muon and AdamW."""

    weight_decay: float = 0.03
    max_gradient_norm: float = 1.0
    momentum: float = 0.95
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8


def group_parameters(module: nn.Module) -> list[list[nn.Parameter]]:
    """Trainable parameters in the groups that `Optimizer` expects: matrices of blocks, other arrays, vectors."""
    in_blocks = {
        id(parameter)
        for block in module.modules()
        if isinstance(block, Block)
        for parameter in block.parameters()
        if parameter.ndim == 2
    }
    groups: list[list[nn.Parameter]] = [[], [], []]
    for parameter in module.parameters():
        if not parameter.requires_grad:
            continue
        if id(parameter) in in_blocks:
            groups[MATRICES].append(parameter)
        else:
            groups[DECAYED if parameter.ndim > 1 else UNDECAYED].append(parameter)
    return groups


def orthogonalise(matrices: Tensor) -> Tensor:
    """Matrices [N, r, c] -> about the nearest orthogonal ones, by Newton-Schulz in bf16."""
    a, b, c = NEWTON_SCHULZ
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    upright: Tensor = x.transpose(1, 2) if tall else x
    return upright


class Optimizer:
    """Muon and AdamW on all parameters at once. A step with a non-finite gradient changes nothing, without a sync."""

    def __init__(self, parameters: FlatParameters, config: OptimizerConfig) -> None:
        self._parameters = parameters
        self._config = config
        values = parameters.values
        self._momentum = torch.zeros_like(values[: parameters.span(MATRICES)[1]])
        start, end = parameters.span(MATRICES)[1], len(values)
        self._adam_span = (start, end)
        self._mean = torch.zeros(end - start, device=values.device)
        self._square = torch.zeros(end - start, device=values.device)
        self._adam_steps = torch.zeros((), device=values.device)

    @torch.no_grad()
    def step(self, learning_rate: float) -> Tensor:
        """Apply ``parameters.gradient``; returns its norm before clipping, a scalar on the device."""
        gradient = self._parameters.gradient
        norm: Tensor = gradient.norm()
        finite = norm.isfinite()
        factor = (self._config.max_gradient_norm / (norm + 1e-6)).clamp_max(1)
        gradient.nan_to_num_(0, 0, 0).mul_(torch.where(finite, factor, 0))
        keep = finite.float()
        self._step_muon(gradient, learning_rate, keep)
        self._step_adam(gradient, learning_rate, keep)
        return norm

    def _step_muon(self, gradient: Tensor, learning_rate: float, keep: Tensor) -> None:
        config = self._config
        for segment in self._parameters.segments[MATRICES]:
            g, values = segment.view(gradient), segment.view(self._parameters.values)
            momentum = segment.view(self._momentum)
            momentum.lerp_(g, (1 - config.momentum) * keep)
            direction = g.lerp(momentum, config.momentum)
            rows, columns = segment.shape
            if rows == 3 * columns:  # queries, keys and values are three matrices
                rows = columns
            update = orthogonalise(direction.reshape(-1, rows, columns)).float().reshape(direction.shape)
            values.mul_(1 - learning_rate * config.weight_decay * keep)
            values.sub_(update * (keep * (learning_rate * RMS_OF_ADAM * math.sqrt(max(rows, columns)))))

    def _step_adam(self, gradient: Tensor, learning_rate: float, keep: Tensor) -> None:
        config, (start, end) = self._config, self._adam_span
        g, values = gradient[start:end], self._parameters.values
        self._adam_steps += keep
        self._mean.lerp_(g, (1 - config.beta1) * keep)
        self._square.lerp_(g.square(), (1 - config.beta2) * keep)
        steps = self._adam_steps.clamp_min(1)
        mean = self._mean / (1 - config.beta1**steps)
        root = (self._square / (1 - config.beta2**steps)).sqrt_()
        decayed_from, decayed_to = self._parameters.span(DECAYED)
        values[decayed_from:decayed_to].mul_(1 - learning_rate * config.weight_decay * keep)
        values[start:end].sub_(mean.div_(root.add_(config.epsilon)).mul_(learning_rate * keep))
