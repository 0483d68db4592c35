"""Odometry states of several streams, in tensors whose addresses never change."""

from collections.abc import Sequence

import torch
from torch import Tensor

from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.odometry.odometry import OdometryState
from stream_recon.models.prediction import Prediction


class OdometrySlots:
    """The state after the last keyframe of the stream in each slot.

    A captured step reads these tensors where they are; only keyframes are written to them.
    """

    def __init__(self, network: NetworkConfig, grid: tuple[int, int], slots: int, device: torch.device) -> None:
        """``grid``: patch rows and columns."""
        self.states = OdometryState.zeros(network, grid, slots, device) if network.flow_blocks else None
        """Of all slots, in order; None without odometry."""
        self.head_pose = torch.zeros(slots, 9, device=device) if self.states is None else self.states.last.head_pose
        """[slots, 9]: pose codes of the camera head. Keyframes are chosen by these, so odometry changes no choice."""

    def select(self, slots: Tensor) -> OdometryState | None:
        """The states of these slots, an index on the device."""
        return self.states.select(slots) if self.states is not None else None

    def store(
        self, prediction: Prediction, state: OdometryState | None, rows: Sequence[int], slots: Sequence[int]
    ) -> None:
        """Write what a step ended with, of these clips of the prediction, to their slots."""
        to, source = (torch.tensor(list(x), device=self.head_pose.device) for x in (slots, rows))
        if self.states is not None and state is not None:
            self.states.store(to, state, source)
        else:
            self.head_pose[to] = prediction.head_pose[-1, source, -1]
