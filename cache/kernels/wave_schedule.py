"""How a kernel's blocks of work are shared out over a GPU's places, where the last wave would leave most of them empty.

Attention has one block of queries and one head for each program; a program reads all keys. 1,042 queries and 16 heads
are 272 programs: 8 more than an H200 has places for, so that a second wave would take as long as the first one for
them. Here programs that do not fill a wave read only a part of the keys each, and the parts are added afterwards.
"""

from dataclasses import dataclass
from functools import lru_cache

QUERY_BLOCK, KEY_BLOCK = 64, 128
"""Rows of a program, and keys that it reads at once: the fastest of some seventy combinations on an H200, at 978
queries, 16 heads of 64 and 70,000 keys."""
PROGRAMS_A_MULTIPROCESSOR = 2
"""Side by side: what registers and shared memory of a Hopper GPU have room for. On others it is a guess."""
MOST_PARTS = 64
MERGE_COST = 4.0
"""Of adding parts up, in the time in which a program reads one block of 128 keys (1.0 microseconds on an H200): the
start of another kernel ..."""
PART_COST = 0.011
"""... and for each part the way of 64 rows of sums in fp32 to memory and back."""


@dataclass(frozen=True)
class Waves:
    """Programs ``0 .. whole - 1`` do one tile each; each of the ``rest`` tiles after them is done in ``parts``."""

    whole: int
    rest: int
    parts: int

    @property
    def programs(self) -> int:
        return self.whole + self.rest * self.parts

    def cost(self, blocks: int, places: int) -> float:
        """Expected time, in blocks of keys read by one program after the other, of tiles with ``blocks`` each."""
        last = -(-self.rest * self.parts // places) * -(-blocks // self.parts)
        merge = MERGE_COST + PART_COST * self.rest * self.parts if self.parts > 1 else 0.0
        return self.whole / places * blocks + last + merge


@lru_cache(maxsize=256)
def plan_waves(tiles: int, blocks: int, places: int) -> Waves:
    """The fastest way for ``tiles`` of ``blocks`` blocks of keys each, with ``places`` for programs side by side."""
    whole = tiles // places * places
    rest = tiles - whole
    if rest == 0:
        return Waves(whole, 0, 1)
    ways = (Waves(whole, rest, parts) for parts in range(1, min(MOST_PARTS, max(blocks, 1)) + 1))
    return min(ways, key=lambda way: way.cost(blocks, places))
