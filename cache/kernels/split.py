# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Split tiles of the attention kernel: their parts, and the kernel that adds them (Triton); see `tile_schedule`.

A tile is `QUERY_BLOCK` queries of one lane, a head of a stream's frame. Each part has sums of weighted values and of
weights, relative to a maximum of its own; sums are brought to the largest one and added.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stream_recon.cache.kernels.tile_schedule import PROGRAMS_PER_SM, QUERY_BLOCK, TileSchedule, schedule_tiles

WARPS, STAGES = 4, 3
"""Fastest with the block sizes of `tile_schedule`. Slower on an H200, by 2 to 80 %: two stages; three programs per
multiprocessor; 128 rows by 8 warps; a polynomial for an eighth, a quarter or half of the exponentials; computing the
next block's scores early, or overlapping the second product with exponentials, also with asynchronous Gluon."""
MERGED_ROWS = 16
"""Rows that a program of the merge adds. There are few such programs, so they are small."""


@triton.jit
def tile_and_part(full_tiles, split_tiles, PARTS: tl.constexpr):
    """This program's tile, its part of the tile's keys, and the number of parts."""
    program = tl.program_id(0)
    if PARTS == 1:
        return program, 0, 1
    else:
        split_program = tl.maximum(program - full_tiles, 0)
        is_split = program >= full_tiles
        # Neighbouring programs read the same keys: tiles of a head are consecutive.
        tile = tl.where(is_split, full_tiles + split_program % split_tiles, program)
        return tile, tl.where(is_split, split_program // split_tiles, 0), tl.where(is_split, PARTS, 1)


@triton.jit
def store_tile(acc, total, best, out, offset, is_query, sums, totals, maxima, tile, part, full_tiles, split_tiles,
               channels, BLOCK_M: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    """Store a full tile's result, or a part's sums."""
    if PARTS == 1:
        tl.store(out + offset, (acc / total[:, None]).to(out.dtype.element_ty), mask=is_query)
    else:
        if tile < full_tiles:
            tl.store(out + offset, (acc / total[:, None]).to(out.dtype.element_ty), mask=is_query)
        else:
            row = (part * split_tiles + tile - full_tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
            tl.store(sums + row[:, None] * D + channels[None, :], acc)
            tl.store(totals + row, total)
            # A part without keys has no say in the scale.
            tl.store(maxima + row, tl.where(total > 0, best, -float("inf")))


@triton.jit
def _merge(sums, totals, maxima, out, full_tiles, split_tiles, row_blocks, tokens, H: tl.constexpr, D: tl.constexpr,
           BLOCK_M: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    tile = tl.program_id(0)
    inner = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    channels = tl.arange(0, D)
    acc = tl.zeros([ROWS, D], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    best = tl.load(maxima + tile * BLOCK_M + inner)
    for part in range(1, PARTS):
        best = tl.maximum(best, tl.load(maxima + (part * split_tiles + tile) * BLOCK_M + inner))
    for part in range(PARTS):
        row = (part * split_tiles + tile) * BLOCK_M + inner
        share = tl.math.exp2(tl.load(maxima + row) - best)
        acc += tl.load(sums + row[:, None] * D + channels[None, :]) * share[:, None]
        total += tl.load(totals + row) * share
    query = (full_tiles + tile) % row_blocks * BLOCK_M + inner
    lane = (full_tiles + tile) // row_blocks
    offset = (lane // H * tokens + query[:, None]) * (H * D) + lane % H * D + channels[None, :]
    tl.store(out + offset, (acc / total[:, None]).to(out.dtype.element_ty), mask=query[:, None] < tokens)


@dataclass(frozen=True)
class SplitOutput:
    """Outputs of one call for queries [R, T, H, D]: results of full tiles, and sums of parts."""

    out: Tensor
    """[R, T, H, D]."""
    schedule: TileSchedule
    row_blocks: int
    """Tiles per lane."""
    sums: Tensor
    """float32 [parts * split_tiles * QUERY_BLOCK, D]; one row where nothing is split."""
    totals: Tensor
    """float32 [parts * split_tiles * QUERY_BLOCK]."""
    maxima: Tensor
    """As ``totals``: exponents of 2 to which the sums are relative."""

    @classmethod
    def allocate(cls, q: Tensor, blocks: int, dtype: torch.dtype) -> "SplitOutput":
        """``blocks``: most key blocks that a tile can have; ``dtype``: of the result."""
        streams, tokens, heads, channels = q.shape
        row_blocks = triton.cdiv(tokens, QUERY_BLOCK)
        schedule = schedule_tiles(row_blocks * heads * streams, blocks, resident_programs(q.device))
        rows = schedule.parts * schedule.split_tiles * QUERY_BLOCK if schedule.parts > 1 else 1
        sums, totals, maxima = (torch.empty(rows, n, device=q.device, dtype=torch.float32) for n in (channels, 1, 1))
        out = torch.empty_like(q, dtype=dtype, memory_format=torch.contiguous_format)
        return cls(out, schedule, row_blocks, sums, totals, maxima)

    def merged(self) -> Tensor:
        """The result; called after the kernel that fills these tensors."""
        schedule = self.schedule
        _, tokens, heads, channels = self.out.shape
        if schedule.parts > 1:
            _merge[(schedule.split_tiles, QUERY_BLOCK // MERGED_ROWS)](
                self.sums,
                self.totals,
                self.maxima,
                self.out,
                schedule.full_tiles,
                schedule.split_tiles,
                self.row_blocks,
                tokens,
                H=heads,
                D=channels,
                BLOCK_M=QUERY_BLOCK,
                ROWS=MERGED_ROWS,
                PARTS=schedule.parts,
            )
        return self.out


def resident_programs(device: torch.device) -> int:
    """Programs of the attention kernel that the device runs at once."""
    if device.type != "cuda":
        return PROGRAMS_PER_SM
    return PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count
