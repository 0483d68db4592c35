"""FlashInfer's paged kernels over the pool."""

import torch
from torch import Tensor

from stream_recon.cache.attention import Span, merge_spans

WORKSPACE_BYTES = 256 * 2**20
KERNELS = ("fa2", "fa3")


class FlashInferAttention:
    """Paged prefill by FlashInfer's ``fa2`` or ``fa3``. A page is the largest run of tokens that both streams are made
    of.

    Steps of ``frame_tokens`` queries use buffers that stay where they are, as a captured graph needs it; ``plan`` then
    belongs before each replay. The first step, of several frames, has a wrapper of its own.

    Raises ImportError where FlashInfer is not installed.
    """

    capturable = True

    def __init__(
        self,
        kernel: str,
        *,
        heads: int,
        head_dim: int,
        page_size: int,
        frame_tokens: int,
        pool_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        import flashinfer

        self.name = kernel
        self._shape = (heads, head_dim)
        self._page = page_size
        self._dtype = dtype
        self._frame_tokens = frame_tokens
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)

        self._indices = torch.zeros(pool_tokens // page_size, dtype=torch.int32, device=device)
        self._pinned = torch.zeros(pool_tokens // page_size, dtype=torch.int32, pin_memory=True)
        numbers = [torch.zeros(n, dtype=torch.int32, device=device) for n in (2, 2, 1)]
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper
        self._fixed = wrapper(
            workspace,
            "NHD",
            use_cuda_graph=True,
            qo_indptr_buf=numbers[0],
            paged_kv_indptr_buf=numbers[1],
            paged_kv_indices_buf=self._indices,
            paged_kv_last_page_len_buf=numbers[2],
            backend=kernel,
        )
        self._free = wrapper(workspace, "NHD", backend=kernel)
        self._wrapper = self._free

    def plan(self, queries: int, spans: list[Span]) -> None:
        page = self._page
        assert all(start % page == 0 and stop % page == 0 for start, stop in spans)
        # The step before has to be over: its plan lies in the same pinned buffers.
        torch.cuda.current_stream().synchronize()
        runs = [torch.arange(start // page, stop // page, dtype=torch.int32) for start, stop in merge_spans(spans)]
        count = sum(len(run) for run in runs)
        torch.cat(runs, out=self._pinned[:count])
        self._wrapper = self._fixed if queries == self._frame_tokens else self._free
        heads, head_dim = self._shape
        # CPU tensors but for the indices: plan() reads them on the host, and device tensors would block the stream.
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
        pages = (keys.unflatten(0, (-1, self._page)), values.unflatten(0, (-1, self._page)))
        return self._wrapper.run(q.contiguous(), pages)  # type: ignore[no-any-return]
