"""The streaming network: images and a memory in, pose codes and dense maps out. It keeps no state of its own."""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from stream_recon.cache.attention import Memory
from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.aggregator import Aggregator
from stream_recon.models.camera_head import CameraHead
from stream_recon.models.dpt_head import DPTHead
from stream_recon.models.encoder import Encoder
from stream_recon.models.layers import Block, in_fp32
from stream_recon.models.odometry.depth_filter import DepthState, propagate_depth
from stream_recon.models.odometry.flow_head import FlowHead, RelativeMotion
from stream_recon.models.odometry.keyframe_matcher import KeyframeMatcher, MatchingFeatures, MatchingHistory
from stream_recon.models.odometry.pnp import fuse_poses
from stream_recon.models.odometry.refinement import refine_pose
from stream_recon.models.packed import pack_blocks
from stream_recon.models.pose import focal_lengths

IMAGE_MEAN = (0.485, 0.456, 0.406)
IMAGE_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class OdometryMemory:
    """What a step head wants to know of the last cached frame of each of B streams."""

    said: Tensor
    """[B, 9]: the camera head's pose code."""
    pose_code: Tensor
    """[B, 9], as `Prediction.pose_code`."""
    features: Tensor
    """[B, 16, H/2, W/2]: `FlowHead.describe`."""
    depth: DepthState
    past: MatchingHistory | None = None
    """With a look back."""

    def at(self, rows: slice | Tensor) -> "OdometryMemory":
        """Of these streams: a slice gives views, an index on the device copies."""
        past = self.past.at(rows) if self.past is not None else None
        return OdometryMemory(self.said[rows], self.pose_code[rows], self.features[rows], self.depth.at(rows), past)


@dataclass(frozen=True)
class Prediction:
    """B clips of S frames."""

    pose: Tensor
    """[I, B, S, 9]: translation, quaternion xyzw, field of view (vertical, horizontal) in radians, after each
    iteration; camera to world, the world being the first camera."""
    dense: Tensor
    """[B, S, 2, H, W]: log depth and log confidence; of the frames asked for."""
    tokens: Tensor
    """[B, S, P, 2*dim]: the aggregator's last output."""
    patches: Tensor
    """[B, S, gh*gw, dim]: the encoder's output."""
    pose_code: Tensor
    """[B, S, 9], as `pose`: the final poses. The camera head's last, or with a flow head the result of `fuse_poses`,
    which needs the dense maps of all frames."""
    log_depth: Tensor
    """[B, S, H, W], that counts: as in ``dense``, or with a step head what `propagate_depth` makes of it."""
    steps: RelativeMotion | None = None
    """With a step head: of the frames that have dense maps."""
    kept: OdometryMemory | None = None
    """With a step head: what the step of the next frame asks for, if the last frame of this one is cached."""
    sight: MatchingFeatures | None = None
    """With a look back: of all frames, and of those that have dense maps."""
    points: Tensor | None = None
    """[B, S, 4, H, W] with a point head: signed log of world coordinates and log confidence."""

    def first_clips(self, count: int) -> "Prediction":
        """Of the first ``count`` clips; views."""
        steps, kept, sight, points = self.steps, self.kept, self.sight, self.points
        return Prediction(
            self.pose[:, :count],
            self.dense[:count],
            self.tokens[:count],
            self.patches[:count],
            self.pose_code[:count],
            self.log_depth[:count],
            steps.first_clips(count) if steps else None,
            kept.at(slice(count)) if kept else None,
            sight.first_clips(count) if sight else None,
            points[:count] if points is not None else None,
        )

    @property
    def depth(self) -> Tensor:
        return self.log_depth.exp()

    @property
    def said_depth(self) -> Tensor:
        """[B, S, H, W]: the depth head's own. Keyframes are chosen by it: what becomes of it changes no choice."""
        return self.dense[:, :, 0].exp()

    @property
    def confidence(self) -> Tensor:
        """[B, S, H, W], above 0. Unsure pixels keep their order in it: of `depth_conf`, all below 1.0000001 are 1."""
        return self.dense[:, :, 1].exp()

    @property
    def depth_conf(self) -> Tensor:
        """[B, S, H, W], above 1: what the published networks of the family (DUSt3R, VGGT, ...) give under that name."""
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


@lru_cache(maxsize=8)
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Where the camera head runs while the dense heads do: one token's products leave most of a GPU idle."""
    return torch.cuda.Stream(device)


class StreamingNetwork(nn.Module):
    image_mean: Tensor
    image_std: Tensor

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.aggregator = Aggregator(config)
        self.camera_head = CameraHead(config)
        self.depth_head = DPTHead(config, outputs=2)
        self.point_head = DPTHead(config, outputs=4) if config.point_head else None
        self.step_head = FlowHead(config) if config.step_blocks else None
        self.look_back = KeyframeMatcher(config) if config.look_back else None
        self.make_constants()

    def make_constants(self) -> None:
        """What no file brings; to be called again where a network made on the meta device gets its weights."""
        for name, values in (("image_mean", IMAGE_MEAN), ("image_std", IMAGE_STD)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def store_matrices_in_half(self) -> None:
        """Keep the weights of matrix products and convolutions in bf16, which autocast would cast in every step.

        Convolutions get the layout, channels last, in which they and the resizing between them are fastest.
        Norms, gains, tokens and position tables stay fp32, and so does the camera head: see `forward`.
        """
        for part in (self.encoder, self.aggregator, self.depth_head, self.point_head):
            for module in part.modules() if part is not None else ():
                if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                    module.to(torch.bfloat16)
                if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def fuse_for_gpu(self) -> None:
        """Make inference on a GPU fast: matrices in bf16, the camera head's too, and what lies between them fused.

        Its last layers, whose output is the pose itself, stay fp32.
        """
        self.store_matrices_in_half()
        head = self.camera_head
        for part in (head.project, head.embed_pose, head.modulation, head.trunk):
            for module in part.modules():
                if isinstance(module, nn.Linear):
                    module.to(torch.bfloat16)
        plain = set(self.step_head.blocks) if self.step_head is not None else set()
        for module in self.modules():
            if isinstance(module, Block) and module not in plain:
                module.fused = True

    def pack_for_cpu(self) -> None:
        """Make inference in bf16 on a CPU fast: matrices in bf16, those of the large blocks laid out once."""
        self.store_matrices_in_half()
        for part in (self.encoder, self.aggregator):
            pack_blocks(part)

    def compile_for_training(self) -> None:
        """Compile the heavy parts; attention between the halves of a block stays as the memory has it."""
        for module in self.modules():
            if isinstance(module, Block) and module not in set(self.camera_head.trunk):
                module.project = torch.compile(module.project)  # type: ignore[method-assign]
                module.finish = torch.compile(module.finish)  # type: ignore[method-assign]
        if self.encoder.stem is not None:
            self.encoder.stem.compile(dynamic=False)
        # Where nothing in it learns, what is compiled for images of 10x18, 18x10 or 8x26 patches says nonsense.
        if any(parameter.requires_grad for parameter in self.depth_head.parameters()):
            self.depth_head.compile(dynamic=False)

    def forward(
        self,
        images: Tensor,
        memory: Memory,
        dense_frames: Tensor | None = None,
        last: OdometryMemory | None = None,
    ) -> Prediction:
        """images [B, S, 3, H, W] in [0, 1], sides multiples of the patch size.

        ``dense_frames``: int64 [D], the frames whose dense maps are wanted; None: all. ``last``: for a step head, what
        it kept of the last cached frame; None: there is none.
        """
        clips, frames, _, height, width = images.shape
        patch = self.config.patch_size
        assert height % patch == 0 and width % patch == 0
        grid = (height // patch, width // patch)
        normalised = ((images - self.image_mean) / self.image_std).flatten(0, 1)
        normalised = normalised.contiguous(memory_format=torch.channels_last)
        patches, detail = self.encoder(normalised)
        patches = patches.unflatten(0, (clips, frames))
        taps = self.aggregator(patches, grid, memory)
        beside = _side_stream(images.device) if images.is_cuda and not torch.is_grad_enabled() else None
        if beside is not None:
            beside.wait_stream(torch.cuda.current_stream())
        # On a CPU the camera head costs little, and bf16 would add hundredths of a degree of noise to each pose.
        with torch.autocast("cpu", enabled=False), torch.cuda.stream(beside):
            pose = self.camera_head(taps[-1][:, :, 0], memory)
        spatial = [tap[:, :, self.config.special_tokens :] for tap in taps]
        features, marks = self._described(detail, clips)
        if dense_frames is not None:
            spatial = [tap[:, dense_frames] for tap in spatial]
            if detail is not None:
                detail = detail.unflatten(0, (clips, frames))[:, dense_frames].flatten(0, 1)
        spatial = [tap.flatten(0, 1) for tap in spatial]
        dense = self.depth_head(spatial, grid, detail).float().unflatten(0, (clips, -1))
        points = None
        if self.point_head is not None:
            points = self.point_head(spatial, grid, detail).float().unflatten(0, (clips, -1))
        if beside is not None:
            torch.cuda.current_stream().wait_stream(beside)
        prediction = Prediction(pose, dense, taps[-1], patches, pose[-1], dense[:, :, 0], points=points)
        if features is None:
            return prediction
        if self.look_back is not None and marks is not None:
            with torch.autocast("cpu", enabled=False):
                context = self.look_back.read(spatial, grid).unflatten(0, (clips, -1))
            prediction = replace(prediction, sight=MatchingFeatures(marks, context))
        return self._with_steps(prediction, spatial, features, dense_frames, last)

    def _described(self, detail: Tensor | None, clips: int) -> tuple[Tensor | None, Tensor | None]:
        """What the step head and the look back compare, of the stem's detail; None without them."""
        if self.step_head is None or detail is None:
            return None, None
        # As exact as the camera head, for the same reason.
        with torch.autocast("cpu", enabled=False):
            exact = detail.float() if not detail.is_cuda else detail
            features = self.step_head.describe(exact).unflatten(0, (clips, -1))
            marks = self.look_back.describe(exact).unflatten(0, (clips, -1)) if self.look_back is not None else None
        return features, marks

    def _with_steps(
        self,
        prediction: Prediction,
        taps: list[Tensor],
        features: Tensor,
        dense_frames: Tensor | None,
        last: OdometryMemory | None,
    ) -> Prediction:
        """``taps`` [B * D, gh*gw, 2*dim] of the frames with dense maps, ``features`` [B, S, 16, H/2, W/2]."""
        assert self.step_head is not None
        said = prediction.pose[-1]
        first = last.features[:, None] if last is not None else features[:, :1]
        own, before, codes = features, torch.cat([first, features[:, :-1]], dim=1), said.detach()
        if dense_frames is not None:
            own, before, codes = (x[:, dense_frames] for x in (own, before, codes))
        with torch.autocast("cpu", enabled=False):
            steps = self.step_head(taps, own, before, prediction.dense[:, :, 0].detach(), codes)
        if dense_frames is not None:
            return replace(prediction, steps=steps)
        return self._following(replace(prediction, steps=steps), features, last)

    def _following(self, prediction: Prediction, features: Tensor, last: OdometryMemory | None) -> Prediction:
        """Depth and poses drawn from what the steps say, and from what is seen again, frame by frame."""
        said, steps, sight = prediction.pose[-1], prediction.steps, prediction.sight
        assert steps is not None
        poses, depths = [], []
        with torch.no_grad(), in_fp32(said):
            lengths = focal_lengths(said, *prediction.dense.shape[-2:])
            for frame in range(said.shape[1]):
                here = slice(frame, frame + 1)
                known = last.depth if last is not None else None
                log_depth, units, depth = propagate_depth(
                    prediction.dense[:, here],
                    steps.motion[:, here],
                    steps.support[:, here],
                    steps.parallax[:, here],
                    (lengths[0][:, here], lengths[1][:, here]),
                    known,
                )
                codes = (last.pose_code, last.said) if last is not None else (None, None)
                pose = fuse_poses(said[:, here], steps.motion[:, here], steps.support[:, here], units, *codes)[:, 0]
                past = last.past if last is not None else None
                if sight is not None and self.look_back is not None:
                    marks, context = sight.features[:, frame], sight.context[:, frame]
                    if past is not None:
                        pose, depth = refine_pose(self.look_back, marks, context, said[:, frame], pose, depth, past)
                        log_depth = depth.log_depth[:, None]
                    else:
                        past = MatchingHistory.none(
                            len(pose), (depth.maps.shape[-2], depth.maps.shape[-1]), pose.device
                        )
                    past = past.followed_by(marks, pose)
                last = OdometryMemory(said[:, frame], pose, features[:, frame], depth, past)
                poses.append(pose)
                depths.append(log_depth)
        return replace(prediction, pose_code=torch.stack(poses, dim=1), log_depth=torch.cat(depths, dim=1), kept=last)
