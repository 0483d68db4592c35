"""Choice of the attention kernel of a stream."""

import logging
from functools import lru_cache
from importlib.util import find_spec
from typing import get_args

import torch
from torch import Tensor

from stream_recon.cache.attention import AttentionBackend, AttentionSizes, TorchAttention
from stream_recon.cache.kernels.flashinfer_attention import FlashInferAttention
from stream_recon.cache.step_metadata import PoolPositions, StepMetadata
from stream_recon.configs.errors import ResourceError, missing_library
from stream_recon.configs.schema import AttentionChoice

logger = logging.getLogger(__name__)

CHOICES: tuple[AttentionChoice, ...] = get_args(AttentionChoice)
"""Values of ``--attention``."""
HOPPER = 9
"""Major compute capability of the GPUs on which FlashAttention 3 runs."""
FP8_CAPABILITY = (8, 9)
"""Compute capability (Ada, Hopper) from which tensor cores multiply e4m3."""
PUBLISHED_WIDTH = 1024
"""Channels of the published networks. A smaller network gains too little to compile FlashInfer for minutes."""
COMPILES = "attention by FlashInfer: a first start on this machine compiles it, which takes some minutes"
"""Logged before FlashInfer is used."""


def choose_attention(
    choice: AttentionChoice, sizes: AttentionSizes, device: torch.device, metadata: StepMetadata | None = None
) -> AttentionBackend:
    """The backend asked for.

    ``auto`` takes our Triton kernel where it runs. Elsewhere on a GPU it takes FlashInfer for networks of published
    size, where it is installed and compiles; else torch. ``metadata``: needed by ``triton`` only.

    Raises:
        ResourceError: the choice is unknown or not installed, or needs a CUDA device or half precision.
    """
    check_choice(choice)
    is_half_on_gpu = device.type == "cuda" and sizes.dtype in (torch.float16, torch.bfloat16)
    if choice == "auto":
        if is_half_on_gpu and metadata is not None:
            return build_kernel("triton", sizes, device, metadata)
        return (_compiled_flashinfer(sizes, device) if is_half_on_gpu else None) or TorchAttention()
    if choice == "sdpa":
        return TorchAttention()
    if device.type != "cuda":
        raise ResourceError(f"--attention {choice} needs a CUDA device; use --attention sdpa on the CPU")
    if not is_half_on_gpu:
        raise ResourceError(f"--attention {choice} works in half precision, not in {sizes.dtype}; use --attention sdpa")
    if choice != "triton" and find_spec("flashinfer") is None:
        raise missing_library(f"--attention {choice}", "flashinfer-python", otherwise="use --attention auto")
    if choice == "flashinfer-fa3" and torch.cuda.get_device_capability(device)[0] != HOPPER:
        raise ResourceError("--attention flashinfer-fa3 needs a Hopper GPU: use --attention flashinfer-fa2")
    if choice == "triton" and metadata is None:
        raise ResourceError("--attention triton: Triton does not run here; use --attention auto")
    if choice != "triton":
        logger.warning(COMPILES)
    return build_kernel(choice, sizes, device, metadata)


def check_choice(choice: str) -> None:
    """Raises ResourceError for an unknown choice."""
    if choice not in CHOICES:
        raise ResourceError(f"unknown attention kernel {choice!r}: use {', '.join(CHOICES[:-1])} or {CHOICES[-1]}")


def build_kernel(
    name: AttentionChoice, sizes: AttentionSizes, device: torch.device, metadata: StepMetadata | None
) -> AttentionBackend:
    """``triton``, which needs ``metadata``, or one of ``flashinfer``."""
    if name == "triton":
        from stream_recon.cache.kernels.span_attention import SpanAttention  # needs Triton

        assert metadata is not None
        return SpanAttention(metadata.full)
    return FlashInferAttention(sizes, device, name)


def _compiled_flashinfer(sizes: AttentionSizes, device: torch.device) -> AttentionBackend | None:
    """FlashInfer after one small step, which compiles it; None for a small network or where it does not work."""
    if sizes.heads * sizes.head_dim < PUBLISHED_WIDTH or find_spec("flashinfer") is None:
        return None
    logger.warning(COMPILES)
    try:
        backend = FlashInferAttention(sizes, device)
        q = torch.zeros(sizes.frame_tokens, sizes.heads, sizes.head_dim, device=device, dtype=sizes.dtype)
        backend.plan(len(q), [(0, sizes.frame_tokens)])
        backend.attend(q, q, q)
    except (RuntimeError, OSError, ImportError) as error:
        logger.warning("FlashInfer does not work here: %s", str(error).strip().splitlines()[:1])
        return None
    return backend


def compressed_attention(bias: Tensor, max_bias: float, positions: PoolPositions | None) -> AttentionBackend:
    """The kernel for compressed layers: ours where there are ``positions``, whatever full layers use, else torch.

    ``bias`` [C] is added to scores; ``max_bias``: its largest number, as an exponent of 2.
    """
    if positions is None:
        return TorchAttention(bias)
    from stream_recon.cache.kernels.span_attention import SpanAttention  # needs Triton

    return SpanAttention(positions, bias, max_bias)


@lru_cache(maxsize=1)
def runs_triton() -> bool:
    """Whether Triton compiles and runs a kernel on the CUDA device; tried once per process.

    Triton may be installed and yet find no C compiler or no suitable driver.
    """
    if not torch.cuda.is_available() or find_spec("triton") is None:
        return False
    try:
        from stream_recon.cache.kernels.store import fill_ones

        return bool(fill_ones(torch.zeros(1, device="cuda")).all())
    except Exception as error:  # noqa: BLE001  # any failure leaves the plain path
        logger.warning("Triton does not run here, so steps will be slower: %s", str(error).strip().splitlines()[:1])
        return False


def supports_fp8(device: torch.device) -> bool:
    """Whether a CUDA device can keep a cache in e4m3."""
    return runs_triton() and torch.cuda.get_device_capability(device) >= FP8_CAPABILITY


def check_fp8(choice: AttentionChoice, device: torch.device) -> None:
    """Raises ResourceError where a cache in e4m3 cannot run with that choice of attention."""
    if device.type != "cuda":
        raise ResourceError("--cache fp8 needs a CUDA device; use --cache full on the CPU")
    if choice not in ("auto", "triton"):
        raise ResourceError(f"--cache fp8 has its own attention kernel: use --attention auto, not {choice}")
    if not supports_fp8(device):
        major, minor = torch.cuda.get_device_capability(device)
        needed = "a GPU of compute capability 8.9 or more (Ada, Hopper and newer) and Triton"
        raise ResourceError(f"--cache fp8 needs {needed}; this GPU has {major}.{minor}: use --cache full")


def fp8_attention(choice: AttentionChoice, device: torch.device, metadata: StepMetadata | None) -> AttentionBackend:
    """The kernel for a cache in e4m3. Raises ResourceError as `check_fp8` does, and without ``metadata``."""
    check_fp8(choice, device)
    if metadata is None:
        raise ResourceError("--cache fp8 works only in half precision; use --cache full")
    from stream_recon.cache.kernels.span_attention import SpanAttention  # needs Triton

    return SpanAttention(metadata.full)
