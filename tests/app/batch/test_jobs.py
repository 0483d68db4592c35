import hashlib
from pathlib import Path

import pytest
import torch

from stream_recon.app.batch.jobs import EngineLoader, folder_names, job_key
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.configs.errors import WeightsError
from tests.app.batch.fakes import RoomLoader, room_scene
from tests.app.stages.chains import ONLY_FRAMES


def test_folder_names_are_fit_for_folders_and_all_different() -> None:
    names = folder_names(["chess/seq-01", "Chess-seq-01", "a b", "größe", "..", "summary.json", "x" * 400, "x" * 401])
    assert names[:6] == ["chess-seq-01", "Chess-seq-01-2", "a b", "größe", "scene", "summary.json-scene"]
    assert len({name.casefold() for name in names}) == 8
    assert all(len(name.encode()) <= 210 and "/" not in name for name in names)
    assert not any(name.startswith(".") for name in folder_names([".work", ".batch.lock"]))


def test_a_choice_counts_the_frames_that_it_takes() -> None:
    assert [FrameChoice().count(n) for n in (None, 0, 7)] == [None, 0, 7]
    assert [FrameChoice(stride=3).count(n) for n in (1, 6, 7)] == [1, 2, 3]
    assert FrameChoice(3, max_frames=2).count(7) == 2 and FrameChoice(max_frames=5).count(None) == 5


def test_the_key_does_not_depend_on_where_the_root_is(tmp_path: Path) -> None:
    keys = []
    for root in (tmp_path / "here", tmp_path / "there"):
        keys.append(job_key(root, room_scene(root / "deep" / "a"), ONLY_FRAMES, RoomLoader().describe()))
    assert keys[0] == keys[1] and keys[0]["scene"]["path"] == "deep/a"


def test_a_model_is_described_by_its_weights_without_being_loaded(tmp_path: Path) -> None:
    weights = tmp_path / "any.safetensors"
    content = (2).to_bytes(8, "little") + b"{}"
    weights.write_bytes(content)
    model = EngineLoader(ModelChoice("small", weights, "cpu", keyframes="7")).describe()
    assert model.weights_sha256 == hashlib.sha256(content).hexdigest() and model.preset.stream.keyframe_interval == 7
    with pytest.raises(WeightsError, match="no weights at"):
        EngineLoader(ModelChoice("small", tmp_path / "none.safetensors")).describe()
    with pytest.raises(WeightsError, match="no embedded weights"):
        EngineLoader(ModelChoice("lingbot-map")).describe()


def test_the_gpus_are_those_that_the_user_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    loader = EngineLoader(ModelChoice("small", device="cuda"))
    assert loader.gpus() == ["0", "1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,5")
    assert loader.gpus() == ["GPU-a", "5"]
    assert EngineLoader(ModelChoice("small", device="cpu")).gpus() == []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert loader.gpus() == []
