"""Attention over a cache in e4m3 in plain torch, rounding where the kernel does."""

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.cache.attention import Span
from stream_recon.cache.fp8_pages import FP8, LARGEST, Fp8Pages


def attend_pages(
    q: Tensor, keys: Tensor, values: Tensor, pages: Fp8Pages, spans: list[Span], *, round_queries: bool = True
) -> Tensor:
    """q [T, H, D] over spans of special tokens [C, H, D] and the pages behind them, in fp32 -> [T, H, D].

    ``round_queries``: to e4m3 for the pages, each row by its largest number.
    """
    q = q.float()
    rounded = _rounded(q) if round_queries else q
    page_keys, page_values = restored(pages)
    seen = torch.cat([torch.arange(*span, device=q.device) for span in spans])
    special, paged = seen[seen < len(keys)], seen[seen >= len(keys)] - len(keys)
    scores = torch.cat(
        [
            torch.einsum("thd,chd->htc", q, keys[special].float()),
            torch.einsum("thd,chd->htc", rounded, page_keys[paged]),
        ],
        dim=-1,
    )
    weights = F.softmax(scores * q.shape[-1] ** -0.5, dim=-1)
    return torch.einsum("htc,chd->thd", weights, torch.cat([values[special].float(), page_values[paged]]))


def restored(pages: Fp8Pages) -> tuple[Tensor, Tensor]:
    """Keys and values of all pages in fp32, [S * P, H, D] each."""
    keys = pages.keys.float() * pages.key_scales[:, None, :, None]
    values = pages.values.float() * pages.value_scales[:, None, :, None]
    return keys.flatten(0, 1), values.flatten(0, 1)


def _rounded(q: Tensor) -> Tensor:
    largest = q.abs().amax(dim=-1, keepdim=True)
    return (q * (LARGEST / largest)).to(FP8).float() * (largest / LARGEST)
