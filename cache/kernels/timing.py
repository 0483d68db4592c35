"""How long attention kernels take on this machine, timed once and kept in the user's cache folder.

Whether our kernels can run: Triton may be installed and yet find no C compiler or no fitting driver.
"""

import json
import logging
import os
import platform
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

import torch

from stream_recon.cache.attention import AttentionBackend
from stream_recon.cache.step_metadata import StepMetadata

logger = logging.getLogger(__name__)

WARM_FRAMES, TIMED_FRAMES = 4, 30
POOL_BYTES = 2**30
"""Most that is taken for keys and values to time with."""
OUR_KERNELS = 3
"""Raised when our kernels get faster or slower: older timings then count no more."""


@dataclass(frozen=True)
class AttentionSizes:
    """What a backend has to serve."""

    layers: int
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


def time_frame(
    backend: AttentionBackend, sizes: AttentionSizes, device: torch.device, inputs: StepMetadata | None = None
) -> float:
    """Mean milliseconds that attention costs a frame with a full cache, in the way that a stream runs it: planned on
    the host, then all layers, as one captured graph where that can be, and waited for."""
    shape = (sizes.heads, sizes.head_dim)
    q = torch.randn(sizes.frame_tokens, *shape, device=device, dtype=sizes.dtype)
    # So that layers do not find one another's keys in the GPU's own cache.
    count = max(1, min(sizes.layers, POOL_BYTES // (2 * sizes.pool_tokens * q[0].nbytes)))
    pools = [torch.randn(2, sizes.pool_tokens, *shape, device=device, dtype=sizes.dtype) for _ in range(count)]
    norms = [keys.float().norm(dim=-1).amax(0) for keys, _ in pools]

    def attend() -> None:
        for layer in range(sizes.layers):
            keys, values = pools[layer % count]
            backend.attend(q, keys, values, norms[layer % count])

    run, times = attend, []
    for frame in range(WARM_FRAMES + TIMED_FRAMES):
        begin = time.perf_counter()
        if inputs is not None:
            inputs.open()
        backend.plan(len(q), [(0, sizes.pool_tokens)])
        if inputs is not None:
            inputs.upload()
        if frame == 1 and backend.capturable:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                attend()
            run = graph.replay
        run()
        torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return 1e3 * mean(times[WARM_FRAMES:])


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


@lru_cache(maxsize=1)
def runs_triton() -> bool:
    """Whether Triton compiles and runs a kernel on the CUDA device; tried once."""
    if not torch.cuda.is_available() or find_spec("triton") is None:
        return False
    try:
        from stream_recon.cache.kernels.store import fill_ones

        return bool(fill_ones(torch.zeros(1, device="cuda")).all())
    except Exception as error:  # noqa: BLE001  # whatever goes wrong there, the plain path works
        logger.warning("Triton does not run here, so steps will be slower: %s", str(error).strip().splitlines()[:1])
        return False
