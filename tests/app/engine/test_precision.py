"""The choice of the number type of matrices, and that a run has it."""

import pytest
import torch

from stream_recon.app.engine import device_transfer
from stream_recon.app.engine.device_transfer import Precision, choose_precision, computes_in_half, fast_precision
from stream_recon.app.engine.engine import prepare_network
from stream_recon.app.engine.stream import StepOptions, StreamRunner
from stream_recon.configs.errors import ResourceError
from stream_recon.models.int8 import exact_levels
from tests.networks import GRID, random_images, tiny_network, tiny_preset

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_a_gpu_computes_in_bf16_and_refuses_int8() -> None:
    assert choose_precision("auto", GPU) == fast_precision(GPU) == "bf16"
    assert computes_in_half("bf16", GPU) and not computes_in_half("fp32", GPU)
    with pytest.raises(ResourceError, match="int8 is for CPUs"):
        choose_precision("int8", GPU)


def test_a_given_precision_is_taken() -> None:
    assert choose_precision("fp32", CPU) == "fp32" and choose_precision("bf16", CPU) == "bf16"
    assert choose_precision("auto", CPU) == choose_precision("auto", CPU)


def test_a_cpu_without_products_in_int8_refuses_int8_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_transfer, "exact_levels", lambda: False)
    assert choose_precision("fp32", CPU) == "fp32"
    with pytest.raises(ResourceError, match="no products in int8"):
        choose_precision("int8", CPU)


@pytest.mark.skipif(not exact_levels(), reason="this CPU or torch has no products in int8")
def test_a_stream_in_int8_is_near_the_exact_one() -> None:
    preset, images = tiny_preset(), random_images(12)
    scale = preset.stream.scale_frames
    depths = []
    for precision in ("fp32", "int8"):
        network = tiny_network(preset)
        prepare_network(network, CPU, precision)
        stream = StreamRunner(network, preset, GRID, StepOptions("sdpa", precision))
        steps = [images[:scale], *images[scale:].split(1)]
        depths.append(torch.cat([stream.step(batch)[0].log_depth[0] for batch in steps]))
    error = float((depths[1] - depths[0]).abs().mean())
    assert 0 < error < 0.05


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_choice_of_compressed_layers_is_that_of_a_preset_with_them(precision: Precision) -> None:
    preset, images = tiny_preset(), random_images(6)
    network = tiny_network(preset)
    poses = []
    for chosen, cache in ((preset, "compressed"), (tiny_preset(compressed_from=2), "full"), (preset, "full")):
        stream = StreamRunner(network, chosen, GRID, StepOptions("sdpa", precision, cache))  # type: ignore[arg-type]
        for batch in (images[:3], *images[3:].split(1)):
            prediction, _ = stream.step(batch)
        poses.append(prediction.head_pose)
    assert torch.equal(poses[0], poses[1]) and not torch.equal(poses[0], poses[2])
