"""Which attention kernel a stream uses: the one asked for, or the fastest that this machine has."""

import logging
from importlib.util import find_spec
from math import gcd

import torch

from stream_recon.cache.attention import AttentionBackend, TorchAttention
from stream_recon.cache.kernels.flashinfer_attention import KERNELS, FlashInferAttention
from stream_recon.cache.kernels.timing import (
    AttentionSizes,
    machine_key,
    read_timings,
    runs_triton,
    time_frame,
    timings_file,
    write_timings,
)
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import AttentionChoice

logger = logging.getLogger(__name__)

FP8_CAPABILITY = (8, 9)
"""From here on (Ada, Hopper) tensor cores multiply e4m3."""
WAIT = (
    "timing attention kernels, once on this machine; if FlashInfer has to be compiled, that takes some minutes "
    "(--attention triton does without it)"
)
TIE = 1.02
"""FlashInfer has to be faster than ours by this: it plans on the host, and where that is busy, frames wait for it."""


def choose_attention(
    choice: AttentionChoice, sizes: AttentionSizes, device: torch.device, inputs: StepMetadata | None = None
) -> AttentionBackend:
    """The backend asked for; ``auto``: the fastest of those that can be captured, timed once on each machine.

    ``flashinfer`` is the faster of FlashInfer's kernels; ``cudnn`` is torch's SDPA held to cuDNN, over the pool in
    place. ``inputs``: what a captured step reads; without them only ``sdpa`` and ``cudnn`` are to be had.

    Raises:
        ResourceError: what was asked for is not installed, or needs a CUDA device or half precision.
    """
    if choice == "sdpa" or (choice == "auto" and inputs is None):
        return TorchAttention()
    if device.type != "cuda":
        raise ResourceError(f"--attention {choice} needs a CUDA device; use --attention sdpa on the CPU")
    if sizes.dtype not in (torch.float16, torch.bfloat16):
        raise ResourceError(f"--attention {choice} works in half precision, not in {sizes.dtype}; use --attention sdpa")
    if choice == "cudnn":
        return TorchAttention(cudnn=True)
    candidates = installed_kernels(choice)
    if not candidates:
        raise ResourceError(f"--attention {choice}: {_missing(choice)}; use --attention auto")
    if inputs is None:
        raise ResourceError(f"--attention {choice} needs Triton, which does not run here; use --attention auto")
    name = candidates[0] if len(candidates) == 1 else _fastest(candidates, sizes, device, inputs)
    return build_kernel(name, sizes, device, inputs)


def _missing(choice: AttentionChoice) -> str:
    """Why a choice has no kernel here."""
    if choice == "triton":
        return "Triton does not run here"
    if find_spec("flashinfer") is None:
        return "FlashInfer is not installed (pip install 'stream-recon[cuda]')"
    return "fa3 needs a Hopper GPU"


def supports_fp8(device: torch.device) -> bool:
    """Whether a CUDA device has what a cache in e4m3 takes."""
    return runs_triton() and torch.cuda.get_device_capability(device) >= FP8_CAPABILITY


def check_fp8(choice: AttentionChoice, device: torch.device) -> None:
    """Raises ResourceError, saying why, where a cache in e4m3 is not to be had with that choice of attention."""
    if device.type != "cuda":
        raise ResourceError("--cache fp8 needs a CUDA device; use --cache full on the CPU")
    if choice not in ("auto", "triton"):
        raise ResourceError(f"--cache fp8 has its own attention kernel: use --attention auto, not {choice}")
    if not supports_fp8(device):
        major, minor = torch.cuda.get_device_capability(device)
        needed = "a GPU of compute capability 8.9 or more (Ada, Hopper and newer) and Triton"
        raise ResourceError(f"--cache fp8 needs {needed}; this GPU has {major}.{minor}: use --cache full")


def fp8_attention(choice: AttentionChoice, device: torch.device, inputs: StepMetadata | None) -> AttentionBackend:
    """The kernel for a cache in e4m3. Raises ResourceError as `check_fp8` does, and without ``inputs``."""
    check_fp8(choice, device)
    if inputs is None:
        raise ResourceError("--cache fp8 works in half precision alone; use --cache full")
    from stream_recon.cache.kernels.span_attention import SpanAttention

    return SpanAttention(inputs)


def installed_kernels(choice: AttentionChoice) -> list[str]:
    """Kernels that are installed, of those that the choice allows."""
    flashinfer = list(KERNELS) if find_spec("flashinfer") else []
    if torch.cuda.get_device_capability()[0] != 9:
        flashinfer = [kernel for kernel in flashinfer if kernel != "fa3"]  # Hopper's alone
    ours = ["triton"] if runs_triton() else []
    known = {"auto": [*ours, *flashinfer], "flashinfer": flashinfer, "triton": ours}
    return known.get(choice, [kernel for kernel in flashinfer if kernel == choice])


def build_kernel(name: str, sizes: AttentionSizes, device: torch.device, inputs: StepMetadata) -> AttentionBackend:
    """A kernel by its name: ``triton``, or one of FlashInfer's."""
    if name == "triton":
        from stream_recon.cache.kernels.span_attention import (
            SpanAttention,  # Triton comes with GPU builds of torch alone
        )

        return SpanAttention(inputs)
    return FlashInferAttention(
        name,
        heads=sizes.heads,
        head_dim=sizes.head_dim,
        page_size=gcd(sizes.special, sizes.patches),
        frame_tokens=sizes.frame_tokens,
        pool_tokens=sizes.pool_tokens,
        device=device,
        dtype=sizes.dtype,
    )


def _fastest(names: list[str], sizes: AttentionSizes, device: torch.device, inputs: StepMetadata) -> str:
    """The fastest kernel by a timing of this machine, made once and kept in the user's cache folder."""
    key = machine_key(names, sizes, device)
    path = timings_file()
    known = read_timings(path)
    if key not in known:
        if any(name in KERNELS for name in names):
            logger.warning(WAIT)
        times = {}
        for name in names:
            try:
                times[name] = time_frame(build_kernel(name, sizes, device, inputs), sizes, device, inputs)
            except (RuntimeError, OSError, ImportError) as error:  # FlashInfer compiles on first use, with nvcc
                logger.warning("attention kernel %s does not work here: %s", name, str(error).strip().splitlines()[:1])
        if not times:
            raise ResourceError("no attention kernel works here: use --attention sdpa")
        torch.cuda.empty_cache()  # the pools that were timed
        known[key] = times
        write_timings(path, known)
    times = known[key]
    fastest = min(times, key=lambda name: times[name] * (TIE if name in KERNELS else 1))
    listed = ", ".join(f"{name} {milliseconds:.3f} ms" for name, milliseconds in times.items())
    logger.info("attention by %s (a frame with a full cache: %s)", fastest, listed)
    return fastest
