"""The product's network with the auxiliary head beside it, and how both begin."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from stream_recon.app.training.auxiliary import AuxiliaryHead
from stream_recon.app.training.checkpoint import load_into
from stream_recon.app.training.schedule import Visibility
from stream_recon.cache.training_mask import ClipLayout, TrainingMask
from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.dpt_head import NEIGHBOURS
from stream_recon.models.layers import LayerScale, in_fp32
from stream_recon.models.network import Prediction, StreamingNetwork
from stream_recon.models.odometry.keyframe_matcher import Matches
from stream_recon.models.odometry.sampling import at_places, in_space, rays_of

TYPICAL_FOV = (0.8, 1.0)
"""Vertical and horizontal field of view, radians, that training starts from."""
NEAREST_FIRST = 3.0
"""Logit that a pixel's own place has over its neighbours when convex upsampling begins."""
FRESH = ("step_head.", "look_back.", "depth_head.sharpen.", "depth_head.upsample.")
"""What weights from before it was there may lack: it begins afresh."""
INITIAL_LAYER_SCALE = 0.1
"""Larger than the published networks', which start from a trained encoder: here every layer has to learn at once."""


@dataclass(frozen=True)
class TrainingOutput:
    prediction: Prediction
    auxiliary: Tensor  # [B, S, 2*gh, 2*gw, 5]
    descriptors: Tensor  # [B, S, gh*gw, 64]
    matches: Matches | None = None
    """Of B * D frames, each with one other, with a look back."""


@dataclass(frozen=True)
class Looks:
    """Which frame each frame with a dense map looks back at, and the motion to there as far as it is known."""

    others: Tensor  # int64 [D]
    motion: Tensor  # [B, D, 3, 4]


class TrainingModel(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.network = StreamingNetwork(config)
        self.auxiliary = AuxiliaryHead(config.dim, config.special_tokens)

    def forward(
        self,
        images: Tensor,
        visibility: Visibility,
        times: Tensor,
        *,
        flex: bool,
        dense_frames: Tensor | None = None,
        looks: Looks | None = None,
    ) -> TrainingOutput:
        """images [B, S, 3, H, W] in [0, 1], times int64 [B, S]; ``dense_frames`` as the network has it; ``looks`` of
        these."""
        frames = images.shape[1]
        patch, special = self.config.patch_size, self.config.special_tokens
        grid = (images.shape[3] // patch, images.shape[4] // patch)
        tokens = special + grid[0] * grid[1]
        clip = ClipLayout(frames, tokens, special, visibility.scale_frames, visibility.window)
        memory = TrainingMask(clip, visibility.camera_window, images.device, times, flex=flex)
        prediction = self.network(images, memory, dense_frames)
        auxiliary = self.auxiliary(prediction.tokens, grid)
        matches = self._look_back(prediction, looks, dense_frames) if looks is not None else None
        return TrainingOutput(prediction, auxiliary, self.auxiliary.describe(prediction.patches), matches)

    def _look_back(self, prediction: Prediction, looks: Looks, frames: Tensor | None) -> Matches | None:
        sight, look_back = prediction.sight, self.network.look_back
        if sight is None or look_back is None:
            return None
        own, codes = sight.features, prediction.pose[-1].detach()
        if frames is not None:
            own, codes = own[:, frames], codes[:, frames]
        others = sight.features[:, looks.others].flatten(0, 1)[:, None]
        with torch.no_grad(), in_fp32(codes):
            log_depth, grid = prediction.dense[:, :, 0].flatten(0, 1), sight.context.shape[2:4]
            size = (log_depth.shape[1], log_depth.shape[2])
            rays, lengths = rays_of(size, (grid[0], grid[1]), codes.flatten(0, 1))
            points = in_space(rays, at_places(log_depth, grid))
        own, context, motion = (x.flatten(0, 1) for x in (own, sight.context, looks.motion))
        matches: Matches = look_back(own, others, context, points, motion[:, None], lengths, size)
        return matches


def build_model(
    config: NetworkConfig,
    weights: Path | None = None,
    auxiliary: Path | None = None,
    only: Sequence[str] = (),
) -> TrainingModel:
    """A model in fp32 on the CPU, fresh or continued from files.

    ``only``: parts of the network that learn, by name; all others stay as they are. Empty: all learn.

    Raises:
        WeightsError: a file that does not fit.
    """
    model = TrainingModel(config)
    initialise(model)
    if weights is not None:
        load_into(model.network, weights, FRESH)
    if auxiliary is not None:
        load_into(model.auxiliary, auxiliary)
    if only:
        model.requires_grad_(False)
        for part in only:
            model.network.get_submodule(part).requires_grad_(True)
    return model.train()


@torch.no_grad()
def initialise(model: TrainingModel) -> None:
    """Fresh weights: small linear maps and tokens, poses that start at rest with a typical field of view."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    network = model.network
    for part in (network.aggregator, network.camera_head):
        for module in part.modules():
            if isinstance(module, LayerScale):
                nn.init.constant_(module.gamma, INITIAL_LAYER_SCALE)
    encoder, aggregator = network.encoder, network.aggregator
    for tokens in (
        encoder.cls_token,
        encoder.register_tokens,
        encoder.pos_embed,
        aggregator.camera_token,
        aggregator.register_token,
        aggregator.scale_token,
    ):
        nn.init.trunc_normal_(tokens, std=0.02)
    head = network.camera_head
    nn.init.trunc_normal_(head.pose_branch.fc2.weight, std=0.002)
    # Every iteration adds the bias, so each brings its share of the resting pose.
    resting = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, *TYPICAL_FOV])
    head.pose_branch.fc2.bias.copy_(resting / head.iterations)
    nn.init.trunc_normal_(network.depth_head.out3.weight, std=0.01)
    assert network.depth_head.out3.bias is not None
    nn.init.zeros_(network.depth_head.out3.bias)
    if network.depth_head.upsample is not None:
        # Nearly the nearest pixel at first.
        mixture = network.depth_head.upsample.mixture
        assert mixture.bias is not None
        nn.init.zeros_(mixture.weight)
        nn.init.zeros_(mixture.bias)
        mixture.bias.view(4, NEIGHBOURS)[:, NEIGHBOURS // 2] = NEAREST_FIRST
        assert network.depth_head.sharpen is not None
        nn.init.zeros_(network.depth_head.sharpen.conv2.weight)
    if network.step_head is not None:
        nn.init.zeros_(network.step_head.weigh.fc2.weight)
