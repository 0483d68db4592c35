"""Outputs of the network for a step."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Prediction:
    """Poses and dense maps of B clips of S frames; of all of them, unless the caller asked for D frames' maps."""

    head_pose: Tensor
    """[I, B, S, 9]: pose codes (`models.pose`) after each iteration of the camera head; world: first camera."""
    head_maps: Tensor  # [B, S, 2, H, W]: log depth and log confidence, from the depth head
    pose: Tensor  # [B, S, 9]: final pose codes. The camera head's last ones, or odometry's
    log_depth: Tensor  # [B, S, H, W]: final log depth. The depth head's, or odometry's
    points: Tensor | None = None
    """[B, S, 4, H, W] with a point head: signed log of world coordinates, and log confidence."""

    def first_clips(self, count: int) -> "Prediction":
        """The first ``count`` clips, as views."""
        maps = (self.head_maps[:count], self.pose[:count], self.log_depth[:count])
        return Prediction(self.head_pose[:, :count], *maps, self.points[:count] if self.points is not None else None)

    @property
    def depth(self) -> Tensor:
        """[B, S, H, W]: final depth."""
        return self.log_depth.exp()

    @property
    def confidence(self) -> Tensor:
        """[B, S, H, W], above 0. It keeps the order of pixels with low confidence, which `depth_conf` rounds to 1."""
        return self.head_maps[:, :, 1].exp()

    @property
    def depth_conf(self) -> Tensor:
        """[B, S, H, W], above 1: confidence as published networks of the family (DUSt3R, VGGT) define it."""
        return 1 + self.confidence

    @property
    def world_points(self) -> Tensor | None:
        """[B, S, H, W, 3]"""
        if self.points is None:
            return None
        xyz = self.points[:, :, :3].movedim(2, -1)
        return xyz.sign() * xyz.abs().expm1()

    @property
    def world_points_conf(self) -> Tensor | None:
        """[B, S, H, W], above 1: see `depth_conf`."""
        return None if self.points is None else 1 + self.points[:, :, 3].exp()


@dataclass(frozen=True)
class Descriptors:
    """Features of B clips of S frames that odometry compares between frames."""

    flow: Tensor  # [B, S, 16, H/2, W/2]: `FlowHead.describe`
    matching: Tensor | None  # [B, S, M, 24]: `KeyframeMatcher.describe`; None without a keyframe matcher


@dataclass(frozen=True)
class NetworkFeatures:
    """Inner features of B clips of S frames, for odometry and for training."""

    tokens: Tensor  # [B, S, P, 2*dim]: the aggregator's last output
    patches: Tensor  # [B, S, gh*gw, dim]: the encoder's output
    taps: list[Tensor]
    """[B * D, gh*gw, 2*dim] each: patches of all outputs of the aggregator, of the frames with dense maps."""
    descriptors: Descriptors | None
    """None without odometry."""
