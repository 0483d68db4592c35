"""The streaming network: images and KV cache in, camera poses, depth and confidence out. It keeps no state.

A step of S frames goes through `Encoder` (patches of one frame), `Aggregator` (attention within and across frames, with
the cache), `CameraHead` and `DPTHead`. The embedded network then runs `Odometry`, whose state the caller keeps.
"""

from functools import lru_cache

import torch
from torch import Tensor, nn

from stream_recon.cache.attention import KVCache
from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.aggregator import Aggregator
from stream_recon.models.encoder import Encoder
from stream_recon.models.heads import CameraHead, DPTHead
from stream_recon.models.int8 import quantise_blocks
from stream_recon.models.layers import Block, pack_blocks
from stream_recon.models.odometry.odometry import Odometry, OdometryState
from stream_recon.models.prediction import NetworkFeatures, Prediction

IMAGE_MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's colours, which published encoders were trained with."""
IMAGE_STD = (0.229, 0.224, 0.225)
"""Standard deviation of ImageNet's colours."""


@lru_cache(maxsize=8)
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """A CUDA stream for the camera head, while the dense heads run: one token's products leave most of a GPU idle."""
    return torch.cuda.Stream(device)


class StreamingNetwork(nn.Module):
    """A network of the LingBot-Map family, published or embedded, as its config has it."""

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
        self.odometry = Odometry(config) if config.flow_blocks else None
        self.make_constants()

    def make_constants(self) -> None:
        """Make the buffers that no file has; again after a network on the meta device received its weights."""
        for name, values in (("image_mean", IMAGE_MEAN), ("image_std", IMAGE_STD)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(
        self, images: Tensor, kv_cache: KVCache, state: OdometryState | None = None, *, rotation_search: bool = True
    ) -> tuple[Prediction, OdometryState | None]:
        """A step of S frames of each of B streams, as if each were a keyframe.

        Args:
            images: [B, S, 3, H, W] in [0, 1], sides multiples of the patch size.
            kv_cache: of the streams.
            state: odometry's state after the last keyframe; None: there is none.
            rotation_search: whether odometry searches for large errors of rotation.

        Returns the prediction, and odometry's state for the next step if the last frame becomes a keyframe; None
        without odometry.
        """
        heads, features = self.predict(images, kv_cache)
        if self.odometry is None:
            return heads, None
        return self.odometry.step(heads, features, state, rotation_search=rotation_search)

    def predict(
        self, images: Tensor, kv_cache: KVCache, dense_frames: Tensor | None = None
    ) -> tuple[Prediction, NetworkFeatures]:
        """Outputs of the heads, without odometry; ``dense_frames``: int64 [D], the frames to give dense maps for."""
        clips, frames, _, height, width = images.shape
        patch = self.config.patch_size
        assert height % patch == 0 and width % patch == 0
        grid = (height // patch, width // patch)
        patches, detail = self.encode(images.flatten(0, 1))
        patches = patches.unflatten(0, (clips, frames))
        taps = self.aggregator(patches, grid, kv_cache)
        side_stream = _side_stream(images.device) if images.is_cuda and not torch.is_grad_enabled() else None
        if side_stream is not None:
            side_stream.wait_stream(torch.cuda.current_stream())
        # On a CPU the camera head costs little, and bf16 would add hundredths of a degree of noise to each pose.
        with torch.autocast("cpu", enabled=False), torch.cuda.stream(side_stream):
            head_pose = self.camera_head(taps[-1][:, :, 0], kv_cache)
        # While the camera head runs.
        descriptors = None
        if self.odometry is not None and detail is not None:
            descriptors = self.odometry.describe(detail, clips)
        dense_taps = [tap[:, :, self.config.special_tokens :] for tap in taps]
        if dense_frames is not None:
            dense_taps = [tap[:, dense_frames] for tap in dense_taps]
            if detail is not None:
                detail = detail.unflatten(0, (clips, frames))[:, dense_frames].flatten(0, 1)
        dense_taps = [tap.flatten(0, 1) for tap in dense_taps]
        head_maps = self.depth_head(dense_taps, grid, detail).float().unflatten(0, (clips, -1))
        points = None
        if self.point_head is not None:
            points = self.point_head(dense_taps, grid, detail).float().unflatten(0, (clips, -1))
        if side_stream is not None:
            torch.cuda.current_stream().wait_stream(side_stream)
        prediction = Prediction(head_pose, head_maps, head_pose[-1], head_maps[:, :, 0], points)
        return prediction, NetworkFeatures(taps[-1], patches, dense_taps, descriptors)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """`Encoder` of images [F, 3, H, W] in [0, 1]."""
        if self.encoder.fused:
            from stream_recon.models.fused_encoder import encode  # needs Triton

            return encode(self.encoder, images, self.image_mean, self.image_std)
        normalised = (images - self.image_mean) / self.image_std
        return self.encoder(normalised.contiguous(memory_format=torch.channels_last))  # type: ignore[no-any-return]

    def store_matrices_in_half(self) -> None:
        """Keep weights of matrix products and convolutions in bf16, which autocast would otherwise cast in every step.

        Convolutions are stored channels last, the layout in which they and resizing are fastest. Norms, gains, tokens
        and position tables stay fp32; so do the camera head and odometry.
        """
        for part in (self.encoder, self.aggregator, self.depth_head, self.point_head):
            for module in part.modules() if part is not None else ():
                if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                    module.to(torch.bfloat16)
                if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def fuse_for_gpu(self) -> None:
        """Prepare inference on a GPU: matrices in bf16, and fused kernels between them.

        The camera head's last layers, whose output is the pose itself, stay fp32.
        """
        self.store_matrices_in_half()
        self.encoder.fused = self.aggregator.fused = self.depth_head.fused = True
        head = self.camera_head
        head.fused = True
        for part in (head.project, head.embed_pose, head.modulation, head.trunk):
            for module in part.modules():
                if isinstance(module, nn.Linear):
                    module.to(torch.bfloat16)
        if self.odometry is not None:
            self.odometry.fuse_for_gpu()
        for trunk in (self.encoder, self.aggregator, head, self.odometry):
            for module in trunk.modules() if trunk is not None else ():
                if isinstance(module, Block):
                    module.fused = True

    def pack_for_cpu(self) -> None:
        """Prepare inference in bf16 on a CPU: matrices in bf16, those of large blocks in the CPU's own layout."""
        self.store_matrices_in_half()
        for part in (self.encoder, self.aggregator):
            pack_blocks(part)

    def quantise_for_cpu(self, *, half: bool) -> None:
        """Prepare inference on a CPU with the matrices of large blocks in int8; ``half``: all else in bf16."""
        for part in (self.encoder, self.aggregator):
            quantise_blocks(part)
        if half:
            self.store_matrices_in_half()
