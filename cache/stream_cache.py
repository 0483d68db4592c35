"""A live stream's memory: both caches behind ``begin -> attend -> commit | rollback``."""

from dataclasses import dataclass

import torch
from torch import Tensor

from stream_recon.cache.attention import AttentionBackend
from stream_recon.cache.cache_dtypes import CacheKind, cache_kind
from stream_recon.cache.camera import CameraCache, CameraCacheSchema
from stream_recon.cache.frame_cache import FrameCache, FrameCacheSchema, FramePools
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import CacheChoice, NetworkConfig, StreamConfig

MEBIBYTE = 2**20


@dataclass(frozen=True)
class SlotPools:
    """A seat's part of what several streams share: of a `full` cache alone."""

    frames: FramePools
    camera: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class StreamSchema:
    """All that a stream will ever hold, known before its first frame."""

    frames: FrameCacheSchema
    camera: CameraCacheSchema
    dtype: torch.dtype
    """The run's: what the frames' keys and values come in."""
    camera_dtype: torch.dtype
    kind: CacheKind
    """How the frames' are kept."""

    @staticmethod
    def of(
        network: NetworkConfig,
        stream: StreamConfig,
        patches: int,
        dtype: torch.dtype,
        camera_dtype: torch.dtype | None = None,
        cache: CacheChoice = "full",
    ) -> "StreamSchema":
        """Sizes for frames of so many ``patches``; ``camera_dtype``: the camera head's cache's, if another."""
        frames, camera = FrameCacheSchema.of(network, stream, patches), CameraCacheSchema.of(network, stream)
        return StreamSchema(frames, camera, dtype, camera_dtype or dtype, cache_kind(cache))

    @property
    def bytes(self) -> int:
        """Bytes of both caches, all of which are allocated before the first frame."""
        return self.kind.bytes(self.frames, self.dtype) + self.camera.bytes(self.camera_dtype)

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


class StreamMemory:
    """The `Memory` of one stream (B = 1). Between ``begin`` and ``commit`` or ``rollback`` the network may attend."""

    def __init__(
        self,
        schema: StreamSchema,
        stream: StreamConfig,
        backend: AttentionBackend,
        device: torch.device,
        inputs: StepMetadata | None = None,
        pools: SlotPools | None = None,
    ) -> None:
        """``inputs``: given, steps of one frame take all that changes from there, and may be captured.
        ``backend``: one that reads the schema's kind of cache. ``pools``: given, nothing is allocated; see
        `FrameCache`."""
        self._device = device
        self._inputs = inputs
        self._frame_cache = (
            schema.kind.frame_cache(schema.frames, stream, backend, device, schema.dtype, inputs)
            if pools is None
            else FrameCache(schema.frames, stream, backend, device, schema.dtype, inputs, pools.frames)
        )
        camera = pools.camera if pools is not None else None
        self._camera_cache = CameraCache(schema.camera, stream, device, schema.camera_dtype, inputs, camera)
        self._one = torch.ones(1, dtype=torch.int64, device=device)
        self._pending = 0
        self.frames = 0
        """Frames committed so far."""

    def begin(self, count: int, *, evict_first: bool = False, upload: bool = True) -> None:
        """Open a step: the scale frames in the first one, a single frame in each later one.

        ``upload``: send its numbers to the device, unless they go there with those of other streams.
        """
        if self._inputs is not None:
            self._inputs.open()
        self._frame_cache.begin(count, evict_first=evict_first)
        self._camera_cache.begin(count)
        self._pending = count
        if self._inputs is not None:
            self._inputs.set_frame(self.frames, *self._frame_cache.positions_written)
            if upload:
                self._inputs.upload()

    def commit(self) -> None:
        self._frame_cache.commit()
        self._camera_cache.commit()
        self.frames += self._pending
        self._pending = 0

    def rollback(self) -> None:
        self._frame_cache.rollback()
        self._camera_cache.rollback()
        self._pending = 0

    def reset(self) -> None:
        """Forget all frames; the memory stays where it is, for another stream."""
        self._frame_cache.reset()
        self._camera_cache.reset()
        self._pending = 0
        self.frames = 0

    @property
    def times(self) -> Tensor:
        if self._is_fixed:
            assert self._inputs is not None
            return self._inputs.time.long()[:, None]
        return torch.arange(self.frames, self.frames + self._pending, device=self._device)[None]

    @property
    def is_later_frame(self) -> Tensor:
        return self._one if self._is_fixed else (self.times[0] > 0).long()

    @property
    def is_streamed_frame(self) -> Tensor:
        # The first step holds the scale frames, however few they are.
        if self._is_fixed:
            return self._one
        return torch.full((self._pending,), int(self.frames > 0), device=self._device)

    @property
    def _is_fixed(self) -> bool:
        """A step like all others: nothing in it may depend on the host's counters."""
        return self._inputs is not None and self.frames > 0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._frame_cache.attend(layer, q[0], k[0], v[0])[None].to(v.dtype)

    def attend_camera(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._camera_cache.attend(slot, q[0], k[0], v[0])[None].to(v.dtype)
