import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stream_recon.configs.errors import WeightsError
from stream_recon.models.embedded import file_sha256
from stream_recon.models.weights import load_network
from tests.scripts.training.networks import TINY_NETWORK
from training import checkpoint
from training.checkpoint import join_parts, load_into, save_weights
from training.flat import FlatParameters
from training.metrics_file import MetricsFile, last_event
from training.model import build_model
from training.optimizer import group_parameters


def tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in module.named_parameters()}


def save(folder: Path, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = build_model(TINY_NETWORK)
    saved = save_weights(folder, tensors(model.network), tensors(model.auxiliary), tensors(model))
    MetricsFile(folder).write("saved", step=1, **dataclasses.asdict(saved))
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


def test_parts_are_small_and_join_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "PART_BYTES", 300_000)
    save(tmp_path / "run")
    parts = sorted((tmp_path / "run").glob("*.part"))
    assert len(parts) > 2 and all(p.stat().st_size <= 300_000 for p in parts)
    digest = join_parts(tmp_path / "run", tmp_path / "joined.safetensors")
    assert (tmp_path / "joined.safetensors").read_bytes() == (tmp_path / "run" / "model.safetensors").read_bytes()
    assert digest == file_sha256(tmp_path / "joined.safetensors")
    assert not list(tmp_path.rglob("*.tmp"))


def test_parts_of_different_saves_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "PART_BYTES", 300_000)
    save(tmp_path / "a", seed=0)
    save(tmp_path / "b", seed=1)
    (tmp_path / "a" / "model-01.part").write_bytes((tmp_path / "b" / "model-01.part").read_bytes())
    with pytest.raises(WeightsError, match="do not add up"):
        join_parts(tmp_path / "a", tmp_path / "out")
    (tmp_path / "a" / "model-01.part").unlink()
    with pytest.raises(WeightsError, match=r"model-01\.part"):
        join_parts(tmp_path / "a", tmp_path / "out")
    with pytest.raises(WeightsError, match="no save"):
        join_parts(tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()


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
    save_weights(tmp_path, tensors(model.network), tensors(model.auxiliary), tensors(model))
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
    assert last_event(tmp_path, "step") is not None
    assert (last_event(tmp_path, "step") or {})["loss"] == 0.5
    assert last_event(tmp_path, "validation") is None
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
