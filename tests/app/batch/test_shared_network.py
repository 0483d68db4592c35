"""Scenes in parallel through one shared network on the CPU, compared with the same scenes in sequence."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file

from stream_recon.app.batch.jobs import EngineLoader
from stream_recon.app.batch.plan import Batch
from stream_recon.app.batch.runner import run_batch
from stream_recon.app.batch.shared_network import SharedNetworkPool, check_streams, shares_by_default
from stream_recon.app.batch.store import LocalStore
from stream_recon.app.batch.workers import Pool, SerialPool
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.configs.errors import ResourceError, WeightsError
from stream_recon.configs.schema import preset_to_toml
from tests.app.batch.fakes import Listening, RoomScene, room_scene
from tests.app.fake_engine import trajectory_of
from tests.app.media import write_images
from tests.app.stages.chains import ONLY_FRAMES
from tests.networks import tiny_network, tiny_preset


def tiny_loader(folder: Path) -> EngineLoader:
    preset = tiny_preset(keyframes="flow", flow_threshold=5.0)
    (folder / "tiny.toml").write_text(preset_to_toml(preset))
    weights = {name: tensor.clone() for name, tensor in tiny_network(preset).state_dict().items()}
    save_file(weights, folder / "tiny.safetensors")
    # Each process would choose its precision by timing.
    return EngineLoader(
        ModelChoice(str(folder / "tiny.toml"), folder / "tiny.safetensors", device="cpu", precision="fp32")
    )


def done(root: Path, scenes: list[RoomScene], store: LocalStore, loader: EngineLoader, pool: Pool) -> list[str]:
    batch = Batch(root, store, scenes, ONLY_FRAMES)
    summary = run_batch(batch, loader, pool, Listening())
    return [scene["status"] for scene in summary["scenes"]]


def test_a_worker_without_the_network_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from stream_recon.app.batch import scene, shared_network\n"
        "from stream_recon.app.core.process import peak_device_memory_mb\n"
        "shared_network.RemoteLoader(None, pathlib.Path()).prepare()\n"
        "assert peak_device_memory_mb('cuda:0') is None\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


@pytest.mark.slow
def test_scenes_in_parallel_have_the_results_of_scenes_in_sequence(tmp_path: Path) -> None:
    root, loader = tmp_path / "data", tiny_loader(tmp_path)
    scenes = [room_scene(root / name, frames, known=False) for name, frames in (("a", 9), ("b", 2), ("c", 12))]
    stores = [LocalStore(tmp_path / name) for name in ("parallel", "serial")]
    pools = [SharedNetworkPool(loader, stores[0], 2), SerialPool(loader, stores[1])]
    for store, pool in zip(stores, pools, strict=True):
        assert done(root, scenes, store, loader, pool) == ["done"] * 3
    for scene in scenes:
        parallel, serial = (trajectory_of(tmp_path / name / scene.name) for name in ("parallel", "serial"))
        assert parallel.shape == serial.shape == (scene.frames, 8)
        assert abs(parallel - serial).max() < 1e-4


@pytest.mark.slow
def test_a_failed_scene_frees_its_batch_slot(tmp_path: Path) -> None:
    root, loader = tmp_path / "data", tiny_loader(tmp_path)
    scenes = [room_scene(root / name, 14 - number, known=False) for number, name in enumerate(("a", "bad", "c", "d"))]
    write_images(root / "bad", ["6.jpg"], (64, 48))
    store = LocalStore(tmp_path / "out")
    pool = SharedNetworkPool(loader, store, 2)
    assert done(root, scenes, store, loader, pool) == ["done", "failed", "done", "done"]
    assert not multiprocessing.active_children(), "workers and the network's process have ended"


@pytest.mark.slow
def test_a_network_that_cannot_be_loaded_ends_the_batch(tmp_path: Path) -> None:
    root, loader = tmp_path / "data", tiny_loader(tmp_path)
    scenes = [room_scene(root / "a", 3, known=False), room_scene(root / "b", 3, known=False)]
    store, pool = LocalStore(tmp_path / "out"), SharedNetworkPool(loader, LocalStore(tmp_path / "out"), 2)
    file = tmp_path / "tiny.safetensors"
    file.write_bytes(file.read_bytes()[:2000])
    batch = Batch(root, store, scenes, ONLY_FRAMES)
    with pytest.raises(WeightsError, match="not a readable"):
        run_batch(batch, loader, pool, Listening())


def test_scenes_share_the_embedded_network_by_default_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineLoader, "gpus", lambda self: ["0"] if self.uses_gpu else [])
    assert shares_by_default(EngineLoader(ModelChoice()))
    assert not shares_by_default(EngineLoader(ModelChoice(device="cpu")))
    assert not shares_by_default(EngineLoader(ModelChoice(cache="fp8")))
    assert not shares_by_default(EngineLoader(ModelChoice(preset="lingbot-map", weights=tmp_path / "full.safetensors")))
    assert not shares_by_default(tiny_loader(tmp_path))


def test_streams_are_refused_where_they_cannot_share(tmp_path: Path) -> None:
    check_streams(EngineLoader(ModelChoice()))
    with pytest.raises(ResourceError, match="--streams needs --cache full, not fp8"):
        check_streams(EngineLoader(ModelChoice(cache="fp8")))
    with pytest.raises(ResourceError, match=r"own attention kernel.*not fa2"):
        check_streams(EngineLoader(ModelChoice(attention="fa2")))


def test_scenes_share_no_network_without_the_calls_of_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows and macOS: each worker loads its own."""
    monkeypatch.delattr("os.memfd_create")
    assert not shares_by_default(EngineLoader(ModelChoice()))
    with pytest.raises(ResourceError, match="--streams needs Linux; use --workers"):
        check_streams(EngineLoader(ModelChoice()))
