"""FlashInfer's paged kernels over the pool."""

from functools import partial
from math import gcd

import torch
from torch import Tensor

from stream_recon.cache.attention import AttentionSizes, Span, merge_spans

WORKSPACE_BYTES = 256 * 2**20
"""FlashInfer's scratch space for partial sums: twice what its documentation recommends."""


class FlashInferAttention:
    """Paged prefill by FlashInfer. A page divides special tokens and patches, so that it is full: no padding is read.

    Steps of one frame use buffers whose addresses never change, so that they can be captured; ``plan`` is then called
    before each replay. The first step, of several frames, has a wrapper without fixed buffers.

    Raises ImportError where FlashInfer is not installed.
    """

    capturable = True

    def __init__(self, sizes: AttentionSizes, device: torch.device, name: str = "flashinfer") -> None:
        """``name``: ``flashinfer``, which chooses its kernel for the GPU, ``flashinfer-fa2`` or ``flashinfer-fa3``."""
        import flashinfer

        self.name = name
        self._shape = (sizes.heads, sizes.head_dim)
        self._page = page = gcd(sizes.special, sizes.patches)
        self._dtype = sizes.dtype
        self._frame_tokens = sizes.frame_tokens
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._indices = torch.zeros(sizes.pool_tokens // page, dtype=torch.int32, device=device)
        self._pinned = torch.zeros(sizes.pool_tokens // page, dtype=torch.int32, pin_memory=True)
        numbers = [torch.zeros(n, dtype=torch.int32, device=device) for n in (2, 2, 1)]
        kernel = name.partition("-")[2] or "auto"
        wrapper = partial(flashinfer.BatchPrefillWithPagedKVCacheWrapper, workspace, "NHD", backend=kernel)
        self._fixed = wrapper(
            use_cuda_graph=True,
            qo_indptr_buf=numbers[0],
            paged_kv_indptr_buf=numbers[1],
            paged_kv_indices_buf=self._indices,
            paged_kv_last_page_len_buf=numbers[2],
        )
        self._free = wrapper()
        self._wrapper = self._free

    def plan(self, queries: int, spans: list[Span]) -> None:
        """See `AttentionBackend`."""
        page = self._page
        assert all(start % page == 0 and stop % page == 0 for start, stop in spans)
        # The previous step has to be over: its plan lies in the same pinned buffers.
        torch.cuda.current_stream().synchronize()
        runs = [torch.arange(start // page, stop // page, dtype=torch.int32) for start, stop in merge_spans(spans)]
        count = sum(len(run) for run in runs)
        torch.cat(runs, out=self._pinned[:count])
        self._wrapper = self._fixed if queries == self._frame_tokens else self._free
        heads, head_dim = self._shape
        # All but the indices on the CPU: plan() reads them on the host, and device tensors would block the stream.
        self._wrapper.plan(
            torch.tensor([0, queries], dtype=torch.int32),
            torch.tensor([0, count], dtype=torch.int32),
            self._pinned[:count].to(self._indices.device, non_blocking=True),
            torch.tensor([page], dtype=torch.int32),
            heads,
            heads,
            head_dim,
            page,
            causal=False,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
        )

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, key_norms: Tensor | None = None) -> Tensor:
        """See `AttentionBackend`."""
        pages = (keys.unflatten(0, (-1, self._page)), values.unflatten(0, (-1, self._page)))
        return self._wrapper.run(q.contiguous(), pages)  # type: ignore[no-any-return]
