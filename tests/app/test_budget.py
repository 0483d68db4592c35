import dataclasses
import time

import pytest
import torch

from stream_recon.app import budget
from stream_recon.app.budget import H200, DeviceRates, calls_per_second, run_memory, step_seconds
from stream_recon.cache.flashinfer_attention import WORKSPACE_BYTES
from stream_recon.cache.stream import StreamSchema
from stream_recon.configs.schema import Preset, load_preset

SMALL = load_preset("small")
FULL = load_preset("lingbot-map")


def with_window(preset: Preset, window: int) -> Preset:
    return dataclasses.replace(preset, stream=dataclasses.replace(preset.stream, window=window))


def test_the_caches_are_those_of_the_schema() -> None:
    memory = run_memory(SMALL, (12, 16))
    assert memory.caches == StreamSchema.of(SMALL.network, SMALL.stream, 192, torch.bfloat16).bytes
    assert memory.total == memory.by_torch + memory.context
    assert memory.by_torch == memory.weights + memory.caches + memory.activations + memory.workspace


def test_one_byte_an_element_makes_the_frames_cache_smaller_alone() -> None:
    half, byte = (run_memory(SMALL, (12, 16), dtype) for dtype in (torch.bfloat16, torch.float8_e4m3fn))
    frames = StreamSchema.of(SMALL.network, SMALL.stream, 192, torch.bfloat16).frames
    assert half.caches - byte.caches == frames.bytes(torch.bfloat16) - frames.bytes(torch.float8_e4m3fn)
    assert dataclasses.replace(half, caches=0, workspace=0) == dataclasses.replace(byte, caches=0, workspace=0)


def test_the_full_size_stream_takes_the_memory_that_its_constants_were_made_from() -> None:
    """504x378, window 64, 8 scale frames on an H200: tensors and workspaces held 12.3 GB, torch reserves more."""
    memory = run_memory(FULL, (27, 36))
    assert 12.3e9 < memory.by_torch < 13.3e9


def test_flashinfer_takes_a_workspace_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for installed in (None, object()):
        monkeypatch.setattr(budget, "find_spec", lambda name, installed=installed: installed)
        sizes.append(run_memory(SMALL, (12, 16)).workspace)
    assert sizes[1] - sizes[0] == WORKSPACE_BYTES
    assert run_memory(SMALL, (12, 16), torch.float8_e4m3fn).workspace == sizes[0], "it cannot read a cache in e4m3"


def test_more_frames_and_patches_take_more_memory_and_time() -> None:
    slow = DeviceRates("slow", 1e12, 1e10)  # where launches do not decide
    ways = [(with_window(SMALL, window), grid) for grid in ((9, 12), (12, 16)) for window in (2, 8)]
    memory = [run_memory(preset, grid).total for preset, grid in ways]
    seconds = [step_seconds(preset, grid, slow) for preset, grid in ways]
    for values in (memory, seconds):
        assert values[0] < min(values[1:3]) and max(values[1:3]) < values[3]


def test_the_full_size_step_takes_the_time_that_its_constants_were_made_from() -> None:
    """504x378, window 64, 8 scale frames on an H200."""
    assert step_seconds(FULL, (27, 36), H200) == pytest.approx(22.7e-3, rel=0.03)


def test_a_device_without_limits_still_has_to_be_given_its_work() -> None:
    endless = DeviceRates("endless", 1e30, 1e30)
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
