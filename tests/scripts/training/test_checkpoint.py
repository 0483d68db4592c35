import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stream_recon.configs.errors import WeightsError
from stream_recon.models.weights import load_network
from tests.scripts.training.networks import TINY_NETWORK
from training.checkpoint import load_into, save_weights
from training.flat import FlatParameters
from training.metrics_file import MetricsFile
from training.model import build_model
from training.optimizer import group_parameters


def tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in module.named_parameters()}


def save(folder: Path, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = build_model(TINY_NETWORK)
    save_weights(folder, tensors(model.network), tensors(model.auxiliary))
    return model


def test_saved_weights_are_the_products_and_continue_a_run(tmp_path: Path) -> None:
    model = save(tmp_path)
    product = load_network(tmp_path / "model.safetensors", TINY_NETWORK)
    continued = build_model(TINY_NETWORK, tmp_path / "model.safetensors", tmp_path / "auxiliary.safetensors")
    for name, value in model.state_dict().items():
        rounded = value.bfloat16().float() if value.is_floating_point() else value
        assert torch.equal(continued.state_dict()[name], rounded), name
        if name.startswith("network."):
            assert torch.equal(product.state_dict()[name.removeprefix("network.")], rounded)
    assert continued.training and all(p.requires_grad for p in continued.parameters())


def test_a_file_that_does_not_fit_names_a_tensor(tmp_path: Path) -> None:
    model = save(tmp_path)
    with pytest.raises(WeightsError, match=r"unexpected|missing"):
        load_into(nn.Linear(2, 2), tmp_path / "auxiliary.safetensors")
    other = build_model(dataclasses.replace(TINY_NETWORK, dim=32, heads=1))
    with pytest.raises(WeightsError, match="shape"):
        load_into(other.auxiliary, tmp_path / "auxiliary.safetensors")
    assert model is not None


def test_weights_from_before_a_head_continue_with_a_fresh_one(tmp_path: Path) -> None:
    before = dataclasses.replace(TINY_NETWORK, flow_blocks=0, keyframe_matcher=False, dpt_upsampling="bilinear")
    torch.manual_seed(1)
    model = build_model(before)
    save_weights(tmp_path, tensors(model.network), tensors(model.auxiliary))
    continued = build_model(TINY_NETWORK, tmp_path / "model.safetensors").network.state_dict()
    for name, value in tensors(model.network).items():
        assert torch.equal(continued[name], value.bfloat16().float()), name
    with pytest.raises(WeightsError, match="is missing"):
        load_into(build_model(TINY_NETWORK).network, tmp_path / "model.safetensors")


def test_only_the_parts_that_are_asked_for_learn() -> None:
    model = build_model(TINY_NETWORK, only=["odometry.flow_head"])
    parameters = FlatParameters(group_parameters(model))
    known = tensors(model)
    changed = {
        name
        for name, value in parameters.named(model, torch.full_like(parameters.values, 7.0)).items()
        if not torch.equal(value, known[name])
    }
    assert changed == {name for name in known if name.startswith("network.odometry.flow_head.")}


def test_metrics_are_one_json_object_a_line(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path)
    metrics.write("step", loss=1 / 3, parts={"a": 2 / 3})
    metrics.write("step", loss=0.5)
    metrics.write("end")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["step", "step", "end"]
    assert lines[0]["loss"] == 0.33333 and lines[0]["parts"] == {"a": 0.66667}
