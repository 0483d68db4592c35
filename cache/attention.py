"""Attention over the visible part of a token pool: what a backend is, and torch's, by which all are measured.

What instructions this machine's CPU has, as Linux names them; elsewhere none is known.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

CPU_INFO = Path("/proc/cpuinfo")
BF16, TILES = "avx512_bf16", "amx_bf16"
"""Products of vectors, and of tiles, in bf16."""


def cpu_has(flag: str) -> bool:
    return CPU_INFO.is_file() and flag in CPU_INFO.read_text().split()


Span = tuple[int, int]
"""First token and the one after the last, in a pool."""

SCORES_AT_ONCE = 2**25
"""Of `attend_by_products`: 64 MiB in bf16."""
LENGTH_STEP = 256
"""Keys are read in multiples of this: each size leaves another kernel in oneDNN's cache, megabytes a frame."""


def merge_spans(spans: list[Span]) -> list[Span]:
    """Sort spans and join those that touch."""
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return merged


class AttentionBackend(Protocol):
    """``plan`` once a step, for all layers; ``attend`` once a layer. Keys need no order: they carry their position."""

    name: str
    capturable: bool
    """Whether a captured graph of ``attend`` serves later plans of as many queries."""

    def plan(self, queries: int, spans: list[Span]) -> None:
        """Prepare a step of ``queries`` tokens that reads ``spans`` of the pool."""
        ...

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, key_norms: Tensor) -> Tensor:
        """q [T, H, D] over a layer's pool [C, H, D] -> [T, H, D]; ``key_norms`` [H]: no visible key is longer."""
        ...


class TorchAttention:
    """Scaled dot-product attention; a single span is read in place, several are gathered.

    In bf16 on a CPU all are read in place, with what lies between them: in a stream that is one frame at most.
    """

    name = "sdpa"
    capturable = False

    def __init__(self, *, cudnn: bool = False) -> None:
        """``cudnn``: by cuDNN's kernel alone (CUDA)."""
        self._spans: list[Span] = []
        self._cudnn = cudnn
        self._has_tiles = cpu_has(TILES)
        if cudnn:
            self.name = "cudnn"

    def plan(self, queries: int, spans: list[Span]) -> None:
        self._spans = merge_spans(spans)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, key_norms: Tensor | None = None) -> Tensor:
        if q.dtype == torch.bfloat16 and q.device.type == "cpu":
            first, stop = self._spans[0][0], self._spans[-1][1]
            start = first - min(first, (first - stop) % LENGTH_STEP)
            ends = [start, *(span[1] for span in self._spans)]
            hidden = [(end - start, span[0] - start) for end, span in zip(ends, self._spans, strict=False)]
            attend = attend_masked if self._has_tiles else attend_by_products
            return attend(q, keys[start:stop], values[start:stop], hidden)
        k, v = self._read(keys), self._read(values)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if self._cudnn else nullcontext():
            y = F.scaled_dot_product_attention(
                q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None]
            )
        return y[0].transpose(0, 1)

    def _read(self, pool: Tensor) -> Tensor:
        if len(self._spans) == 1:
            return pool[slice(*self._spans[0])]
        return torch.cat([pool[slice(*span)] for span in self._spans])


def attend_masked(q: Tensor, k: Tensor, v: Tensor, hidden: Sequence[Span] = ()) -> Tensor:
    """Attention by torch's fused kernel. q [T, H, D], k and v [C, H, D], of which the ``hidden`` are not seen ->
    [T, H, D]."""
    bias = q.new_zeros(1, 1, 1, k.shape[0])
    for start, stop in hidden:
        bias[..., start:stop] = -torch.inf
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)[0].transpose(0, 1)


def attend_by_products(q: Tensor, k: Tensor, v: Tensor, hidden: Sequence[Span] = ()) -> Tensor:
    """As `attend_masked`, as two matrix products and a softmax: on a CPU with vectors of bf16 nearly twice as fast,
    on one with tiles of bf16 three times slower. A few heads at once, so that memory is bounded."""
    y = torch.empty_like(q)
    together = max(1, SCORES_AT_ONCE // (q.shape[0] * k.shape[0]))
    scaled = q * q.shape[-1] ** -0.5
    for first in range(0, q.shape[1], together):
        heads = slice(first, first + together)
        scores = scaled[:, heads].transpose(0, 1) @ k[:, heads].permute(1, 2, 0)
        for start, stop in hidden:
            scores[..., start:stop] = -torch.inf
        y[:, heads] = (scores.softmax(dim=-1) @ v[:, heads].transpose(0, 1)).transpose(0, 1)
    return y
