"""How long attention kernels take on this machine, timed once and kept in the user's cache folder."""

import json
import logging
import os
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch

from stream_recon.cache.attention import AttentionBackend, Span
from stream_recon.cache.step_inputs import StepInputs

logger = logging.getLogger(__name__)

TIMED_RUNS = 10
OUR_KERNELS = 2
"""Raised when our kernels get faster or slower: older timings then count no more."""


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


def machine_key(names: list[str], sizes: AttentionSizes, device: torch.device) -> str:
    flashinfer = metadata.version("flashinfer-python") if find_spec("flashinfer") else "none"
    software = f"torch {torch.__version__}, flashinfer {flashinfer}, ours {OUR_KERNELS}, {platform.system()}"
    shape = ", ".join(f"{key} {value}" for key, value in asdict(sizes).items())
    return f"{torch.cuda.get_device_name(device)}; {software}; {shape}; {' '.join(names)}"


def read_timings(path: Path) -> dict[str, dict[str, float]]:
    """Timings kept by `write_timings`, by machine and kernel; none where there is no file or a damaged one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_timings(path: Path, timings: dict[str, dict[str, float]]) -> None:
    """Best effort: where nothing can be kept, the timing is made anew."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(timings, indent=1), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        logger.debug("the timing of attention kernels could not be kept: %s", error)
