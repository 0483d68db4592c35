"""Cache dtype policies: what the aggregator's keys and values are stored in, and all that follows from it.

``full``: the run's precision. ``fp8``: all keys and the patches' values in e4m3, in about half the memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stream_recon.cache.attention import AttentionBackend, AttentionSizes
from stream_recon.cache.compressed_frame_cache import CompressedFrameCache, CompressedInt8FrameCache
from stream_recon.cache.fp8_frame_cache import Fp8FrameCache
from stream_recon.cache.fp8_pages import FP8
from stream_recon.cache.frame_cache import FrameCache
from stream_recon.cache.int8_frame_cache import Int8Attention, Int8FrameCache
from stream_recon.cache.kernels.choose import (
    check_fp8,
    choose_attention,
    compressed_attention,
    fp8_attention,
    supports_fp8,
)
from stream_recon.cache.step_metadata import PoolPositions, StepMetadata
from stream_recon.configs.schema import AttentionChoice, CacheChoice


@dataclass(frozen=True)
class CacheDtypePolicy:
    """Requirements, storage type, cache and attention kernel of one choice."""

    name: CacheChoice | Literal["int8"]
    frame_cache: type[FrameCache]
    """Of full layers."""
    compressed_cache: type[FrameCache]
    """Of compressed layers."""
    dequantised: bool
    """Whether values are dequantised to bf16 before attention reads them; else all is read in place."""
    patch_dtype: Callable[[torch.dtype], torch.dtype]
    """Storage type of a patch's channels, given the run's type."""
    check: Callable[[AttentionChoice, torch.device], None]
    """Raises ResourceError where this choice cannot run."""
    runs_on: Callable[[torch.device], bool]
    """Whether a CUDA device supports it."""
    attention: Callable[[AttentionChoice, AttentionSizes, torch.device, StepMetadata | None], AttentionBackend]
    """Kernel that reads the cache of full layers. Raises ResourceError; see `choose_attention`."""
    compressed_attention: Callable[[Tensor, float, PoolPositions | None], AttentionBackend]
    """Kernel that reads the cache of compressed layers; see `compressed_attention`."""


_POLICIES: tuple[CacheDtypePolicy, ...] = (
    CacheDtypePolicy(
        name="full",
        frame_cache=FrameCache,
        compressed_cache=CompressedFrameCache,
        dequantised=False,
        patch_dtype=lambda dtype: dtype,
        check=lambda attention, device: None,
        runs_on=lambda device: True,
        attention=choose_attention,
        compressed_attention=compressed_attention,
    ),
    CacheDtypePolicy(
        name="fp8",
        frame_cache=Fp8FrameCache,
        compressed_cache=CompressedFrameCache,
        dequantised=True,
        patch_dtype=lambda dtype: FP8,
        check=check_fp8,
        runs_on=lambda device: supports_fp8(device),
        attention=lambda attention, sizes, device, metadata: fp8_attention(attention, device, metadata),
        compressed_attention=compressed_attention,
    ),
)
INT8_POLICY = CacheDtypePolicy(
    name="int8",
    frame_cache=Int8FrameCache,
    compressed_cache=CompressedInt8FrameCache,
    dequantised=False,
    patch_dtype=lambda dtype: torch.int8,
    check=lambda attention, device: None,
    runs_on=lambda device: False,
    attention=lambda attention, sizes, device, metadata: Int8Attention(),
    compressed_attention=lambda bias, max_bias, positions: Int8Attention(bias),
)
"""Of a run in int8 on a CPU that attends faster so; it is no choice of the user."""
CACHE_CHOICES: tuple[CacheChoice, ...] = ("full", "fp8")
"""Data types, the most exact one first."""


def cache_policy(choice: CacheChoice) -> CacheDtypePolicy:
    """How keys and values are stored; in the run's precision for ``compressed``, see `Preset.with_cache`."""
    return _POLICIES[CACHE_CHOICES.index("full" if choice == "compressed" else choice)]
