"""The ways to keep the frames' keys and values, and all that follows from the choice of one: nowhere else is it asked.

``full`` keeps them in the run's precision, ``fp8`` all keys and the patches' values in e4m3, at about
half the memory.
"""

from abc import ABC, abstractmethod

import torch

from stream_recon.cache.attention import AttentionBackend
from stream_recon.cache.fp8_frame_cache import Fp8FrameCache
from stream_recon.cache.fp8_pages import FP8
from stream_recon.cache.frame_cache import FrameCache, FrameCacheSchema
from stream_recon.cache.kernels.choose import check_fp8, choose_attention, fp8_attention, supports_fp8
from stream_recon.cache.kernels.timing import AttentionSizes
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.configs.schema import AttentionChoice, CacheChoice, StreamConfig


class CacheKind(ABC):
    """One way: what it needs, what it takes, what it is made of, what reads it."""

    name: CacheChoice
    widened: bool
    """What a layer sees of values is widened to bf16 before attention, which is ours, reads it; else all is read in
    place."""

    @abstractmethod
    def check(self, attention: AttentionChoice, device: torch.device) -> None:
        """Raises ResourceError, saying why, where it is not to be had."""

    @abstractmethod
    def runs_on(self, device: torch.device) -> bool:
        """Whether a CUDA device can keep and read it."""

    @abstractmethod
    def patch_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """What a patch's channels are kept in by a run in ``dtype``."""

    @abstractmethod
    def bytes(self, schema: FrameCacheSchema, dtype: torch.dtype) -> int:
        """Bytes of all keys and values in a run in ``dtype``."""

    @abstractmethod
    def attention(
        self, choice: AttentionChoice, sizes: AttentionSizes, device: torch.device, inputs: StepMetadata | None
    ) -> AttentionBackend:
        """The kernel that reads it. Raises ResourceError; see `choose_attention`."""

    @abstractmethod
    def frame_cache(
        self,
        schema: FrameCacheSchema,
        stream: StreamConfig,
        backend: AttentionBackend,
        device: torch.device,
        dtype: torch.dtype,
        inputs: StepMetadata | None,
    ) -> FrameCache:
        """An empty cache; ``backend`` comes from `attention`."""


class _Full(CacheKind):
    name = "full"
    widened = False

    def check(self, attention: AttentionChoice, device: torch.device) -> None:
        pass

    def runs_on(self, device: torch.device) -> bool:
        return True

    def patch_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def bytes(self, schema: FrameCacheSchema, dtype: torch.dtype) -> int:
        return FrameCache.bytes(schema, dtype)

    def attention(
        self, choice: AttentionChoice, sizes: AttentionSizes, device: torch.device, inputs: StepMetadata | None
    ) -> AttentionBackend:
        return choose_attention(choice, sizes, device, inputs)

    def frame_cache(
        self,
        schema: FrameCacheSchema,
        stream: StreamConfig,
        backend: AttentionBackend,
        device: torch.device,
        dtype: torch.dtype,
        inputs: StepMetadata | None,
    ) -> FrameCache:
        return FrameCache(schema, stream, backend, device, dtype, inputs)


class _Fp8(CacheKind):
    name = "fp8"
    widened = True

    def check(self, attention: AttentionChoice, device: torch.device) -> None:
        check_fp8(attention, device)

    def runs_on(self, device: torch.device) -> bool:
        return supports_fp8(device)

    def patch_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return FP8

    def bytes(self, schema: FrameCacheSchema, dtype: torch.dtype) -> int:
        return Fp8FrameCache.bytes(schema, dtype)

    def attention(
        self, choice: AttentionChoice, sizes: AttentionSizes, device: torch.device, inputs: StepMetadata | None
    ) -> AttentionBackend:
        return fp8_attention(choice, device, inputs)

    def frame_cache(
        self,
        schema: FrameCacheSchema,
        stream: StreamConfig,
        backend: AttentionBackend,
        device: torch.device,
        dtype: torch.dtype,
        inputs: StepMetadata | None,
    ) -> FrameCache:
        return Fp8FrameCache(schema, stream, backend, device, inputs)


_KINDS: dict[CacheChoice, CacheKind] = {kind.name: kind for kind in (_Full(), _Fp8())}
CACHE_CHOICES: tuple[CacheChoice, ...] = tuple(_KINDS)
"""The most exact one first."""


def cache_kind(choice: CacheChoice) -> CacheKind:
    """What a choice means."""
    return _KINDS[choice]
