"""What is kept of the last cached frame of each of several streams, beside their caches."""

from collections.abc import Sequence

import torch
from torch import Tensor

from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.network import OdometryMemory, Prediction
from stream_recon.models.odometry.depth_filter import DepthState
from stream_recon.models.odometry.flow_head import FEATURES
from stream_recon.models.odometry.keyframe_matcher import MatchingHistory
from stream_recon.models.odometry.sampling import SAMPLES


class OdometryState:
    """Tensors that stay where they are, as a captured step needs them; only a keyframe is ever written to them."""

    def __init__(self, network: NetworkConfig, grid: tuple[int, int], seats: int, device: torch.device) -> None:
        """``grid``: patch rows and columns."""
        self.said = torch.zeros(seats, 9, device=device)
        """Pose codes of the camera head. Keyframes are chosen by these: what poses become of them changes no choice."""
        self._kept: OdometryMemory | None = None
        if network.step_blocks:
            height, width = (side * network.patch_size // 2 for side in grid)
            features = torch.zeros(seats, FEATURES, height, width, device=device)
            maps = torch.zeros(seats, 2, 2 * height, 2 * width, device=device)
            depth = DepthState.of(maps, [SAMPLES * side for side in grid])
            past = MatchingHistory.none(seats, (2 * height, 2 * width), device) if network.look_back else None
            self._kept = OdometryMemory(self.said, torch.zeros_like(self.said), features, depth, past)

    @property
    def all(self) -> OdometryMemory | None:
        """Of all seats, in order; None without a step head."""
        return self._kept

    def of(self, seats: Tensor) -> OdometryMemory | None:
        """Of these seats, an index on the device."""
        return self._kept.at(seats) if self._kept is not None else None

    def keep(self, prediction: Prediction, rows: Sequence[int], seats: Sequence[int]) -> None:
        """Take over what each of these clips of a prediction ends with, for its seat."""
        to, taken = (torch.tensor(list(x), device=self.said.device) for x in (seats, rows))
        self.said[to] = prediction.pose[-1, taken, -1]
        if self._kept is not None and prediction.kept is not None:
            self._kept.pose_code[to] = prediction.kept.pose_code[taken]
            self._kept.features[to] = prediction.kept.features[taken]
            self._kept.depth.maps[to] = prediction.kept.depth.maps[taken]
            self._kept.depth.unit[to] = prediction.kept.depth.unit[taken]
            self._kept.depth.correction[to] = prediction.kept.depth.correction[taken]
            past, ended = self._kept.past, prediction.kept.past
            if past is not None and ended is not None:
                past.features[to] = ended.features[taken]
                past.poses[to] = ended.poses[taken]
                past.count[to] = ended.count[taken]
