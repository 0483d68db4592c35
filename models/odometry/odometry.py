"""Odometry of the embedded network: poses and depths chained from keyframe to keyframe."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.layers import in_fp32
from stream_recon.models.odometry import flow_head
from stream_recon.models.odometry.depth_filter import DepthState, propagate_depth
from stream_recon.models.odometry.flow_head import FlowHead
from stream_recon.models.odometry.fusion import LastPose, fuse_poses
from stream_recon.models.odometry.keyframe_matcher import KeyframeMatcher, MatchingHistory
from stream_recon.models.odometry.pnp import RelativeMotion
from stream_recon.models.odometry.refinement import QueryFrame, refine_pose
from stream_recon.models.odometry.sampling import SAMPLES
from stream_recon.models.prediction import Descriptors, NetworkFeatures, Prediction

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class OdometryState:
    """Recurrent state: what the last keyframe of each of B streams leaves for the next frame."""

    last: LastPose
    descriptors: Tensor  # [B, 16, H/2, W/2]: `FlowHead.describe`
    depth: DepthState
    history: MatchingHistory | None
    """None without a keyframe matcher."""

    @staticmethod
    def zeros(config: NetworkConfig, grid: tuple[int, int], streams: int, device: torch.device) -> "OdometryState":
        """A state to `store` into; ``grid``: patch rows and columns."""
        height, width = (side * config.patch_size for side in grid)
        poses = (torch.zeros(streams, 9, device=device) for _ in range(2))
        features = torch.zeros(streams, flow_head.FEATURES, height // 2, width // 2, device=device)
        maps = torch.zeros(streams, 2, height, width, device=device)
        depth = DepthState.from_maps(maps, [SAMPLES * side for side in grid])
        history = MatchingHistory.empty(streams, (height, width), device) if config.keyframe_matcher else None
        return OdometryState(LastPose(*poses), features, depth, history)

    def select(self, rows: slice | Tensor) -> "OdometryState":
        """The state of these streams: a slice gives views, an index on the device copies."""
        selected: OdometryState = _map_tensors(self, lambda x: x[rows])
        return selected

    def store(self, rows: Tensor, other: "OdometryState", other_rows: Tensor) -> None:
        """Overwrite streams with those of another state, in place: captured graphs read these tensors."""
        for own, new in zip(_tensors(self), _tensors(other), strict=True):
            own[rows] = new[other_rows]


def _map_tensors(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same dataclass with each tensor changed, in nested ones too."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return change(state)
    return replace(state, **{field.name: _map_tensors(getattr(state, field.name), change) for field in fields(state)})


def _tensors(state: Any) -> Iterator[Tensor]:
    """All tensors of a dataclass, in the order of its fields."""
    if isinstance(state, Tensor):
        yield state
    elif state is not None:
        for field in fields(state):
            yield from _tensors(getattr(state, field.name))


def _is_captured(x: Tensor) -> bool:
    """Whether work on ``x`` goes into a CUDA graph."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


@dataclass(frozen=True)
class Measurements:
    """Measurements of D frames of each of B clips, before poses and depths are fused."""

    motion: RelativeMotion
    context: Tensor | None  # [B, D, 2*gh, 2*gw, 16]: `KeyframeMatcher.read_context`; None without a keyframe matcher


class Odometry(nn.Module):
    """Relative motion by optical flow, fused with the heads' poses and depths, and refined by keyframe matches.

    ``fused``: a step without a search for rotations runs as Triton kernels, for inference on a GPU.
    """

    fused = False

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.patch_size = config.patch_size
        self.flow_head = FlowHead(config)
        self.keyframe_matcher = KeyframeMatcher(config) if config.keyframe_matcher else None

    def fuse_for_gpu(self) -> None:
        """Prepare inference on a GPU: matrices that read tokens and convolutions in bf16, kernels for all that follows.

        Layers that correct matches stay fp32.
        """
        self.fused = True
        head, matcher = self.flow_head, self.keyframe_matcher
        halves: list[nn.Module] = [head.project, head.blocks, head.out, head.features1, head.features2]
        if matcher is not None:
            halves += [matcher.project, matcher.features1, matcher.features2]
        for part in halves:
            for module in part.modules():
                if isinstance(module, nn.Linear | nn.Conv2d):
                    module.to(torch.bfloat16)
                if isinstance(module, nn.Conv2d):
                    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def describe(self, detail: Tensor, clips: int) -> Descriptors:
        """Features to compare, from the detail of the encoder's stem [B*S, 32, H/2, W/2]."""
        if self.fused and detail.is_cuda:
            described = self._by_kernels(lambda: self._describe_fused(detail, clips), detail)
            if described is not None:
                return described
        # In fp32 on a CPU, where bf16 would add hundredths of a degree to each pose.
        with torch.autocast("cpu", enabled=False):
            exact = detail.float() if not detail.is_cuda else detail
            flow = self.flow_head.describe(exact).unflatten(0, (clips, -1))
            matcher = self.keyframe_matcher
            matching = matcher.describe(exact).unflatten(0, (clips, -1)) if matcher is not None else None
        return Descriptors(flow, matching)

    @torch.no_grad()
    def _describe_fused(self, detail: Tensor, clips: int) -> Descriptors:
        from stream_recon.models.odometry.kernels import features  # needs Triton

        flow = features.describe_flow(self.flow_head, detail).unflatten(0, (clips, -1))
        matcher, matching = self.keyframe_matcher, None
        if matcher is not None:
            matching = features.describe_matching(matcher, detail).unflatten(0, (clips, -1))
        return Descriptors(flow, matching)

    def measure(
        self,
        heads: Prediction,
        features: NetworkFeatures,
        dense_frames: Tensor | None = None,
        state: OdometryState | None = None,
    ) -> Measurements:
        """Motion of each frame since the keyframe before it, and what matching needs.

        Args:
            heads: outputs of the heads.
            dense_frames: int64 [D], the frames that have dense maps; None: all.
            state: of the keyframe before the first frame; None: the first frame is compared with itself.
        """
        assert features.descriptors is not None
        own, codes = features.descriptors.flow, heads.head_pose[-1].detach()
        first = state.descriptors[:, None] if state is not None else own[:, :1]
        before = torch.cat([first, own[:, :-1]], dim=1)
        if dense_frames is not None:
            own, before, codes = (x[:, dense_frames] for x in (own, before, codes))
        context, (height, width) = None, heads.head_maps.shape[-2:]
        with torch.autocast("cpu", enabled=False):
            if self.keyframe_matcher is not None:
                grid = (height // self.patch_size, width // self.patch_size)
                context = self.keyframe_matcher.read_context(features.taps, grid).unflatten(0, (len(own), -1))
            motion = self.flow_head(features.taps, own, before, heads.head_maps[:, :, 0].detach(), codes)
        return Measurements(motion, context)

    def step(
        self, heads: Prediction, features: NetworkFeatures, state: OdometryState | None, *, rotation_search: bool = True
    ) -> tuple[Prediction, OdometryState]:
        """Poses and depths of B clips of S frames, each frame a keyframe for the next one.

        Returns the prediction with odometry's pose and depth, and the state after the last frame.
        """
        if self.fused and not rotation_search:
            done = self._by_kernels(lambda: self._step_fused(heads, features, state), heads.head_pose)
            if done is not None:
                return done
        measured = self.measure(heads, features, state=state)
        return self.fuse(heads, features, measured, state, rotation_search=rotation_search)

    def _step_fused(
        self, heads: Prediction, features: NetworkFeatures, state: OdometryState | None
    ) -> tuple[Prediction, OdometryState]:
        from stream_recon.models.odometry.kernels.step import step  # needs Triton

        return step(self, heads, features, state)

    def _by_kernels(self, run: Callable[[], T], like: Tensor) -> T | None:
        """What kernels compute; None, from then on, if they do not run here. ``like``: a tensor on their device."""
        try:
            return run()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # any failure to compile leaves the plain path
            # A first step is never captured, so kernels that do not compile are found there.
            if _is_captured(like):
                raise
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            logger.warning("odometry's kernels do not run here, so steps will be slower: %s", reason)
            self.fused = False
            return None

    @torch.no_grad()
    def fuse(
        self,
        heads: Prediction,
        features: NetworkFeatures,
        measured: Measurements,
        state: OdometryState | None,
        *,
        rotation_search: bool = True,
    ) -> tuple[Prediction, OdometryState]:
        """`step` after `measure`."""
        head_pose, descriptors = heads.head_pose[-1], features.descriptors
        assert descriptors is not None
        poses, depths = [], []
        with in_fp32(head_pose):
            for frame in range(head_pose.shape[1]):
                current = slice(frame, frame + 1)
                motion = measured.motion.select(current)
                log_depth, log_scale, depth = propagate_depth(
                    heads.head_maps[:, current], motion, state.depth if state is not None else None
                )
                last = state.last if state is not None else None
                fused = fuse_poses(head_pose[:, current], motion.motion, motion.support, log_scale, last)
                pose, history = fused[:, 0], state.history if state is not None else None
                if self.keyframe_matcher is not None and descriptors.matching is not None:
                    matching = descriptors.matching[:, frame]
                    if history is not None:
                        assert measured.context is not None
                        query = QueryFrame(matching, measured.context[:, frame], head_pose[:, frame])
                        pose, depth = refine_pose(self.keyframe_matcher, query, pose, depth, history, rotation_search)
                        log_depth = depth.log_depth[:, None]
                    else:
                        size = (depth.maps.shape[-2], depth.maps.shape[-1])
                        history = MatchingHistory.empty(len(pose), size, pose.device)
                    history = history.followed_by(matching, pose)
                last = LastPose(pose, head_pose[:, frame])
                state = OdometryState(last, descriptors.flow[:, frame], depth, history)
                poses.append(pose)
                depths.append(log_depth)
        assert state is not None
        return replace(heads, pose=torch.stack(poses, dim=1), log_depth=torch.cat(depths, dim=1)), state
