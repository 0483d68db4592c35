"""KV cache of one stream: aggregator and camera head behind ``begin``, ``attend``, and ``commit`` or ``rollback``."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stream_recon.cache.attention import AttentionBackend
from stream_recon.cache.block_manager import CacheUse, FrameAllocation, FrameTable
from stream_recon.cache.cache_dtypes import CacheDtypePolicy, cache_policy
from stream_recon.cache.camera import CameraCache, CameraCacheSchema
from stream_recon.cache.compressed_frame_cache import CompressedSchema
from stream_recon.cache.frame_cache import FrameCache, FrameCacheSchema, FramePools
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import CacheChoice, NetworkConfig, StreamConfig

MEBIBYTE = 2**20


@dataclass(frozen=True)
class SlotPools:
    """Tensors of one batch slot, for a `full` cache."""

    frames: Sequence[FramePools]
    """Of the kinds of layers, see `StreamSchema.kinds`."""
    camera: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class StreamSchema:
    """Sizes of all that a stream caches, known before its first frame."""

    frames: FrameCacheSchema
    """Of full layers."""
    compressed: CompressedSchema | None
    """Of compressed layers, the deepest ones; None: there are none."""
    camera: CameraCacheSchema
    dtype: torch.dtype
    """Type in which the run computes the aggregator's keys and values."""
    camera_dtype: torch.dtype
    """Type of the camera head's keys and values."""
    policy: CacheDtypePolicy
    """How the aggregator's keys and values are stored."""
    max_score: float = math.inf
    """Largest score of attention that the network's weights allow, as an exponent of 2; see `StepMetadata`."""

    @staticmethod
    def from_config(
        network: NetworkConfig,
        stream: StreamConfig,
        grid: tuple[int, int],
        dtype: torch.dtype,
        camera_dtype: torch.dtype | None = None,
        cache: CacheChoice | CacheDtypePolicy = "full",
    ) -> "StreamSchema":
        """Sizes for frames of ``grid`` patch rows and columns; ``camera_dtype``: ``dtype`` if None."""
        policy = cache if isinstance(cache, CacheDtypePolicy) else cache_policy(cache)
        frames = FrameCacheSchema.from_config(network, stream, grid[0] * grid[1])
        compressed = CompressedSchema.of_stream(network, stream, grid)
        camera = CameraCacheSchema.from_config(network, stream)
        return StreamSchema(frames, compressed, camera, dtype, camera_dtype or dtype, policy)

    @property
    def kinds(self) -> list[FrameCacheSchema]:
        """Sizes of full layers, then of compressed ones if there are any."""
        return [self.frames] if self.compressed is None else [self.frames, self.compressed]

    @property
    def bytes(self) -> int:
        """Bytes of all caches, allocated before the first frame."""
        compressed = self.policy.compressed_cache.bytes(self.compressed, self.dtype) if self.compressed else 0
        frames = self.policy.frame_cache.bytes(self.frames, self.dtype)
        return frames + compressed + self.camera.bytes(self.camera_dtype)

    def check_fits(self, available: int) -> None:
        """Raises ResourceError, naming the numbers, if ``available`` bytes are too few."""
        if self.bytes <= available:
            return
        raise ResourceError(
            f"the cache needs {self.bytes / MEBIBYTE:,.0f} MiB ({self.frames.patch_slots} frames of "
            f"{self.frames.patches} patches and {self.frames.special_slots} of {self.frames.special} special tokens "
            f"in {self.frames.layers} layers, {self.camera.slots} camera tokens in {self.camera.layers}), but "
            f"{available / MEBIBYTE:,.0f} MiB are free: lower the preset's window, special_budget or max_patches"
        )


def compressed_cache(
    schema: StreamSchema, device: torch.device, metadata: StepMetadata | None, pools: FramePools | None
) -> FrameCache:
    """The cache of a stream's compressed layers; ``metadata``, ``pools``: see `StreamCache`."""
    sizes, policy = schema.compressed, schema.policy
    assert sizes is not None
    pools = pools or policy.compressed_cache.allocate_pools(sizes, device, schema.dtype)
    positions = metadata.compressed if metadata else None
    backend = policy.compressed_attention(sizes.bias(device), sizes.max_bias, positions)
    return policy.compressed_cache(sizes, backend, pools, positions)


class StreamCache:
    """The `KVCache` of one stream (B = 1). The network may attend between ``begin`` and ``commit`` or ``rollback``."""

    def __init__(
        self,
        schema: StreamSchema,
        stream: StreamConfig,
        backend: AttentionBackend,
        device: torch.device,
        metadata: StepMetadata | None = None,
        pools: SlotPools | None = None,
    ) -> None:
        """``backend``: a kernel that reads the schema's kind of cache. ``metadata``: device buffers from which steps of
        one frame read all that changes, so that they can be captured. ``pools``: None allocates them."""
        self._device = device
        self._metadata = metadata
        frame_cache = schema.policy.frame_cache
        frame_pools = pools.frames[0] if pools else frame_cache.allocate_pools(schema.frames, device, schema.dtype)
        positions = metadata.full if metadata else None
        self._table = FrameTable(stream.scale_frames, stream.window, stream.special_budget)
        self._allocation: FrameAllocation | None = None
        self._frame_caches = [frame_cache(schema.frames, backend, frame_pools, positions)]
        self._layers = [(self._frame_caches[0], layer) for layer in range(schema.frames.layers)]
        """The cache of each global layer, and the layer's number in it."""
        if schema.compressed is not None:
            deep = compressed_cache(schema, device, metadata, pools.frames[1] if pools else None)
            self._frame_caches.append(deep)
            self._layers += [(deep, layer) for layer in range(schema.compressed.layers)]
        self._camera_cache = CameraCache(
            schema.camera, stream, device, schema.camera_dtype, metadata, pools.camera if pools else None
        )
        self._one = torch.ones(1, dtype=torch.int64, device=device)
        self._pending = 0
        self.frames = 0
        """Frames committed so far."""

    def begin(self, count: int, *, evict_first: bool = False, upload: bool = True) -> bool:
        """Open a step: the scale frames in the first one, a single frame in each later one.

        ``upload``: send the step's metadata to the device; `BatchSlots` uploads those of all streams together.
        Returns whether the metadata changed since the last step.
        """
        allocation = self._table.begin(count, evict_first=evict_first)
        is_new, self._allocation = allocation is not self._allocation, allocation
        if self._metadata is not None and is_new:
            self._metadata.wait_for_upload()
            self._metadata.set_time(self.frames)
        for frame_cache in self._frame_caches:
            frame_cache.begin(allocation)
        self._camera_cache.begin(count)
        self._pending = count
        if self._metadata is not None and upload:
            self._metadata.upload()
        return is_new

    def commit(self) -> None:
        """Keep the step's frames."""
        kept = self._table.commit()
        for frame_cache in self._frame_caches:
            frame_cache.commit(kept)
        self._camera_cache.commit()
        self.frames += self._pending
        self._pending = 0

    def rollback(self) -> None:
        """Drop the step's frames."""
        self._table.rollback()
        for frame_cache in self._frame_caches:
            frame_cache.rollback()
        self._camera_cache.rollback()
        self._pending = 0

    def reset(self) -> None:
        """Drop all frames. The tensors keep their addresses for the next stream."""
        self._table.reset()
        for frame_cache in self._frame_caches:
            frame_cache.reset()
        self._camera_cache.reset()
        self._pending = 0
        self.frames = 0

    @property
    def use(self) -> CacheUse:
        """Frames given and held, between two steps."""
        return CacheUse(self.frames, *self._table.held)

    @property
    def times(self) -> Tensor:
        if self._is_fixed:
            assert self._metadata is not None
            return self._metadata.time.long()[:, None]
        return torch.arange(self.frames, self.frames + self._pending, device=self._device)[None]

    @property
    def is_later_frame(self) -> Tensor:
        return self._one if self._is_fixed else (self.times[0] > 0).long()

    @property
    def is_streamed_frame(self) -> Tensor:
        # The first step holds the scale frames, whatever their number.
        if self._is_fixed:
            return self._one
        return torch.full((self._pending,), int(self.frames > 0), device=self._device)

    @property
    def _is_fixed(self) -> bool:
        """Whether the step may be captured, so that nothing in it may depend on the host's counters."""
        return self._metadata is not None and self.frames > 0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        frame_cache, own = self._layers[layer]
        return frame_cache.attend(own, q[0], k[0], v[0])[None].to(v.dtype)

    def attend_camera(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._camera_cache.attend(slot, q[0], k[0], v[0])[None].to(v.dtype)
