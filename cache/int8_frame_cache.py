"""KV cache of the aggregator in int8 for a CPU without fast bf16, and attention by products of 8-bit integers.

Keys and values have one step size per layer and head, from the frames of the first step; later values outside its
range saturate. The memory of a pool is head by head, keys channel by channel, so that products read it in place.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.cache.attention import AttentionBackend, ReadRun, Span
from stream_recon.cache.frame_cache import FrameCache, FrameCacheSchema, FramePools
from stream_recon.cache.step_metadata import PoolPositions

MOST = 127
"""Largest number in a product."""
HEADROOM = 1.25
"""The range of keys and values, as a multiple of the largest one of the first step."""
ROWS_AT_ONCE = 96
"""Queries whose scores are held at once: they stay in the CPU's cache."""
DITHER_STRIDE = 61
"""Random numbers between the first ones of neighbouring rows, which share most of theirs."""
MASKED = -(2**30)
"""Score of a token that is not visible."""


class Int8FrameCache(FrameCache):
    """`FrameCache` with keys and values in int8, on a CPU."""

    def __init__(
        self,
        schema: FrameCacheSchema,
        backend: AttentionBackend,
        pools: FramePools,
        positions: PoolPositions | None = None,
    ) -> None:
        """``pools``: of `allocate_pools`; ``positions``: None."""
        super().__init__(schema, backend, pools, positions)
        self._steps = torch.ones(schema.layers, 2, schema.heads)
        self._is_first = True

    @staticmethod
    def allocate_pools(schema: FrameCacheSchema, device: torch.device, dtype: torch.dtype) -> FramePools:
        """Pools in int8 for any ``dtype``; keys lie as [L, H, D, C] in memory, values as [L, H, C, D]."""
        layers, heads, channels = schema.layers, schema.heads, schema.head_dim
        keys = torch.zeros(layers, heads, channels, schema.tokens, device=device, dtype=torch.int8)
        values = torch.zeros(layers, heads, schema.tokens, channels, device=device, dtype=torch.int8)
        norms, committed = (torch.zeros(layers, heads, device=device) for _ in range(2))
        return FramePools(keys.permute(0, 3, 1, 2), values.transpose(1, 2), norms, committed)

    @staticmethod
    def bytes(schema: FrameCacheSchema, dtype: torch.dtype) -> int:
        return schema.token_bytes(schema.tokens, torch.int8)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._write(layer, k, v)
        return self.backend.attend(q, self._keys[layer], self._values[layer], self._steps[layer])

    def _write(self, layer: int, k: Tensor, v: Tensor) -> None:
        assert self._allocated is not None, "attend outside a step"
        steps = self._steps[layer]
        if self._is_first:
            steps.copy_(torch.stack([k.abs().amax((0, 2)), v.abs().amax((0, 2))]).clamp_min(1e-9) * (HEADROOM / MOST))
        new_keys, new_values = (
            (x / step[:, None]).round_().clamp_(-MOST, MOST) for x, step in zip((k, v), steps, strict=True)
        )
        self._store(new_keys.to(torch.int8), new_values.to(torch.int8), self._keys[layer], self._values[layer])

    def commit(self, kept: tuple[int, ...] | None) -> None:
        super().commit(kept)
        self._is_first = False

    def reset(self) -> None:
        super().reset()
        self._is_first = True


class Int8Attention:
    """Attention over a layer's pool of an `Int8FrameCache`."""

    name = "int8"
    capturable = False

    def __init__(self, bias: Tensor | None = None) -> None:
        """``bias``: see `TorchAttention`."""
        self._planned = ReadRun(bias)

    def plan(self, queries: int, spans: list[Span]) -> None:
        self._planned.plan(spans)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, key_norms: Tensor) -> Tensor:
        """q [T, H, D] over int8 keys and values [C, H, D] -> [T, H, D]; ``key_norms``: step sizes of both, [2, H]."""
        run = self._planned
        return attend_int8(q, keys[run.tokens], values[run.tokens], key_norms, run.hidden, run.bias)


def attend_int8(
    q: Tensor, keys: Tensor, values: Tensor, steps: Tensor, hidden: Sequence[Span] = (), bias: Tensor | None = None
) -> Tensor:
    """q [T, H, D] over int8 keys and values [C, H, D] with ``steps`` [2, H], without ``hidden`` tokens -> [T, H, D].

    ``bias`` [C] is added to the scores.
    """
    q_steps = q.abs().amax((0, 2)).clamp_min(1e-9) / MOST
    queries = (q / q_steps[:, None]).round_().to(torch.int8).transpose(0, 1).contiguous()
    # Weights are powers of two: that is four times as fast as powers of e.
    scales = (q_steps * steps[0] * (q.shape[-1] ** -0.5 * math.log2(math.e))).tolist()
    largest = math.log2(MOST - 1)
    y = torch.empty_like(q)
    # In units of each head's scores.
    biases = None if bias is None else (bias * math.log2(math.e) / torch.tensor(scales)[:, None]).round_().int()
    dither = _dither().as_strided((ROWS_AT_ONCE, keys.shape[0]), (DITHER_STRIDE, 1))
    for head, scale in enumerate(scales):
        read_keys, read_values = keys[:, head].T, values[:, head]
        for first in range(0, len(q), ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            scores = torch._int_mm(queries[head, rows], read_keys)
            if biases is not None:
                scores += biases[head]
            for start, stop in hidden:
                scores[:, start:stop] = MASKED
            top = scores.amax(1, keepdim=True) * -scale + largest
            # Each row's largest weight is `MOST - 1`. A random part of a level more, and conversion rounds without
            # bias: many small weights count together as much as they should.
            weights = torch.add(top, scores, alpha=scale).exp2_().add_(dither[: len(scores)]).to(torch.int8)
            total = weights.sum(1, keepdim=True, dtype=torch.int32)
            y[rows, head] = torch._int_mm(weights, read_values) * (steps[1, head] / total)
    return y


CLEARLY_FASTER = 0.8
"""Share of the time of a wider operation that one in int8 may take at most to be chosen."""
REPEATS = 8
"""Repetitions of a timed operation, of which the fastest counts."""


def thread_seconds(run: Callable[[], object]) -> float:
    """CPU time of the fastest of a few runs in one thread: several would wait for each other on a busy machine."""
    times, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(REPEATS):
            begin = time.thread_time()
            run()
            times.append(time.thread_time() - begin)
    finally:
        torch.set_num_threads(threads)
    return min(times[1:])  # the first one also makes the kernel


@cache
def _dither() -> Tensor:
    """Numbers from 0 to 1, the same in every run."""
    return torch.rand(2**20, generator=torch.Generator().manual_seed(0))


@cache
def int8_attention_is_faster() -> bool:
    """Whether `attend_int8` is right and clearly faster than attention in fp32 on this CPU; measured once."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(ROWS_AT_ONCE, 1, 64, generator=generator)
    keys = torch.randint(-MOST, MOST + 1, (1, 64, 2048), dtype=torch.int8, generator=generator).permute(2, 0, 1)
    values = torch.randint(-MOST, MOST + 1, (1, 2048, 64), dtype=torch.int8, generator=generator).transpose(0, 1)
    steps = torch.full((2, 1), 1 / MOST)
    k, v = keys / MOST, values / MOST

    def plain() -> Tensor:
        heads_q, heads_k, heads_v = (x.transpose(0, 1)[None] for x in (q, k, v))
        return F.scaled_dot_product_attention(heads_q, heads_k, heads_v)[0].transpose(0, 1)

    def ours() -> Tensor:
        return attend_int8(q, keys, values, steps, [])

    try:
        is_right = torch.allclose(ours(), plain(), atol=0.02)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return is_right and thread_seconds(ours) < CLEARLY_FASTER * thread_seconds(plain)
