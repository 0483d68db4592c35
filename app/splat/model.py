"""The Gaussians under training with their optimizers, whose rows are replaced and added together."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from stream_recon.app.core.splats import COEFFICIENTS, SH_0, Splats
from stream_recon.app.splat.config import ModelConfig, SplatConfig
from stream_recon.app.splat.rasterizer import Gaussians
from stream_recon.app.splat.scene import TrainingScene, shell_points

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's names of a parameter's moments."""


def training_state(name: str, value: torch.nn.Parameter, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """A parameter and the state of its optimizer, by name."""
    state = optimizer.state.get(value, {})
    return {name: value.detach(), **{f"{name}.{key}": torch.as_tensor(one) for key, one in state.items()}}


def load_moments(
    state: dict[str, Tensor], name: str, value: torch.nn.Parameter, optimizer: torch.optim.Optimizer
) -> None:
    """Let an optimizer go on from a `training_state`. Raises KeyError where something is missing."""
    if f"{name}.step" in state:
        # Only fused optimizers count steps on the GPU.
        step = state[f"{name}.step"].to(value.device if optimizer.defaults["fused"] else "cpu", copy=True)
        moments = {key: state[f"{name}.{key}"].to(value.device, copy=True) for key in MOMENTS}
        optimizer.state[value] = {"step": step, **moments}


class SplatModel:
    """Gaussians in the trainer's world, and an Adam optimizer for each of their parameters."""

    def __init__(self, gaussians: dict[str, Tensor], device: torch.device, config: ModelConfig) -> None:
        self.rates = dict(config.rates)
        self.gaussians: Gaussians = {
            name: torch.nn.Parameter(value.to(device).contiguous()) for name, value in gaussians.items()
        }
        self.optimizers = {
            name: torch.optim.Adam([self.gaussians[name]], lr=rate, eps=1e-15, fused=device.type == "cuda")
            for name, rate in self.rates.items()
        }

    @classmethod
    def of(cls, scene: TrainingScene, device: torch.device, sh_degree: int, config: SplatConfig) -> "SplatModel":
        """A Gaussian at each point of a scene, as large as its nearest neighbours are far."""
        far, far_colours = shell_points(scene, config.shell)
        means = (np.concatenate([scene.points, far]).astype(np.float64) - scene.centre) / scene.unit
        colours = np.concatenate([scene.colours, far_colours])
        n, m = len(means), len(scene.points)
        largest = config.model.max_size * scene.radius / scene.unit
        size = neighbour_distance(means[:m]).clip(1e-6, largest)
        if len(far):
            size = np.concatenate([size, neighbour_distance(means[m:])])
        opacity = np.full(n, config.model.opacity, np.float32)
        opacity[m:] = config.model.shell_opacity
        rng = np.random.default_rng(0)
        sh = np.zeros((n, COEFFICIENTS[sh_degree], 3), np.float32)
        sh[:, 0] = (colours.astype(np.float32) / 255 - 0.5) / SH_0
        values = {
            "means": means.astype(np.float32),
            "scales": np.repeat(np.log(size).astype(np.float32)[:, None], 3, axis=1),
            "quats": rng.normal(size=(n, 4)).astype(np.float32),
            "opacities": np.log(opacity / (1 - opacity)),
            "sh0": sh[:, :1],
            "shN": sh[:, 1:],
        }
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in values.items()}
        return cls(tensors, device, config.model)

    def __len__(self) -> int:
        return len(self.gaussians["means"])

    def step(self, means_rate: float) -> None:
        """Move all parameters along their gradients; ``means_rate``: factor of the positions' rate."""
        self.optimizers["means"].param_groups[0]["lr"] = self.rates["means"] * means_rate
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def copy(self, source: Tensor, target: Tensor) -> None:
        """Put copies of the rows ``source`` [k] in place of the rows ``target`` [k]; moments become 0."""
        for name, values in self.gaussians.items():
            values[target] = values[source]
            for moments in self._moments(name):
                moments[target] = 0
                moments[source] = 0

    @torch.no_grad()
    def append(self, source: Tensor) -> None:
        """Add copies of the rows ``source`` [k]."""
        for name in self.gaussians:
            for moments in self._moments(name):
                moments[source] = 0
            self._exchange(name, lambda values: torch.cat([values, values[source]]), len(source))

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Keep the rows [k] alone."""
        for name in self.gaussians:
            self._exchange(name, lambda values: values[rows].contiguous(), 0)

    def splats(self, scene: TrainingScene) -> Splats:
        """The Gaussians in the scene's world, on the CPU."""
        parts = {name: value.detach().float().cpu().numpy() for name, value in self.gaussians.items()}
        sh = np.concatenate([parts["sh0"], parts["shN"]], axis=1)
        own = Splats(parts["means"], parts["scales"], parts["quats"], parts["opacities"], sh)
        return own.scaled(scene.centre, scene.unit)

    def state(self) -> dict[str, Tensor]:
        """All parameters and the state of their optimizers, by name."""
        return {
            key: tensor
            for name, value in self.gaussians.items()
            for key, tensor in training_state(name, value, self.optimizers[name]).items()
        }

    @classmethod
    def from_state(cls, state: dict[str, Tensor], device: torch.device, config: ModelConfig) -> "SplatModel":
        """The model of `state`. Raises KeyError where something is missing."""
        model = cls({name: state[name] for name, _ in config.rates}, device, config)
        for name, optimizer in model.optimizers.items():
            load_moments(state, name, model.gaussians[name], optimizer)
        return model

    def _moments(self, name: str) -> list[Tensor]:
        state = self.optimizers[name].state.get(self.gaussians[name], {})
        return [state[key] for key in MOMENTS if key in state]

    def _exchange(self, name: str, change: Callable[[Tensor], Tensor], added: int) -> None:
        """Exchange a parameter; what is ``added`` at its end has no moments."""
        old = self.gaussians[name]
        new = self.gaussians[name] = torch.nn.Parameter(change(old.detach()))
        optimizer = self.optimizers[name]
        state = optimizer.state.pop(old, {})
        for key in MOMENTS:
            if key in state:
                state[key] = change(state[key])
                if added:
                    state[key][-added:] = 0
        optimizer.param_groups[0]["params"] = [new]
        if state:
            optimizer.state[new] = state


def neighbour_distance(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Root mean square distance [N] of each point's three nearest neighbours."""
    if len(points) < 2:
        return np.ones(len(points))
    near = cKDTree(points).query(points, k=min(4, len(points)), workers=-1)[0][:, 1:]
    return np.asarray(np.sqrt(np.square(near).mean(axis=1)), np.float64)
