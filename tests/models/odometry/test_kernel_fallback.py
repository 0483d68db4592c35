"""What a step does where odometry's kernels do not run."""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from stream_recon.app.engine.stream import StreamRunner
from stream_recon.configs.schema import Preset, load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET, EMBEDDED_WEIGHTS
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.weights import load_network

GRID, FRAMES = (3, 4), 3
KERNELS = "stream_recon.models.odometry.kernels.step"


def replace_kernels(monkeypatch: pytest.MonkeyPatch, step: Callable[..., object]) -> None:
    module = ModuleType(KERNELS)
    module.step = step  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, KERNELS, module)


def network_and_preset() -> tuple[StreamingNetwork, Preset]:
    preset = load_preset(EMBEDDED_PRESET)
    preset = replace(preset, stream=replace(preset.stream, rotation_search=False))
    return load_network(EMBEDDED_WEIGHTS, preset.network).eval(), preset


def poses(network: StreamingNetwork, preset: Preset) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(FRAMES, 3, 14 * GRID[0], 14 * GRID[1], generator=generator)
    stream = StreamRunner(network, preset, GRID)
    return torch.cat([stream.step(part)[0].pose.clone() for part in (images[:-1], images[-1:])], dim=1)


def test_a_kernel_that_fails_is_named_once_and_the_plain_path_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network, preset = network_and_preset()
    plain = poses(network, preset)
    calls = []

    def fail(*_: object) -> None:
        calls.append(0)
        raise RuntimeError("no compiler")

    replace_kernels(monkeypatch, fail)
    assert network.odometry is not None
    network.odometry.fused = True
    with caplog.at_level(logging.WARNING):
        assert torch.equal(poses(network, preset), plain)
    assert len(calls) == 1 and not network.odometry.fused
    assert [record.message for record in caplog.records if "no compiler" in record.message] == [
        "odometry's kernels do not run here, so steps will be slower: no compiler"
    ]


def test_missing_memory_is_no_missing_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    network, preset = network_and_preset()

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    replace_kernels(monkeypatch, fail)
    assert network.odometry is not None
    network.odometry.fused = True
    with pytest.raises(torch.OutOfMemoryError):
        poses(network, preset)
    assert network.odometry.fused


def test_a_failure_while_a_step_is_captured_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    network, preset = network_and_preset()

    def fail(*_: object) -> None:
        raise RuntimeError("not allowed in a capture")

    replace_kernels(monkeypatch, fail)
    monkeypatch.setattr("stream_recon.models.odometry.odometry._is_captured", lambda _: True)
    assert network.odometry is not None
    network.odometry.fused = True
    with pytest.raises(RuntimeError, match="not allowed"):
        poses(network, preset)
    assert network.odometry.fused
