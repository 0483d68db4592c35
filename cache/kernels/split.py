# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""What attention kernels share that do some tiles in parts (Triton); see `waves`.

A tile is `QUERY_BLOCK` queries of one lane: a head of a stream's frame. Weights have a bound in place of a running
maximum, so parts of a tile are in one scale: sums of weighted values, and of weights, are simply added.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stream_recon.cache.kernels.wave_schedule import PROGRAMS_A_MULTIPROCESSOR, QUERY_BLOCK, Waves, plan_waves

WARPS, STAGES = 4, 3
"""Found with the size of the blocks. All of this was slower on an H200, by 2 to 80 %: two stages, three programs on a
multiprocessor; 128 rows by 8 warps; a polynomial for an eighth, a quarter or half of the exponentials; the next
block's scores ahead, or the second product beside its exponentials, also by asynchronous products in Gluon."""
MERGED_ROWS = 16
"""Rows that a program adds up. There are few such programs, so they are small."""


@triton.jit
def tile_and_part(whole, rest, PARTS: tl.constexpr):
    """This program's tile, its part of the tile's keys, and how many parts there are."""
    program = tl.program_id(0)
    if PARTS == 1:
        return program, 0, 1
    else:
        further = tl.maximum(program - whole, 0)
        split = program >= whole
        # Neighbours have the same keys to read: tiles of a head come one after the other.
        tile = tl.where(split, whole + further % rest, program)
        return tile, tl.where(split, further // rest, 0), tl.where(split, PARTS, 1)


@triton.jit
def store_tile(acc, total, out, place, is_query, sums, totals, tile, part, whole, rest, channels, BLOCK_M: tl.constexpr,
               D: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    """A whole tile's result, or a part's sums."""
    if PARTS == 1:
        tl.store(out + place, (acc / total[:, None]).to(out.dtype.element_ty), mask=is_query)
    else:
        if tile < whole:
            tl.store(out + place, (acc / total[:, None]).to(out.dtype.element_ty), mask=is_query)
        else:
            row = (part * rest + tile - whole) * BLOCK_M + tl.arange(0, BLOCK_M)
            tl.store(sums + row[:, None] * D + channels[None, :], acc)
            tl.store(totals + row, total)


@triton.jit
def _merge(sums, totals, out, whole, rest, row_blocks, tokens, H: tl.constexpr, D: tl.constexpr,
           BLOCK_M: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    tile = tl.program_id(0)
    inner = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    channels = tl.arange(0, D)
    acc = tl.zeros([ROWS, D], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for part in range(PARTS):
        row = (part * rest + tile) * BLOCK_M + inner
        acc += tl.load(sums + row[:, None] * D + channels[None, :])
        total += tl.load(totals + row)
    query = (whole + tile) % row_blocks * BLOCK_M + inner
    lane = (whole + tile) // row_blocks
    place = (lane // H * tokens + query[:, None]) * (H * D) + lane % H * D + channels[None, :]
    tl.store(out + place, (acc / total[:, None]).to(out.dtype.element_ty), mask=query[:, None] < tokens)


@dataclass(frozen=True)
class SplitOutput:
    """Of one call for queries [R, T, H, D]: what is written by programs that do whole tiles, and by others."""

    out: Tensor
    """[R, T, H, D]."""
    waves: Waves
    row_blocks: int
    """Tiles of a lane."""
    sums: Tensor
    """float32 [parts * rest * QUERY_BLOCK, D]; of one row where nothing is split."""
    totals: Tensor
    """float32 [parts * rest * QUERY_BLOCK]."""

    @classmethod
    def of(cls, q: Tensor, blocks: int, dtype: torch.dtype) -> "SplitOutput":
        """``blocks``: most blocks of keys that there may be; ``dtype``: the result's."""
        streams, tokens, heads, channels = q.shape
        row_blocks = triton.cdiv(tokens, QUERY_BLOCK)
        waves = plan_waves(row_blocks * heads * streams, blocks, places(q.device))
        rows = waves.parts * waves.rest * QUERY_BLOCK if waves.parts > 1 else 1
        sums, totals = (torch.empty(rows, n, device=q.device, dtype=torch.float32) for n in (channels, 1))
        out = torch.empty_like(q, dtype=dtype, memory_format=torch.contiguous_format)
        return cls(out, waves, row_blocks, sums, totals)

    def merged(self) -> Tensor:
        """The result, once the kernel that fills this has been started."""
        waves = self.waves
        _, tokens, heads, channels = self.out.shape
        if waves.parts > 1:
            _merge[(waves.rest, QUERY_BLOCK // MERGED_ROWS)](
                self.sums,
                self.totals,
                self.out,
                waves.whole,
                waves.rest,
                self.row_blocks,
                tokens,
                H=heads,
                D=channels,
                BLOCK_M=QUERY_BLOCK,
                ROWS=MERGED_ROWS,
                PARTS=waves.parts,
            )
        return self.out


def places(device: torch.device) -> int:
    """Programs that run side by side."""
    if device.type != "cuda":
        return PROGRAMS_A_MULTIPROCESSOR
    return PROGRAMS_A_MULTIPROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count
