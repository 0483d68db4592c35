"""What is refined along with the Gaussians: each image's pose and exposure, and the common focal length.

Corrections are functions of time: an image that is not trained on gets those of its neighbours in the video.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stream_recon.app.splat.config import CorrectionConfig
from stream_recon.app.splat.model import load_moments, training_state


class Corrections(torch.nn.Module):
    """Corrections of n images."""

    def __init__(self, count: int, trained: NDArray[np.bool_], device: torch.device, config: CorrectionConfig) -> None:
        super().__init__()
        self._config = config
        self.poses = torch.nn.Parameter(torch.zeros(count, 6, device=device))
        """Rotation vector and translation that follow the pose, in camera axes."""
        self.exposure = torch.nn.Parameter(torch.zeros(count, 6, device=device))
        """Logarithm of the gain, and offset, of red, green and blue."""
        self.log_focal = torch.nn.Parameter(torch.zeros((), device=device))
        before, after, share = neighbours(trained)
        self._before = torch.from_numpy(before).to(device)
        self._after = torch.from_numpy(after).to(device)
        self._share = torch.from_numpy(share).float().to(device)
        self.optimizer = torch.optim.Adam(
            [
                {"params": [self.poses], "lr": config.pose_rate},
                {"params": [self.exposure], "lr": config.exposure_rate},
                {"params": [self.log_focal], "lr": config.focal_rate},
            ],
            eps=1e-15,
        )
        self._rates = [config.pose_rate, config.exposure_rate, config.focal_rate]

    def pose(self, number: int, T_camera_world: Tensor) -> Tensor:
        """The corrected pose [4, 4] of an image, whose first two rows have the scale of the focal length."""
        T = small_motion(self._of(self.poses, number)) @ T_camera_world
        scale = torch.exp(self.log_focal)
        one = torch.ones_like(scale)
        return T * torch.stack([scale, scale, one, one])[:, None]

    def expose(self, number: int, rgb: Tensor) -> Tensor:
        """An image [h, w, 3] as the camera has exposed it."""
        exposure = self._of(self.exposure, number)
        return rgb * torch.exp(exposure[:3]) + exposure[3:]

    def loss(self, number: int) -> Tensor:
        """What draws the corrections of an image to 0."""
        poses, exposure = self.poses[number].square().sum(), self.exposure[number].square().sum()
        return torch.as_tensor(self._config.pose_decay * poses + self._config.exposure_decay * exposure)

    def step(self, share: float, rate_factor: float, *, poses: bool) -> None:
        """Move along the gradients.

        Args:
            share: of the training that is done.
            rate_factor: of the usual rates.
            poses: move poses and focal length, too.
        """
        falling = rate_factor * 0.01**share
        for group, rate, moves in zip(self.optimizer.param_groups, self._rates, (poses, True, poses), strict=True):
            group["lr"] = rate * falling * moves
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)

    def state(self) -> dict[str, Tensor]:
        """Corrections and the state of their optimizer, by name."""
        return {
            key: tensor
            for name, value in self.named_parameters()
            for key, tensor in training_state(name, value, self.optimizer).items()
        }

    @torch.no_grad()
    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` gave. Raises KeyError or RuntimeError where it does not fit."""
        for name, value in self.named_parameters():
            value.copy_(state[name])
            load_moments(state, name, value, self.optimizer)

    def _of(self, values: Tensor, number: int) -> Tensor:
        share = self._share[number]
        return (1 - share) * values[self._before[number]] + share * values[self._after[number]]


def neighbours(trained: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """For each image [n] the trained ones before and after it, and the share of the later one; itself if trained."""
    rows = np.flatnonzero(trained)
    at = np.arange(len(trained))
    following = np.searchsorted(rows, at)
    after = rows[following.clip(0, len(rows) - 1)]
    before = rows[(following - 1).clip(0, len(rows) - 1)]
    before = np.where(trained, at, np.where(following == 0, after, before))
    after = np.where(trained, at, np.where(following == len(rows), before, after))
    span = np.maximum(after - before, 1)
    return before.astype(np.int64), after.astype(np.int64), (at - before) / span * (after > before)


def small_motion(twist: Tensor) -> Tensor:
    """Rigid transform [4, 4] of a rotation vector and a translation [6]; its gradient is right at 0, too."""
    wx, wy, wz, tx, ty, tz = twist.unbind()
    zero, one = torch.zeros_like(wx), torch.ones_like(wx)
    generator = torch.stack([zero, -wz, wy, wz, zero, -wx, -wy, wx, zero]).reshape(3, 3)
    # Never 0, so that its square root has a gradient.
    angle = (twist[:3].square().sum() + 1e-16).sqrt()
    half = torch.sin(angle / 2) / angle
    R = torch.eye(3, device=twist.device) + torch.sin(angle) / angle * generator
    R = R + 2 * half.square() * generator @ generator
    top = torch.cat([R, torch.stack([tx, ty, tz])[:, None]], dim=1)
    return torch.cat([top, torch.stack([zero, zero, zero, one])[None]])
