"""Search for the preset, image size, window and cache that use a memory budget best."""

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

SIDES = (1.0, 7 / 8, 3 / 4, 5 / 8)
"""Candidate image sides, as shares of the preset's."""
WINDOWS = (1.0, 3 / 4, 1 / 2, 3 / 8, 1 / 4, 3 / 16, 1 / 8)
"""Candidate windows, as shares of the preset's."""
MIN_WINDOW = 1 / 4
"""Share of the preset's window below which the network forgets what is still in view: image and preset shrink first."""


@dataclass(frozen=True)
class Configuration:
    """Candidate configuration for sources of one size."""

    base: str
    """Name or file of the unchanged preset."""
    preset: Preset
    """The preset with the candidate's image and stream."""
    image_size: tuple[int, int]
    """The network's image, (width, height) in pixels."""
    cache: CacheChoice
    rank: tuple[float, ...]
    """Higher is better; see `search_configurations`."""

    @property
    def grid(self) -> tuple[int, int]:
        """Patch rows and columns."""
        patch = self.preset.network.patch_size
        return self.image_size[1] // patch, self.image_size[0] // patch

    def memory(self) -> RunMemory:
        return run_memory(self.preset, self.grid, self.cache)


@dataclass(frozen=True)
class PlannedRun:
    """A configuration that fits."""

    configuration: Configuration
    memory: RunMemory
    seconds: float
    """Expected time of a one-frame step: see `step_seconds`."""


def search_configurations(
    presets: Sequence[tuple[str, Preset]],
    source_size: tuple[int, int],
    budget: int,
    rates: DeviceRates,
    caches: Sequence[CacheChoice] = CACHE_CHOICES,
) -> list[PlannedRun]:
    """Configurations that fit in ``budget`` bytes, CUDA context included, best first.

    For the preset of the best one: the best window and cache for each image size; for each other preset: its best
    configuration. They are ordered by these criteria, each deciding ties of those above it:

    1. at least a quarter of the preset's window: a short window loses more than a coarse image or a small network;
    2. the larger network;
    3. the larger image: every pixel gives depth and points, while special tokens remain of frames beyond the window;
    4. the longer window;
    5. the more exact cache.

    The special tokens' budget shrinks with the window, as the presets have 64 frames of them for each frame of the
    window. The order does not depend on the budget, so more memory never gives a worse first configuration.

    ``presets``: names or files, and their content; ``source_size``: (width, height). Raises ResourceError: nothing
    fits; the message names the least memory needed.
    """
    candidates = sorted(_candidates(presets, source_size, caches), key=lambda each: each.rank, reverse=True)
    runs: dict[tuple[str, tuple[int, int]], PlannedRun] = {}
    for candidate in candidates:
        first = next(iter(runs.values()), None)
        known = {run.configuration.base for run in runs.values()}
        is_alternative = first is not None and candidate.base != first.configuration.base
        # Memory is computed last, and only where it decides: it takes most of the time.
        if (is_alternative and candidate.base in known) or (candidate.base, candidate.image_size) in runs:
            continue
        memory = candidate.memory()
        if memory.total <= budget:
            seconds = step_seconds(candidate.preset, candidate.grid, rates, candidate.cache)
            runs[candidate.base, candidate.image_size] = PlannedRun(candidate, memory, seconds)
    if not runs:
        smallest = min(candidates, key=lambda each: each.memory().total)
        raise ResourceError(
            f"{budget / 1e9:.2f} GB are too little: the smallest configuration for this source, preset {smallest.base} "
            f"with window {smallest.preset.stream.window} at {smallest.image_size[0]}x{smallest.image_size[1]}, "
            f"needs {smallest.memory().total / 1e9 + 0.005:.2f} GB"
        )
    return list(runs.values())


def _candidates(
    presets: Sequence[tuple[str, Preset]], source_size: tuple[int, int], caches: Sequence[CacheChoice]
) -> Iterator[Configuration]:
    for base, preset in presets:
        windows = dict.fromkeys(max(1, int(share * preset.stream.window)) for share in WINDOWS)
        for side, window in product(SIDES, windows):
            smaller = _shrunk(preset, side, window)
            size = plan_image(source_size, smaller.image, preset.network.patch_size).network_size
            for exactness, cache in enumerate(reversed(caches)):
                enough = window >= MIN_WINDOW * preset.stream.window
                rank = (enough, network_size(preset.network).bytes, size[0] * size[1], window, exactness)
                yield Configuration(base, smaller, size, cache, rank)


def _shrunk(preset: Preset, side: float, window: int) -> Preset:
    """The preset with a smaller image and window."""
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
