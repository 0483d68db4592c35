"""Split-K schedule of attention tiles, which avoids a last wave that leaves most of the GPU idle (wave quantisation).

A tile is one block of queries of one head; one program reads all its keys. 1,042 queries and 16 heads are 272 tiles,
8 more than an H200 runs at once, so a second wave would take as long as the first. Instead the tiles that do not fill
a wave are split: each of several programs reads a part of the keys, and a second kernel adds the parts.
"""

from dataclasses import dataclass
from functools import lru_cache

QUERY_BLOCK = 64
"""Queries of a program: with `KEY_BLOCK` the fastest of about seventy combinations on an H200, at 978 queries, 16 heads
of 64 channels and 70,000 keys."""
KEY_BLOCK = 128
"""Keys that a program reads at once; see `QUERY_BLOCK`."""
PROGRAMS_PER_SM = 2
"""Programs that run at once on a multiprocessor: registers and shared memory of Hopper hold two; elsewhere a guess."""
MAX_PARTS = 64
"""Upper bound of the search, which also bounds the memory of the sums."""
MERGE_COST = 4.0
"""Start of the kernel that adds the parts, in units of reading one block of 128 keys (1.0 microseconds on an H200)."""
PART_COST = 0.011
"""Writing and reading 64 rows of one part's fp32 sums, in the same unit."""


@dataclass(frozen=True)
class TileSchedule:
    """Programs ``0 .. full_tiles - 1`` do one tile each; the ``split_tiles`` after them are done in ``parts`` each."""

    full_tiles: int
    split_tiles: int
    parts: int

    @property
    def programs(self) -> int:
        """Programs to start."""
        return self.full_tiles + self.split_tiles * self.parts

    def cost(self, blocks: int, resident_programs: int) -> float:
        """Expected time of tiles with ``blocks`` key blocks each, in units of one program reading one block."""
        last = -(-self.split_tiles * self.parts // resident_programs) * -(-blocks // self.parts)
        merge = MERGE_COST + PART_COST * self.split_tiles * self.parts if self.parts > 1 else 0.0
        return self.full_tiles / resident_programs * blocks + last + merge


@lru_cache(maxsize=256)
def schedule_tiles(tiles: int, blocks: int, resident_programs: int) -> TileSchedule:
    """Fastest schedule of ``tiles`` with ``blocks`` key blocks each where ``resident_programs`` run at once."""
    full_tiles = tiles // resident_programs * resident_programs
    remaining = tiles - full_tiles
    if remaining == 0:
        return TileSchedule(full_tiles, 0, 1)
    candidates = (TileSchedule(full_tiles, remaining, parts) for parts in range(1, min(MAX_PARTS, max(blocks, 1)) + 1))
    return min(candidates, key=lambda schedule: schedule.cost(blocks, resident_programs))
