"""Cache dtype policies: what the aggregator's keys and values are stored in, and all that follows from it.

``full``: the run's precision. ``fp8``: all keys and the patches' values in e4m3, in about half the memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from stream_recon.cache.attention import AttentionBackend, AttentionSizes
from stream_recon.cache.fp8_frame_cache import Fp8FrameCache
from stream_recon.cache.fp8_pages import FP8
from stream_recon.cache.frame_cache import FrameCache
from stream_recon.cache.int8_frame_cache import Int8Attention, Int8FrameCache
from stream_recon.cache.kernels.choose import check_fp8, choose_attention, fp8_attention, supports_fp8
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.configs.schema import AttentionChoice, CacheChoice


@dataclass(frozen=True)
class CacheDtypePolicy:
    """Requirements, storage type, cache and attention kernel of one choice."""

    name: CacheChoice | Literal["int8"]
    frame_cache: type[FrameCache]
    dequantised: bool
    """Whether values are dequantised to bf16 before attention reads them; else all is read in place."""
    patch_dtype: Callable[[torch.dtype], torch.dtype]
    """Storage type of a patch's channels, given the run's type."""
    check: Callable[[AttentionChoice, torch.device], None]
    """Raises ResourceError where this choice cannot run."""
    runs_on: Callable[[torch.device], bool]
    """Whether a CUDA device supports it."""
    attention: Callable[[AttentionChoice, AttentionSizes, torch.device, StepMetadata | None], AttentionBackend]
    """Kernel that reads the cache. Raises ResourceError; see `choose_attention`."""


_POLICIES: tuple[CacheDtypePolicy, ...] = (
    CacheDtypePolicy(
        name="full",
        frame_cache=FrameCache,
        dequantised=False,
        patch_dtype=lambda dtype: dtype,
        check=lambda attention, device: None,
        runs_on=lambda device: True,
        attention=choose_attention,
    ),
    CacheDtypePolicy(
        name="fp8",
        frame_cache=Fp8FrameCache,
        dequantised=True,
        patch_dtype=lambda dtype: FP8,
        check=check_fp8,
        runs_on=lambda device: supports_fp8(device),
        attention=lambda attention, sizes, device, metadata: fp8_attention(attention, device, metadata),
    ),
)
INT8_POLICY = CacheDtypePolicy(
    name="int8",
    frame_cache=Int8FrameCache,
    dequantised=False,
    patch_dtype=lambda dtype: torch.int8,
    check=lambda attention, device: None,
    runs_on=lambda device: False,
    attention=lambda attention, sizes, device, metadata: Int8Attention(),
)
"""Of a run in int8 on a CPU that attends faster so; it is no choice of the user."""
CACHE_CHOICES: tuple[CacheChoice, ...] = ("full", "fp8")
"""All choices, the most exact one first."""


def cache_policy(choice: CacheChoice) -> CacheDtypePolicy:
    return _POLICIES[CACHE_CHOICES.index(choice)]
