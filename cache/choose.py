"""Which attention kernel a stream uses: the one asked for, or the fastest that this machine has."""

import json
import logging
import os
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from math import gcd
from pathlib import Path
from statistics import median
from typing import Literal

import torch

from stream_recon.cache.attention import AttentionBackend, Span, TorchAttention
from stream_recon.cache.flashinfer_attention import KERNELS, FlashInferAttention
from stream_recon.cache.fp8_frame_cache import PagedAttention
from stream_recon.cache.step_inputs import StepInputs
from stream_recon.configs.errors import ResourceError

logger = logging.getLogger(__name__)

AttentionChoice = Literal["auto", "flashinfer", "fa2", "fa3", "triton", "cudnn", "sdpa"]
CacheChoice = Literal["full", "fp8"]
"""What the frames' keys and values are kept in: the run's precision, or e4m3."""
FP8_CAPABILITY = (8, 9)
"""From here on (Ada, Hopper) tensor cores multiply e4m3."""
TIE = 1.02
"""FlashInfer stays where another kernel is faster by less than this."""
TIMED_RUNS = 10


@dataclass(frozen=True)
class AttentionSizes:
    """What a backend has to serve."""

    heads: int
    head_dim: int
    special: int
    """Special tokens a frame."""
    patches: int
    pool_tokens: int
    dtype: torch.dtype

    @property
    def frame_tokens(self) -> int:
        return self.special + self.patches


def choose_attention(
    choice: AttentionChoice, sizes: AttentionSizes, device: torch.device, inputs: StepInputs | None = None
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
        raise ResourceError("FlashInfer is not installed: pip install 'stream-recon[cuda]', or use --attention auto")
    assert inputs is not None
    if len(candidates) == 1:
        return build_kernel(candidates[0], sizes, device, inputs)
    name = _fastest(candidates, sizes, device, inputs)
    return build_kernel(name, sizes, device, inputs)


def supports_fp8(device: torch.device) -> bool:
    """Whether a CUDA device has what a cache in e4m3 takes."""
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= FP8_CAPABILITY


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


def fp8_attention(choice: AttentionChoice, device: torch.device, inputs: StepInputs | None) -> PagedAttention:
    """The kernel for a cache in e4m3. Raises ResourceError as `check_fp8` does, and without ``inputs``."""
    check_fp8(choice, device)
    if inputs is None:
        raise ResourceError("--cache fp8 works in half precision alone; use --cache full")
    from stream_recon.cache.fp8_attention import Fp8Attention

    return Fp8Attention(inputs)


def installed_kernels(choice: AttentionChoice) -> list[str]:
    """Kernels that are installed, of those that the choice allows."""
    flashinfer = list(KERNELS) if find_spec("flashinfer") else []
    if torch.cuda.get_device_capability()[0] != 9:
        flashinfer = [kernel for kernel in flashinfer if kernel != "fa3"]  # Hopper's alone
    known = {"auto": ["triton", *flashinfer], "flashinfer": flashinfer, "triton": ["triton"]}
    return known.get(choice, [kernel for kernel in flashinfer if kernel == choice])


def build_kernel(name: str, sizes: AttentionSizes, device: torch.device, inputs: StepInputs) -> AttentionBackend:
    if name == "triton":
        from stream_recon.cache.span_attention import SpanAttention  # Triton comes with GPU builds of torch alone

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


def _fastest(names: list[str], sizes: AttentionSizes, device: torch.device, inputs: StepInputs) -> str:
    """The fastest kernel by a timing of this machine, made once and kept in the user's cache folder."""
    key = _machine_key(names, sizes, device)
    path = timings_file()
    known = _read(path)
    if key not in known:
        times = {name: time_backend(build_kernel(name, sizes, device, inputs), sizes, device, inputs) for name in names}
        torch.cuda.empty_cache()  # the pools that were timed
        known[key] = times
        _write(path, known)
    times = known[key]
    fastest = min(times, key=lambda name: times[name] * (1 if name in KERNELS else TIE))
    listed = ", ".join(f"{name} {milliseconds:.3f} ms" for name, milliseconds in times.items())
    logger.info("attention by %s (a layer's step with a full cache: %s)", fastest, listed)
    return fastest


def time_backend(
    backend: AttentionBackend, sizes: AttentionSizes, device: torch.device, inputs: StepInputs | None = None
) -> float:
    """Median milliseconds of one layer's attention of one frame over a whole pool."""
    shape = (sizes.heads, sizes.head_dim)
    q, keys, values = (
        torch.randn(n, *shape, device=device, dtype=sizes.dtype)
        for n in (sizes.frame_tokens, sizes.pool_tokens, sizes.pool_tokens)
    )
    norms = keys.float().norm(dim=-1).amax(0)
    spans: list[Span] = [(0, sizes.pool_tokens)]
    if inputs is not None:
        inputs.open()
    backend.plan(len(q), spans)
    if inputs is not None:
        inputs.upload()
    times = []
    for _ in range(3 + TIMED_RUNS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        backend.attend(q, keys, values, norms)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(median(times[3:]))


def timings_file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "stream-recon" / "attention.json"


def _machine_key(names: list[str], sizes: AttentionSizes, device: torch.device) -> str:
    flashinfer = metadata.version("flashinfer-python") if find_spec("flashinfer") else "none"
    software = f"torch {torch.__version__}, flashinfer {flashinfer}, {platform.system()}"
    shape = ", ".join(f"{key} {value}" for key, value in asdict(sizes).items())
    return f"{torch.cuda.get_device_name(device)}; {software}; {shape}; {' '.join(names)}"


def _read(path: Path) -> dict[str, dict[str, float]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(path: Path, timings: dict[str, dict[str, float]]) -> None:
    """Best effort: where nothing can be kept, the timing is made anew."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(timings, indent=1), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        logger.debug("the timing of attention kernels could not be kept: %s", error)
