"""The network with the auxiliary head for training, and the initial weights of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.heads import NEIGHBOURS
from stream_recon.models.layers import Block, LayerScale, in_fp32
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.odometry.keyframe_matcher import Matches
from stream_recon.models.odometry.odometry import Measurements
from stream_recon.models.odometry.pnp import RelativeMotion
from stream_recon.models.odometry.sampling import CellPoints, at_centers, camera_rays, unproject
from stream_recon.models.prediction import NetworkFeatures, Prediction
from training.auxiliary import AuxiliaryHead
from training.checkpoint import load_into
from training.mask import ClipLayout, TrainingMask
from training.schedule import Visibility

TYPICAL_FOV = (0.8, 1.0)
"""Vertical and horizontal field of view, radians, that training starts from."""
NEAREST_FIRST = 3.0
"""Logit that a pixel's own place has over its neighbours when convex upsampling begins."""
FRESH = ("odometry.", "depth_head.sharpen.", "depth_head.upsample.")
"""Prefixes of tensors that older weights may lack; these start from initial values."""
INITIAL_LAYER_SCALE = 0.1
"""Larger than the published networks', which start from a trained encoder: here every layer has to learn at once."""


@dataclass(frozen=True)
class TrainingOutput:
    prediction: Prediction
    auxiliary: Tensor  # [B, S, 2*gh, 2*gw, 5]
    descriptors: Tensor  # [B, S, gh*gw, 64]
    motion: RelativeMotion | None = None
    """With odometry: of the frames with dense maps."""
    matches: Matches | None = None
    """With a keyframe matcher: of B * D frames, each with one other frame."""


@dataclass(frozen=True)
class MatchPairs:
    """The frame that each frame with a dense map is matched with, and the motion to it as far as it is known."""

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
        match_pairs: MatchPairs | None = None,
    ) -> TrainingOutput:
        """One step on B clips of S frames.

        Args:
            images: [B, S, 3, H, W] in [0, 1].
            times: int64 [B, S].
            dense_frames: int64 [D], the frames to give dense maps for; None: all, with poses and depths fused.
            match_pairs: for the keyframe matcher, of the frames with dense maps.
        """
        frames = images.shape[1]
        patch, special = self.config.patch_size, self.config.special_tokens
        grid = (images.shape[3] // patch, images.shape[4] // patch)
        tokens = special + grid[0] * grid[1]
        clip = ClipLayout(frames, tokens, special, visibility.scale_frames, visibility.window)
        memory = TrainingMask(clip, visibility.camera_window, images.device, times, flex=flex)
        prediction, features = self.network.predict(images, memory, dense_frames)
        motion = matches = None
        odometry = self.network.odometry
        if odometry is not None:
            measured = odometry.measure(prediction, features, dense_frames)
            motion = measured.motion
            if dense_frames is None:
                prediction, _ = odometry.fuse(prediction, features, measured, None)
            if match_pairs is not None:
                matches = self._match(prediction, features, measured, match_pairs, dense_frames)
        auxiliary = self.auxiliary(features.tokens, grid)
        return TrainingOutput(prediction, auxiliary, self.auxiliary.describe(features.patches), motion, matches)

    def _match(
        self,
        prediction: Prediction,
        features: NetworkFeatures,
        measured: Measurements,
        pairs: MatchPairs,
        frames: Tensor | None,
    ) -> Matches | None:
        odometry, descriptors, context = self.network.odometry, features.descriptors, measured.context
        if odometry is None or odometry.keyframe_matcher is None or descriptors is None or context is None:
            return None
        assert descriptors.matching is not None
        own, codes = descriptors.matching, prediction.head_pose[-1].detach()
        if frames is not None:
            own, codes = own[:, frames], codes[:, frames]
        others = descriptors.matching[:, pairs.others].flatten(0, 1)[:, None]
        with torch.no_grad(), in_fp32(codes):
            log_depth, cells = prediction.head_maps[:, :, 0].flatten(0, 1), (context.shape[2], context.shape[3])
            size = (log_depth.shape[1], log_depth.shape[2])
            rays, focal = camera_rays(size, cells, codes.flatten(0, 1))
            points = CellPoints(unproject(rays, at_centers(log_depth, cells)), focal, size)
        own, context, motion = (x.flatten(0, 1) for x in (own, context, pairs.motion))
        matches: Matches = odometry.keyframe_matcher(own, others, context, points, motion[:, None])
        return matches


def build_model(
    config: NetworkConfig, weights: Path | None = None, auxiliary: Path | None = None, only: Sequence[str] = ()
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


def compiled_parts(network: StreamingNetwork) -> list[nn.Module]:
    """Parts that are compiled as a whole; of blocks of the trunk both halves are."""
    # Compiled for images of 10x18, 18x10 or 8x26 patches, a depth head of which nothing learns gives wrong results.
    learns_depth = any(parameter.requires_grad for parameter in network.depth_head.parameters())
    parts = [network.encoder.stem, network.depth_head if learns_depth else None]
    return [part for part in parts if part is not None]


def compile_for_training(network: StreamingNetwork) -> None:
    """Compile the heavy parts. Attention between the halves of a block stays as the cache implements it."""
    for module in network.modules():
        if isinstance(module, Block) and module not in set(network.camera_head.trunk):
            module.project = torch.compile(module.project)  # type: ignore[method-assign]
            module.finish = torch.compile(module.finish)  # type: ignore[method-assign]
    for part in compiled_parts(network):
        part.compile(dynamic=False)


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
    if network.odometry is not None:
        nn.init.zeros_(network.odometry.flow_head.weigh.fc2.weight)
