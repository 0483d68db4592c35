"""Which preset, image size and window a memory budget is best spent on."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from stream_recon.app.planning.budget import DeviceRates, RunMemory, run_memory, step_seconds
from stream_recon.app.planning.step_trace import network_size
from stream_recon.app.sources.preprocess import plan_image
from stream_recon.cache.cache_dtypes import CACHE_CHOICES
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import CacheChoice, Preset
from stream_recon.configs.sizes import parse_size

SIDES = (1.0, 7 / 8, 3 / 4, 5 / 8)
"""Image sides to choose from, of the preset's."""
WINDOWS = (1.0, 3 / 4, 1 / 2, 3 / 8, 1 / 4, 3 / 16, 1 / 8)
"""Windows to choose from, of the preset's."""
LEAST_WINDOW = 1 / 4
"""Share of the preset's window: with less the network forgets what it still sees, so image and preset shrink first."""


@dataclass(frozen=True)
class Configuration:
    """A way to run on sources of one size."""

    base: str
    """The preset's name or file before anything was changed."""
    preset: Preset
    """The preset with this way's image and stream."""
    image_size: tuple[int, int]
    """The network's image, (width, height) in pixels."""
    cache: CacheChoice
    rank: tuple[float, ...]
    """Higher is better; see `choices`."""

    @property
    def grid(self) -> tuple[int, int]:
        """Patch rows and columns."""
        patch = self.preset.network.patch_size
        return self.image_size[1] // patch, self.image_size[0] // patch

    def memory(self) -> RunMemory:
        return run_memory(self.preset, self.grid, self.cache)


@dataclass(frozen=True)
class Choice:
    """A way that fits."""

    way: Configuration
    memory: RunMemory
    seconds: float
    """Expected time of a one-frame step: see `step_seconds`."""


def parse_memory(text: str) -> int:
    """Bytes of a GPU's memory, see `parse_size`. Raises ConfigError."""
    return parse_size(text, "--memory")


def choices(
    presets: Sequence[tuple[str, Preset]],
    source_size: tuple[int, int],
    budget: int,
    rates: DeviceRates,
    caches: Sequence[CacheChoice] = CACHE_CHOICES,
) -> list[Choice]:
    """What fits in ``budget`` bytes (the CUDA context among them), best first: of the best choice's preset the best
    window and cache for each image size, and the best choice of each other preset.

    The order, each line deciding where those before it are equal:

    1. at least a quarter of the preset's window: short memory loses more than a coarse image or a small network;
    2. the larger network;
    3. the larger image, since a pixel that is left out is in no depth map and no point, while the window is reach
       alone, and the special tokens of frames that left it stay;
    4. the longer window;
    5. the more exact cache.

    The special tokens' budget shrinks with the window, as the presets have 64 frames of them for each of its
    frames. The order does not depend on the budget, so more memory never gives a worse first choice.

    ``presets``: names or files, and what was read from them; ``source_size``: (width, height).

    Raises:
        ResourceError: nothing fits; it names the least memory that would do.
    """
    ways = sorted(_ways(presets, source_size, caches), key=lambda way: way.rank, reverse=True)
    found: dict[tuple[str, tuple[int, int]], Choice] = {}
    for way in ways:
        first = next(iter(found.values()), None)
        known = {choice.way.base for choice in found.values()}
        beside = first is not None and way.base in known and way.base != first.way.base
        # Memory is computed last, and only where it decides: it takes most of the time.
        if beside or (way.base, way.image_size) in found:
            continue
        memory = way.memory()
        if memory.total <= budget:
            seconds = step_seconds(way.preset, way.grid, rates, way.cache)
            found[way.base, way.image_size] = Choice(way, memory, seconds)
    if not found:
        least = min(ways, key=lambda way: way.memory().total)
        raise ResourceError(
            f"{budget / 1e9:.2f} GB are too little: the smallest choice for this source, preset {least.base} with "
            f"window {least.preset.stream.window} at {least.image_size[0]}x{least.image_size[1]}, "
            f"needs {least.memory().total / 1e9 + 0.005:.2f} GB"
        )
    return list(found.values())


def _ways(
    presets: Sequence[tuple[str, Preset]], source_size: tuple[int, int], caches: Sequence[CacheChoice]
) -> Iterator[Configuration]:
    for base, preset in presets:
        windows = dict.fromkeys(max(1, int(share * preset.stream.window)) for share in WINDOWS)
        for side, window in product(SIDES, windows):
            smaller = _shrunk(preset, side, window)
            size = plan_image(source_size, smaller.image, preset.network.patch_size).network_size
            for exactness, cache in enumerate(reversed(caches)):
                enough = window >= LEAST_WINDOW * preset.stream.window
                rank = (enough, network_size(preset.network).bytes, size[0] * size[1], window, exactness)
                yield Configuration(base, smaller, size, cache, rank)


def _shrunk(preset: Preset, side: float, window: int) -> Preset:
    """The preset itself where both are its own."""
    image, stream, patch = preset.image, preset.stream, preset.network.patch_size
    return dataclasses.replace(
        preset,
        image=dataclasses.replace(
            image,
            max_side=max(1, int(side * image.max_side / patch)) * patch if side < 1 else image.max_side,
            max_patches=max(1, int(side**2 * image.max_patches)),
        ),
        stream=dataclasses.replace(
            stream, window=window, special_budget=max(1, stream.special_budget * window // stream.window)
        ),
    )
