"""Attention over the visible part of a token pool: FlashInfer's paged kernels, and their plain torch twin."""

import logging
from math import gcd
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.configs.errors import ResourceError

logger = logging.getLogger(__name__)

Span = tuple[int, int]
"""First token and the one after the last, in a pool."""

WORKSPACE_BYTES = 256 * 2**20
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

    def plan(self, queries: int, spans: list[Span]) -> None:
        """Prepare a step of ``queries`` tokens that reads ``spans`` of the pool."""
        ...

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """q [T, H, D] over a layer's pool [C, H, D] -> [T, H, D]."""
        ...


class TorchAttention:
    """Scaled dot-product attention; a single span is read in place, several are gathered."""

    name = "sdpa"

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def plan(self, queries: int, spans: list[Span]) -> None:
        self._spans = merge_spans(spans)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if q.dtype == torch.bfloat16 and q.device.type == "cpu" and len(self._spans) == 1:
            start, stop = self._spans[0]
            hidden = min(start, (start - stop) % LENGTH_STEP)
            return attend_by_products(q, keys[start - hidden : stop], values[start - hidden : stop], hidden)
        k, v = self._read(keys), self._read(values)
        y = F.scaled_dot_product_attention(q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None])
        return y[0].transpose(0, 1)

    def _read(self, pool: Tensor) -> Tensor:
        if len(self._spans) == 1:
            return pool[slice(*self._spans[0])]
        return torch.cat([pool[slice(*span)] for span in self._spans])


def attend_by_products(q: Tensor, k: Tensor, v: Tensor, hidden: int = 0) -> Tensor:
    """Attention as two matrix products and a softmax: on a CPU with bf16 instructions nearly twice as fast as torch's
    fused kernel.

    q [T, H, D], k and v [C, H, D], of which the first ``hidden`` are not seen -> [T, H, D]; a few heads at once, so
    that memory is bounded.
    """
    y = torch.empty_like(q)
    together = max(1, SCORES_AT_ONCE // (q.shape[0] * k.shape[0]))
    scaled = q * q.shape[-1] ** -0.5
    for first in range(0, q.shape[1], together):
        heads = slice(first, first + together)
        scores = scaled[:, heads].transpose(0, 1) @ k[:, heads].permute(1, 2, 0)
        scores[..., :hidden] = -torch.inf
        y[:, heads] = (scores.softmax(dim=-1) @ v[:, heads].transpose(0, 1)).transpose(0, 1)
    return y


class FlashInferAttention:
    """FlashInfer's paged prefill. A page is the largest run of tokens that both streams are made of."""

    name = "flashinfer"

    def __init__(self, heads: int, head_dim: int, page_size: int, device: torch.device, dtype: torch.dtype) -> None:
        import flashinfer

        self._shape = (heads, head_dim)
        self._page = page_size
        self._dtype = dtype
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="auto")

    def plan(self, queries: int, spans: list[Span]) -> None:
        page = self._page
        assert all(start % page == 0 and stop % page == 0 for start, stop in spans)
        # CPU tensors: plan() reads them on the host, and device tensors would block the stream.
        indices = torch.cat(
            [torch.arange(start // page, stop // page, dtype=torch.int32) for start, stop in merge_spans(spans)]
        )
        heads, head_dim = self._shape
        self._wrapper.plan(
            torch.tensor([0, queries], dtype=torch.int32),
            torch.tensor([0, len(indices)], dtype=torch.int32),
            indices,
            torch.tensor([page], dtype=torch.int32),
            heads,
            heads,
            head_dim,
            page,
            causal=False,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
        )

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        pages = (keys.unflatten(0, (-1, self._page)), values.unflatten(0, (-1, self._page)))
        return self._wrapper.run(q.contiguous(), pages)  # type: ignore[no-any-return]


AttentionChoice = Literal["auto", "flashinfer", "sdpa"]


def choose_attention(
    choice: AttentionChoice,
    *,
    heads: int,
    head_dim: int,
    special: int,
    patches: int,
    device: torch.device,
    dtype: torch.dtype,
) -> AttentionBackend:
    """The backend asked for; ``auto`` takes FlashInfer on a GPU where it is installed.

    Raises:
        ResourceError: FlashInfer was asked for and is not installed, or there is no CUDA device for it.
    """
    if choice == "sdpa" or (choice == "auto" and device.type != "cuda"):
        return TorchAttention()
    if device.type != "cuda":
        raise ResourceError("--attention flashinfer needs a CUDA device; use --attention sdpa on the CPU")
    if dtype not in (torch.float16, torch.bfloat16):
        if choice == "auto":
            return TorchAttention()
        raise ResourceError(f"--attention flashinfer works in half precision, not in {dtype}; use --attention sdpa")
    try:
        return FlashInferAttention(heads, head_dim, gcd(special, patches), device, dtype)
    except ImportError as error:
        if choice == "auto":
            logger.warning("FlashInfer is not installed: using torch's attention (pip install 'stream-recon[cuda]')")
            return TorchAttention()
        raise ResourceError(
            "FlashInfer is not installed: pip install 'stream-recon[cuda]', or use --attention sdpa"
        ) from error
