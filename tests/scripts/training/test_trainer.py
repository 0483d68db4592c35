import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from stream_recon.configs.errors import ResourceError
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.weights import load_network
from tests.scripts.training.networks import TINY_NETWORK, tiny_preset
from tests.scripts.training.planes import PlaneScenes
from training import trainer as trainer_module
from training import validation
from training.distributed import Workers, join_workers
from training.losses import Losses
from training.model import TYPICAL_FOV, build_model, compiled_parts
from training.schedule import ClipShape, RateConfig, ScheduleConfig, StepPlan, Visibility
from training.synthetic import SceneGenerator
from training.trainer import Trainer, TrainingConfig
from training.validator import HARD

MIX = ((0.6, 4, 2, 3), (0.4, 2, 3, 2))
ALONE = Workers(0, 1, torch.device("cpu"))


@pytest.fixture(autouse=True)
def _plane_scenes() -> Iterator[None]:
    # One thread: on tensors this small, several lose far more time waiting for one another.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        replace_scenes(patch)
        yield
    torch.set_num_threads(threads)


def replace_scenes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(trainer_module, "SceneGenerator", PlaneScenes)
    patch.setattr(validation, "SceneGenerator", PlaneScenes)


def config(steps: int, **changes: Any) -> TrainingConfig:
    settings: dict[str, Any] = {
        "minutes": 10.0,
        "max_steps": steps,
        "metrics_steps": 10,
        "validation_shape": ClipShape(4, 2, 3),
        "validate_clips": 0,
        "schedule": ScheduleConfig(frames_per_step=16, early=MIX, late=MIX),
        "rate": RateConfig(peak=3e-3, warmup_steps=10),
    }
    return TrainingConfig(**(settings | changes))


def make(folder: Path, settings: TrainingConfig, earlier: Path | None = None) -> Trainer:
    torch.manual_seed(settings.seed)
    files = (earlier / "model.safetensors", earlier / "auxiliary.safetensors") if earlier else ()
    return Trainer(build_model(TINY_NETWORK, *files), tiny_preset(), settings, ALONE, folder)


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


@pytest.mark.slow
def test_a_run_lowers_the_loss_and_leaves_weights_and_metrics(tmp_path: Path) -> None:
    summary = make(tmp_path, config(40, validate_clips=8)).run()
    steps = events(tmp_path, "step")
    assert steps[-1]["step"] == 40 and len(steps) == 4
    assert steps[-1]["loss"] < 0.8 * steps[0]["loss"]
    assert steps[-1]["frames"] == summary["frames"] == 40 * 16
    assert 0 < steps[-1]["learning_rate"] < steps[1]["learning_rate"]
    network = load_network(tmp_path / "model.safetensors", TINY_NETWORK)
    assert all(torch.isfinite(p).all() for p in network.parameters())
    figures = events(tmp_path, "validation")[-1]["figures"]
    assert set(figures) == {"all", "room", "outdoor", "clutter", *HARD} and figures["all"]["clips"] == 8
    latest = events(tmp_path, "validation")[-1]["latest"]
    assert latest["all"]["clips"] == 8 and latest["all"]["absrel"] != figures["all"]["absrel"]
    assert summary["validation"]["all"]["absrel"] == pytest.approx(figures["all"]["absrel"], rel=1e-3)


def test_saved_and_validated_is_the_average(tmp_path: Path) -> None:
    trainer = make(tmp_path, config(5))
    trainer.run()
    saved = load_network(tmp_path / "model.safetensors", TINY_NETWORK)
    average = trainer.parameters.named(trainer.model.network, trainer.average.values)
    for name, value in saved.named_parameters():
        assert torch.equal(value, average[name].bfloat16().float())
    assert not torch.equal(trainer.average.values, trainer.parameters.values)


@pytest.mark.slow
def test_a_second_run_continues_from_the_first_ones_weights(tmp_path: Path) -> None:
    make(tmp_path / "a", config(25)).run()
    first_step = config(1, seed=1, metrics_steps=1)
    make(tmp_path / "continued", first_step, earlier=tmp_path / "a").run()
    make(tmp_path / "fresh", first_step).run()
    continued, fresh = (events(tmp_path / name, "step")[0] for name in ("continued", "fresh"))
    assert continued["loss"] < fresh["loss"] and continued["points"] < 0.7 * fresh["points"]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    def values(seed: int, name: str) -> torch.Tensor:
        trainer = make(tmp_path / name, config(3, seed=seed))
        trainer.run()
        return trainer.parameters.values

    assert torch.equal(values(1, "a"), values(1, "b"))
    assert not torch.equal(values(1, "c"), values(2, "d"))


def test_a_run_does_not_begin_where_compiled_code_says_something_else(tmp_path: Path) -> None:
    trainer = make(tmp_path, config(1))
    plan = trainer.schedule.plan(ClipShape(4, 2, 3))
    trainer.compare_uncompiled(plan)
    depth_head, wrong = trainer.model.network.depth_head, iter([1.0])
    # What is compiled is asked first.
    depth_head.register_forward_hook(lambda _module, _inputs, says: says + next(wrong, 0.0))
    with pytest.raises(ResourceError, match="--no-compile"):
        trainer.compare_uncompiled(plan)


def test_a_run_stops_when_its_minutes_are_over(tmp_path: Path) -> None:
    summary = make(tmp_path, config(100_000, minutes=0.02)).run()
    assert 3 <= summary["steps"] < 1000


def test_getting_ready_runs_every_shape_once_and_learns_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(tmp_path, config(5))
    before, seen = trainer.parameters.values.clone(), []
    whole = trainer.forward_backward
    monkeypatch.setattr(trainer, "forward_backward", lambda plan: (seen.append(plan.shape), whole(plan))[1])
    trainer.compile_shapes()
    assert sorted((s.frames, s.rows, s.columns) for s in seen) == sorted(entry[1:] for entry in MIX)
    assert torch.equal(trainer.parameters.values, before)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_the_rate_follows_the_time_that_is_left_once_all_is_compiled(tmp_path: Path) -> None:
    trainer = make(tmp_path, config(0, minutes=10.0, max_steps=None))
    trainer.ready_at = 240.0
    assert [trainer.progress(1, seconds) for seconds in (100.0, 240.0, 420.0, 600.0, 700.0)] == [0, 0, 0.5, 1, 1]


def test_a_broken_step_is_skipped_counted_and_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(tmp_path, config(20))
    calls = []
    whole = trainer.forward_backward

    def sometimes_broken(plan: StepPlan) -> Losses:
        losses = whole(plan)
        calls.append(plan)
        if len(calls) == 4:
            for parameter in trainer.model.parameters():
                parameter.grad = torch.full_like(parameter, float("nan"))
        return losses

    monkeypatch.setattr(trainer, "forward_backward", sometimes_broken)
    assert trainer.run()["skipped_steps"] == 1
    assert torch.isfinite(trainer.parameters.values).all()
    assert events(tmp_path, "step")[0]["loss"] > 0


@pytest.mark.slow
def test_validation_leaves_the_weights_alone_and_repeats_itself(tmp_path: Path) -> None:
    trainer = make(tmp_path, config(3, validate_clips=8))
    first = trainer.run()["validation"]
    before = trainer.parameters.values.clone()
    again = trainer.validate(None, 3)
    assert again == first
    assert torch.equal(trainer.parameters.values, before)


def _worker(rank: int, count: int, folder: Path) -> None:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        replace_scenes(patch)
        store = folder / "store"
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
        workers = Workers(rank, count, torch.device("cpu"))
        torch.manual_seed(rank)  # workers must agree although they begin apart
        model = build_model(TINY_NETWORK)
        trainer = Trainer(model, tiny_preset(), config(4, validate_clips=8), workers, folder / "run")
        summary = trainer.run()
        trainer.step(trainer.schedule.plan(ClipShape(2, 2, 3)), 1e-3, 5)
        torch.save((trainer.parameters.values, summary["validation"]), folder / f"{rank}.pt")
        workers.close()


@pytest.mark.slow
def test_two_workers_keep_equal_weights_and_share_validation(tmp_path: Path) -> None:
    mp.spawn(_worker, args=(2, tmp_path), nprocs=2)  # type: ignore[no-untyped-call]
    (first, figures), (second, other) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert torch.equal(first, second)
    assert figures == other and figures["all"]["clips"] == 8
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert sum('"event": "end"' in line for line in lines) == 1
    assert json.loads(lines[0])["workers"] == 2


def test_torchruns_variables_name_the_worker() -> None:
    assert join_workers({}) == Workers(0, 1, torch.device("cpu")) or torch.cuda.is_available()


@pytest.mark.slow
def test_a_step_on_the_real_scenes_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "SceneGenerator", SceneGenerator)
    settings = config(1, metrics_steps=1, schedule=ScheduleConfig(frames_per_step=4, early=MIX, late=MIX))
    make(tmp_path, settings).run()
    (step,) = events(tmp_path, "step")
    assert step["gradient_norm"] > 0 and step["skipped_steps"] == 0
    assert all(step[name] > 0 for name in ("relative_rotation", "direction", "depth_error", "flow", "points"))


def test_fresh_weights_start_at_rest_with_a_typical_field_of_view() -> None:
    torch.manual_seed(0)
    model = build_model(TINY_NETWORK).eval()
    images = torch.rand(1, 3, 3, 28, 42)
    with torch.no_grad():
        pose = model(images, Visibility(2, 4, 16), torch.arange(3)[None], flex=False).prediction.head_pose[-1]
    resting = torch.tensor([0.0, 0, 0, 0, 0, 0, 1, *TYPICAL_FOV])
    assert (pose - resting).abs().max() < 0.05


@pytest.mark.parametrize("learns", [True, False])
def test_a_depth_head_is_compiled_only_where_it_learns(learns: bool) -> None:
    network = StreamingNetwork(TINY_NETWORK)
    network.depth_head.requires_grad_(learns)
    assert (network.depth_head in compiled_parts(network)) is learns
