"""The choice of a device, and the trial of one that may lack operations or compute wrongly."""

from collections.abc import Callable

import pytest
import torch

from stream_recon.app.engine.devices import CPU, choose_device, runs_alike, trial_outputs
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.dense import DenseStage
from stream_recon.configs.errors import ResourceError
from stream_recon.models.rope import exact_device
from tests.networks import tiny_network, tiny_preset

MPS = torch.device("mps")


@pytest.mark.skipif(torch.cuda.is_available(), reason="an NVIDIA GPU comes first")
def test_apples_gpu_is_taken_where_torch_has_it() -> None:
    assert choose_device("auto", has_mps=True) == choose_device("mps", has_mps=True) == MPS
    assert choose_device("auto", has_mps=False) == choose_device("cpu", has_mps=True) == CPU
    with pytest.raises(ResourceError, match="no MPS device is available: use --device cpu"):
        choose_device("mps", has_mps=False)


def test_stereo_stays_on_the_cpu_beside_apples_gpu() -> None:
    stage = DenseStage.of(RunOptions(model=ModelChoice(device="mps")))
    assert stage is not None and stage.device == "cpu"


def raising(error: Exception) -> Callable[[torch.device], list[torch.Tensor]]:
    def outputs(device: torch.device) -> list[torch.Tensor]:
        if device != CPU:
            raise error
        return [torch.ones(2)]

    return outputs


@pytest.mark.parametrize(
    ("outputs", "alike"),
    [
        (lambda device: [torch.ones(2) + (1e-4 if device == MPS else 0.0)], True),
        (lambda device: [torch.ones(2) * (1.1 if device == MPS else 1.0)], False),
        (lambda device: [torch.full((2,), float("nan") if device == MPS else 1.0)], False),
        (raising(NotImplementedError("no such operation")), False),
        (raising(TypeError("MPS has no float64")), False),
    ],
)
def test_a_device_that_lacks_something_or_errs_is_noticed(
    outputs: Callable[[torch.device], list[torch.Tensor]], alike: bool
) -> None:
    assert runs_alike(outputs, MPS) is alike


def test_the_trial_is_a_stream_of_the_network() -> None:
    preset = tiny_preset()
    outputs = trial_outputs(tiny_network(preset), preset, CPU)
    assert len(outputs) == 6 and all(torch.isfinite(values).all() for values in outputs)
    assert runs_alike(lambda device: trial_outputs(tiny_network(preset), preset, CPU), MPS)


def test_float64_is_computed_on_the_cpu_for_apples_gpu_which_has_none() -> None:
    assert exact_device(MPS) == CPU
    assert exact_device(torch.device("cuda", 1)) == torch.device("cuda", 1)
