"""Attention interfaces of network and cache, and attention by torch, the reference for all kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

Span = tuple[int, int]
"""First token of a run in a pool, and the one after its last."""

CPU_INFO = Path("/proc/cpuinfo")
"""Where Linux lists the CPU's instruction sets; elsewhere none is known."""
AVX512_BF16 = "avx512_bf16"
"""Flag of vector products in bf16."""
AMX_BF16 = "amx_bf16"
"""Flag of tile products in bf16."""
SCORES_AT_ONCE = 2**20
"""Most scores that `attend_by_products` holds: 2 MiB in bf16. More would leave the CPU's cache."""
LENGTH_STEP = 256
"""Keys of full layers are read in multiples of this: oneDNN caches a kernel for each size, else megabytes a frame."""
COMPRESSED_STEP = 64
"""The same of compressed layers, which have fewer keys."""


class KVCache(Protocol):
    """A step's view of the cached frames: B clips of S frames of this step, P tokens per frame, H heads of D channels.

    A live stream has B = 1 (`StreamCache`); training passes full clips (`scripts/training/mask.py`).
    """

    @property
    def times(self) -> Tensor:
        """Number of cached frames before each frame, int64 [B, S]: the time coordinate of global attention."""

    @property
    def is_later_frame(self) -> Tensor:
        """int64 [S]: 0 for the very first frame of the stream, else 1; picks camera token and registers."""

    @property
    def is_streamed_frame(self) -> Tensor:
        """int64 [S]: 0 for scale frames, else 1; picks the scale token."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Global attention of ``layer``: q, k, v [B, S*P, H, D], special tokens first in a frame -> the same shape."""

    def attend_camera(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the camera head: q, k, v [B, S, H, D] -> the same; ``slot`` counts iterations times blocks."""


@dataclass(frozen=True)
class AttentionSizes:
    """Shapes that a backend has to serve."""

    heads: int
    head_dim: int
    special: int
    """Special tokens per frame."""
    patches: int
    """Patch tokens per frame."""
    pool_tokens: int
    dtype: torch.dtype

    @property
    def frame_tokens(self) -> int:
        """Tokens per frame."""
        return self.special + self.patches


class AttentionBackend(Protocol):
    """Attention over a layer's pool: ``plan`` once per step for all layers, ``attend`` once per layer."""

    name: str
    capturable: bool
    """Whether a captured graph of ``attend`` serves later plans with the same number of queries."""

    def plan(self, queries: int, spans: list[Span]) -> None:
        """Prepare a step of ``queries`` tokens that reads ``spans`` of the pool; their order does not matter."""

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, key_norms: Tensor) -> Tensor:
        """q [T, H, D] over a layer's pool [C, H, D] -> [T, H, D]; ``key_norms`` [H]: no visible key is longer."""


def cpu_has(flag: str, info: Path = CPU_INFO) -> bool:
    """Whether this CPU has an instruction set."""
    return info.is_file() and flag in info.read_text().split()


def merge_spans(spans: list[Span]) -> list[Span]:
    """Sort spans and join those that touch."""
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return merged


def enclosing_span(spans: Sequence[Span], length_step: int = LENGTH_STEP) -> tuple[int, int, list[Span]]:
    """First token and end of a run in multiples of ``length_step`` that holds sorted spans; and what lies between
    them, from the run's first token."""
    first, stop = spans[0][0], spans[-1][1]
    start = first - min(first, (first - stop) % length_step)
    ends = [start, *(span[1] for span in spans)]
    hidden = [(end - start, span[0] - start) for end, span in zip(ends, spans, strict=False)]
    return start, stop, [(begin, end) for begin, end in hidden if begin < end]


class ReadRun:
    """The tokens of a pool that a step reads in place: one run that holds all visible spans."""

    def __init__(self, bias: Tensor | None = None) -> None:
        """``bias`` [C]: of a layer's pool, None where it is zero."""
        self._pool_bias = bias
        self.spans: list[Span] = []
        """What is visible, sorted and joined."""
        self.tokens = slice(0)
        """The run."""
        self.hidden: list[Span] = []
        """What is not visible, from the run's first token."""
        self.bias: Tensor | None = None
        """Of the run."""

    def plan(self, spans: list[Span]) -> None:
        """Plan a step that sees ``spans``, in any order."""
        length_step = LENGTH_STEP if self._pool_bias is None else COMPRESSED_STEP
        self.spans = merge_spans(spans)
        start, stop, self.hidden = enclosing_span(self.spans, length_step)
        self.tokens = slice(start, stop)
        self.bias = None if self._pool_bias is None else self._pool_bias[start:stop]


class TorchAttention:
    """Scaled dot-product attention; a single span is read in place, several are gathered.

    In bf16 on a CPU, and with a bias, all spans are read in place, with the tokens between them masked: in a stream
    one frame at most.
    """

    name = "sdpa"
    capturable = False

    def __init__(self, bias: Tensor | None = None, *, has_tiles: bool | None = None) -> None:
        """``bias`` [C]: what is added to the scores of a pool's tokens, None for 0; ``has_tiles``: whether the CPU has
        tile products in bf16; None: asks it."""
        self._run = ReadRun(bias)
        self._has_tiles = cpu_has(AMX_BF16) if has_tiles is None else has_tiles

    def plan(self, queries: int, spans: list[Span]) -> None:
        self._run.plan(spans)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, key_norms: Tensor | None = None) -> Tensor:
        run, is_bf16_on_cpu = self._run, q.dtype == torch.bfloat16 and q.device.type == "cpu"
        if is_bf16_on_cpu or run.bias is not None:
            attend = attend_by_products if is_bf16_on_cpu and not self._has_tiles else attend_masked
            return attend(q, keys[run.tokens], values[run.tokens], run.hidden, run.bias)
        k, v = self._read(keys), self._read(values)
        y = F.scaled_dot_product_attention(q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None])
        return y[0].transpose(0, 1)

    def _read(self, pool: Tensor) -> Tensor:
        parts = [pool[slice(*span)] for span in self._run.spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend_masked(q: Tensor, k: Tensor, v: Tensor, hidden: Sequence[Span] = (), bias: Tensor | None = None) -> Tensor:
    """Attention by torch's fused kernel: q [T, H, D], k and v [C, H, D] without the ``hidden`` spans -> [T, H, D].

    ``bias`` [C] is added to the scores.
    """
    mask = q.new_zeros(k.shape[0]) if bias is None else bias.to(q.dtype, copy=True)
    for start, stop in hidden:
        mask[start:stop] = -torch.inf
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None, None, None])[0].transpose(0, 1)


def attend_by_products(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Sequence[Span] = (),
    bias: Tensor | None = None,
    scores_at_once: int = SCORES_AT_ONCE,
) -> Tensor:
    """`attend_masked` by two matrix products and a softmax, of as many queries of one head at once as stay in cache.

    It takes half the time on a CPU with vector products in bf16, three times the time on one with tile products.
    """
    y = torch.empty_like(q)
    bias = bias if bias is None else bias.to(q.dtype)
    rows_at_once = max(1, scores_at_once // k.shape[0])
    for head, queries in enumerate((q * q.shape[-1] ** -0.5).transpose(0, 1).contiguous()):
        for first in range(0, len(q), rows_at_once):
            rows = slice(first, first + rows_at_once)
            scores = queries[rows] @ k[:, head].T
            if bias is not None:
                scores += bias
            for start, stop in hidden:
                scores[:, start:stop] = -torch.inf
            y[rows, head] = scores.softmax(dim=-1) @ v[:, head]
    return y
