import dataclasses
import time
from dataclasses import dataclass

import pytest
import torch

from stream_recon.app.planning.budget import H200, DeviceRates, calls_per_second, run_memory, step_seconds
from stream_recon.cache.cache_dtypes import CACHE_CHOICES
from stream_recon.cache.fp8_frame_cache import Fp8FrameCache
from stream_recon.cache.frame_cache import FrameCache
from stream_recon.cache.stream_cache import StreamSchema
from stream_recon.configs.schema import CacheChoice, Preset, load_preset

SMALL = load_preset("small")
FULL = load_preset("lingbot-map")


@dataclass(frozen=True)
class Measured:
    """On an H200 (torch 2.11.0+cu130, Triton 3.6.0), every frame a keyframe and the window full."""

    preset: Preset
    window: int
    grid: tuple[int, int]
    cache: CacheChoice
    milliseconds: float
    allocated: float
    """GB at the peak; 0: not known."""
    total: float
    """GB, torch's reserve and CUDA's share."""


MEASURED = [
    Measured(FULL, 64, (28, 37), "full", 24.76, 12.95, 0),
    Measured(FULL, 64, (28, 37), "fp8", 24.7, 0, 0),
    Measured(FULL, 64, (27, 36), "full", 22.33, 12.31, 14.71),
    Measured(FULL, 64, (27, 36), "fp8", 22.0, 9.14, 0),
    Measured(FULL, 64, (21, 37), "full", 1e3 / 59.8, 10.50, 12.58),
    Measured(FULL, 64, (18, 32), "full", 1e3 / 80.8, 8.64, 10.40),
    Measured(FULL, 64, (21, 37), "fp8", 16.8, 0, 0),
    Measured(FULL, 64, (18, 32), "fp8", 12.95, 0, 0),
    Measured(FULL, 64, (27, 36), "compressed", 15.12, 8.65, 0),
    Measured(SMALL, 8, (12, 16), "full", 3.55, 0.269, 0),
]


def with_window(preset: Preset, window: int) -> Preset:
    """The preset as `search_configurations` shrinks it."""
    stream = preset.stream
    special_budget = stream.special_budget * window // stream.window
    return dataclasses.replace(preset, stream=dataclasses.replace(stream, window=window, special_budget=special_budget))


def test_the_caches_are_those_of_the_schema() -> None:
    memory = run_memory(SMALL, (12, 16))
    assert memory.caches == StreamSchema.from_config(SMALL.network, SMALL.stream, (12, 16), torch.bfloat16).bytes
    assert memory.total == memory.by_torch + memory.context
    assert memory.by_torch == memory.weights + memory.caches + memory.activations + memory.workspace


def test_one_byte_an_element_makes_the_frames_cache_smaller_alone() -> None:
    half, byte = (run_memory(SMALL, (12, 16), cache) for cache in CACHE_CHOICES)
    frames = StreamSchema.from_config(SMALL.network, SMALL.stream, (12, 16), torch.bfloat16).frames
    full, pages = (cache.bytes(frames, torch.bfloat16) for cache in (FrameCache, Fp8FrameCache))
    assert half.caches - byte.caches == full - pages
    assert dataclasses.replace(half, caches=0) == dataclasses.replace(byte, caches=0)


@pytest.mark.parametrize("run", MEASURED, ids=lambda run: f"{run.grid}-{run.cache}")
def test_memory_and_time_are_near_the_measurements(run: Measured) -> None:
    preset = with_window(run.preset, run.window)
    assert 1e3 * step_seconds(preset, run.grid, H200, run.cache) == pytest.approx(run.milliseconds, rel=0.12)
    memory = run_memory(preset, run.grid, run.cache)
    assert memory.by_torch > 1e9 * run.allocated
    if run.total:
        assert memory.total < 1e9 * run.total, "torch keeps more than it needs"


def test_more_frames_and_patches_take_more_memory_and_time() -> None:
    slow = DeviceRates("slow", 1e12, 1e10, 10)  # so that launches do not decide
    runs = [(with_window(SMALL, window), grid) for grid in ((9, 12), (12, 16)) for window in (2, 8)]
    memory = [run_memory(preset, grid).total for preset, grid in runs]
    seconds = [step_seconds(preset, grid, slow) for preset, grid in runs]
    for values in (memory, seconds):
        assert values[0] < min(values[1:3]) and max(values[1:3]) < values[3]


def test_a_few_tokens_beyond_a_full_wave_cost_a_few_percent() -> None:
    """The full-size network has 16 heads: 16 blocks of queries in each are 256 programs; an H200 runs 264 at once."""
    times = [step_seconds(FULL, (1, patches), H200) for patches in (64 * 16 - 6, 64 * 16 - 5)]
    assert 1 < times[1] / times[0] < 1.1


def test_a_cache_in_e4m3_saves_products_and_costs_dequantisation() -> None:
    slow, endless = (dataclasses.replace(H200, bandwidth=rate * H200.bandwidth) for rate in (0.25, 1e6))
    costs, saves = (step_seconds(FULL, (27, 36), r, "fp8") - step_seconds(FULL, (27, 36), r) for r in (slow, endless))
    assert saves < 0 < costs


def test_a_device_without_limits_still_has_a_least_time_per_frame() -> None:
    endless = DeviceRates("endless", 1e30, 1e30, 1000)
    assert 1e-3 < step_seconds(SMALL, (12, 16), endless) <= step_seconds(SMALL, (12, 16), H200)


def test_calls_are_counted_over_the_time_they_take() -> None:
    calls = 0

    def work() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.02)

    assert 0 < calls_per_second(work, 0.1) <= 50
    assert 3 <= calls <= 7
    assert calls_per_second(work, 0.0) > 0
