import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stream_recon.app.engine.engine import load_engine
from stream_recon.configs.errors import WeightsError
from stream_recon.configs.schema import load_preset
from stream_recon.models.embedded import file_sha256
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.weights import convert_checkpoint, from_published, load_network, read_tensors, rename_published
from tests.networks import tiny_network, tiny_preset

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"


def published_tensors() -> dict[str, torch.Tensor]:
    """A tiny network's tensors under names that a published checkpoint would use for some of them."""
    tensors = {k: v.clone() for k, v in tiny_network(tiny_preset()).state_dict().items()}
    renamed = {}
    for name, tensor in tensors.items():
        name = name.replace("encoder.patch_embed.", "aggregator.patch_embed.patch_embed.proj.")
        name = "aggregator.patch_embed." + name.removeprefix("encoder.") if name.startswith("encoder.") else name
        renamed[name.replace("camera_head.modulation.", "camera_head.poseLN_modulation.1.")] = tensor
    renamed["aggregator.patch_embed.mask_token"] = torch.zeros(1, 64)
    return renamed


def test_saved_weights_load_back(tmp_path: Path) -> None:
    preset = tiny_preset()
    network = tiny_network(preset)
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    loaded = load_network(tmp_path / "w.safetensors", preset.network).state_dict()
    assert all(torch.equal(t, loaded[name]) for name, t in network.state_dict().items())


def test_a_point_head_is_left_out_where_there_is_none(tmp_path: Path) -> None:
    preset = tiny_preset()
    tensors = tiny_network(preset).state_dict() | {"point_head.norm.weight": torch.zeros(3)}
    save_file(tensors, tmp_path / "w.safetensors")
    assert load_network(tmp_path / "w.safetensors", preset.network).state_dict().keys() == tensors.keys() - {
        "point_head.norm.weight"
    }
    with pytest.raises(WeightsError, match="point_head"):
        load_network(tmp_path / "w.safetensors", replace(preset.network, point_head=True))


def test_module_names_of_the_embedded_file_load(tmp_path: Path) -> None:
    preset = tiny_preset(keyframe_matcher=True)
    network = tiny_network(preset)
    names = (("odometry.flow_head.", "step_head."), ("odometry.keyframe_matcher.", "look_back."))
    old = network.state_dict()
    for new_prefix, old_prefix in names:
        assert any(name.startswith(new_prefix) for name in old)
        old = {name.replace(new_prefix, old_prefix): tensor for name, tensor in old.items()}
    save_file(old, tmp_path / "w.safetensors")
    loaded = load_network(tmp_path / "w.safetensors", preset.network).state_dict()
    assert all(torch.equal(t, loaded[name]) for name, t in network.state_dict().items())


def test_published_names_load_directly_and_after_conversion(tmp_path: Path) -> None:
    preset, tensors = tiny_preset(), published_tensors()
    save_file(tensors, tmp_path / "p.safetensors")
    direct = load_network(tmp_path / "p.safetensors", preset.network).state_dict()
    torch.save({"model": tensors}, tmp_path / "p.pt")
    assert convert_checkpoint(tmp_path / "p.pt", tmp_path / "c.safetensors") == len(tensors) - 1
    converted = load_network(tmp_path / "c.safetensors", preset.network).state_dict()
    expected = tiny_network(preset).state_dict()
    assert all(torch.equal(direct[n], t) and torch.equal(converted[n], t) for n, t in expected.items())


def test_a_missing_an_unexpected_and_a_misshapen_tensor_are_named(tmp_path: Path) -> None:
    preset, path = tiny_preset(), tmp_path / "w.safetensors"
    good = {k: v.contiguous() for k, v in tiny_network(preset).state_dict().items()}
    victim = "depth_head.out3.weight"
    save_file({k: v for k, v in good.items() if k != victim}, path)
    with pytest.raises(WeightsError, match=f"{victim} is missing"):
        load_network(path, preset.network)
    save_file({**good, "depth_head.extra": torch.zeros(1)}, path)
    with pytest.raises(WeightsError, match=r"depth_head\.extra is unexpected"):
        load_network(path, preset.network)
    save_file({**good, victim: torch.zeros(3, 3)}, path)
    with pytest.raises(WeightsError, match=rf"{victim} has shape \[3, 3\]"):
        load_network(path, preset.network)


def test_files_of_another_kind_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"not tensors")
    (tmp_path / "some.pt").write_bytes(b"pickle")
    for name in ("absent.safetensors", "broken.safetensors", "some.pt"):
        with pytest.raises(WeightsError) as caught:
            read_tensors(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_checkpoints_of_another_family_or_with_code_are_refused(tmp_path: Path) -> None:
    torch.save({"layer.weight": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(WeightsError, match="family"):
        convert_checkpoint(tmp_path / "other.pt", tmp_path / "o.safetensors")
    torch.save({"model": Path("code")}, tmp_path / "code.pt")
    with pytest.raises(WeightsError, match="refused"):
        convert_checkpoint(tmp_path / "code.pt", tmp_path / "o.safetensors")
    assert not (tmp_path / "o.safetensors").exists()


def test_published_levels_count_from_one_and_ours_from_zero() -> None:
    assert rename_published("depth_head.scratch.layer1_rn.weight") == "depth_head.reduce.0.weight"
    name = "point_head.scratch.refinenet4.resConfUnit2.conv1.bias"
    assert rename_published(name) == "point_head.fusions.3.refine.conv1.bias"


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="no reference values here")
def test_the_full_network_has_the_published_tensors() -> None:
    shapes = {}
    for line in (GOLDEN / "lingbot-map.keys.tsv").read_text().splitlines():
        name, shape = line.split("\t")
        shapes[name] = torch.empty([int(n) for n in shape.split("x")], device="meta")
    with torch.device("meta"):
        ours = StreamingNetwork(load_preset("lingbot-map").network).state_dict()
    renamed = from_published(shapes)
    assert {k: v.shape for k, v in renamed.items()} == {k: v.shape for k, v in ours.items()}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_tensor_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    preset = tiny_preset()
    tensors = {name: t.clone() for name, t in tiny_network(preset).state_dict().items()}
    tensors["camera_head.pose_branch.fc2.bias"][4] = value
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=r"camera_head\.pose_branch\.fc2\.bias holds inf or nan"):
        load_network(tmp_path / "w.safetensors", preset.network)


def test_weights_that_are_all_zero_are_refused(tmp_path: Path) -> None:
    preset = tiny_preset()
    save_file(
        {k: torch.zeros_like(t) for k, t in tiny_network(preset).state_dict().items()}, tmp_path / "w.safetensors"
    )
    with pytest.raises(WeightsError, match="all its matrices are zero"):
        load_network(tmp_path / "w.safetensors", preset.network)


def test_a_device_is_refused_before_it_is_read() -> None:
    with pytest.raises(WeightsError, match="/dev/zero is not a file"):
        load_engine("small", Path("/dev/zero"), "cpu")


def test_the_hash_of_a_file_is_that_of_its_content(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "a").write_bytes(content)
    assert file_sha256(tmp_path / "a") == hashlib.sha256(content).hexdigest()
