"""The trainer by what it does, on a small scene that a plain rasterizer draws."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stream_recon.app.splat.config import DEFAULT_SPLATS, CorrectionConfig
from stream_recon.app.splat.scene import HELD_OUT_EVERY, TrainingScene
from stream_recon.app.splat.trainer import Trainer, TrainOptions, train
from tests.app.splat.blobs import blob_scene, shifted
from tests.app.splat.plain import draw_plainly

CPU = torch.device("cpu")
OPTIONS = TrainOptions(steps=60, max_splats=80, sh_degree=1)


@pytest.fixture(scope="module")
def scene() -> TrainingScene:
    return blob_scene()


def trained(scene: TrainingScene, options: TrainOptions = OPTIONS, steps: int | None = None) -> Trainer:
    trainer = Trainer(scene, options, CPU, draw_plainly)
    while trainer.step < (options.steps if steps is None else steps):
        trainer.advance()
    return trainer


def test_held_out_images_are_explained_better_and_better(scene: TrainingScene) -> None:
    trainer = Trainer(scene, OPTIONS, CPU, draw_plainly)
    before = trainer.measure()
    after = train(trainer)
    assert set(after.psnr_of) == set(scene.frames[::HELD_OUT_EVERY].tolist()) and before.psnr and after.psnr
    assert after.psnr > before.psnr + 1
    assert after.ssim is not None and before.ssim is not None and after.ssim > before.ssim


def test_a_training_never_exceeds_its_bound(scene: TrainingScene) -> None:
    counts = []
    trainer = Trainer(scene, OPTIONS, CPU, draw_plainly)
    assert len(trainer.model) <= 80
    train(trainer, lambda t: bool(counts.append(len(t.model)) or True))
    assert max(counts) == 80, "it grows up to the bound"
    few = Trainer(scene, replace(OPTIONS, max_splats=10), CPU, draw_plainly)
    assert len(few.model) == 10


def test_a_short_training_moves_positions_as_far_as_a_long_one() -> None:
    assert TrainOptions(steps=7_000).rate_factor == TrainOptions(steps=30_000).rate_factor == 1
    assert TrainOptions(steps=2_000).rate_factor == pytest.approx(3.5)
    assert TrainOptions(steps=10).rate_factor == TrainOptions(steps=100).rate_factor <= 5


def test_a_training_that_goes_on_ends_as_one_that_was_not_stopped(scene: TrainingScene) -> None:
    whole = trained(scene)
    half = trained(scene, steps=25)
    state = {name: value.clone() for name, value in half.state().items()}
    other = Trainer(scene, OPTIONS, CPU, draw_plainly)
    other.load(state)
    assert other.step == 25
    train(other)
    for name, value in whole.model.gaussians.items():
        assert torch.allclose(value, other.model.gaussians[name], atol=1e-5), name
    assert torch.allclose(whole.corrections.poses, other.corrections.poses, atol=1e-6)


def test_what_is_excluded_does_not_count(scene: TrainingScene) -> None:
    excluded = np.zeros(scene.images.shape[:3], np.bool_)
    excluded[:, :, :12] = True
    spoiled = scene.images.copy()
    spoiled[:, :, :12] = np.random.default_rng(0).integers(0, 255, spoiled[:, :, :12].shape)
    masked = replace(scene, excluded=excluded)
    clean, dirty = trained(masked, steps=10), trained(replace(masked, images=spoiled), steps=10)
    for name, value in clean.model.gaussians.items():
        assert torch.allclose(value, dirty.model.gaussians[name]), name
    assert clean.measure().psnr == pytest.approx(dirty.measure().psnr)


def test_a_camera_at_a_wrong_place_moves_back(scene: TrainingScene) -> None:
    # The scene's true Gaussians, which do not move: what is left to explain is the pose.
    from tests.app.splat.blobs import blob_splats, tensors

    tuning = replace(DEFAULT_SPLATS, corrections=CorrectionConfig(pose_rate=3e-3))
    wrong = shifted(scene, 4, (0.15, 0, 0))
    trainer = Trainer(wrong, replace(OPTIONS, exposure=False, tuning=tuning), CPU, draw_plainly)
    truth = blob_splats().scaled(-wrong.centre / wrong.unit, 1 / wrong.unit)
    for name, value in tensors(truth).items():
        trainer.model.gaussians[name] = value
    points = torch.cat([trainer.model.gaussians["means"].detach(), torch.ones(60, 1)], 1)

    def pixels(T: torch.Tensor) -> torch.Tensor:
        local = points @ T[:3].T
        return 28 * local[:, :2] / local[:, 2:]

    T = torch.from_numpy(np.linalg.inv(scene.T_world_camera[4])).float()
    T[:3, 3] = T[:3, :3] @ torch.from_numpy(wrong.centre - scene.T_world_camera[4, :3, 3]).float() / wrong.unit
    away = []
    for _ in range(60):
        drawing = trainer.drawing(4, 0)
        pose = trainer.corrections.pose(4, trainer.cameras[4]).detach()
        away.append((pixels(pose) - pixels(T)).norm(dim=1).mean().item())
        (drawing.rgb - trainer.image(4)).abs().mean().backward()  # type: ignore[no-untyped-call]
        trainer.corrections.step(0.0, 1.0, poses=True)
    assert away[0] > 0.8 and away[-1] < 0.4 * away[0]


def test_splats_are_in_the_world_of_the_result(scene: TrainingScene) -> None:
    splats = Trainer(scene, replace(OPTIONS, max_splats=1000), CPU, draw_plainly).splats
    assert np.allclose(splats.means[: len(scene.points)], scene.points, atol=1e-4)
    moved = replace(scene, T_world_camera=scene.T_world_camera.copy(), points=scene.points * 10 + 5)
    moved.T_world_camera[:, :3, 3] = moved.T_world_camera[:, :3, 3] * 10 + 5
    larger = Trainer(moved, replace(OPTIONS, max_splats=1000), CPU, draw_plainly).splats
    assert np.allclose(larger.means, splats.means * 10 + 5, atol=1e-2)
    assert np.allclose(larger.scales, splats.scales + np.log(10), atol=1e-3)


def test_stopping_keeps_what_is_there(scene: TrainingScene) -> None:
    trainer = Trainer(scene, OPTIONS, CPU, draw_plainly)
    held_out = train(trainer, lambda t: t.step < 7)
    assert trainer.step == 7 and not trainer.is_done and held_out.psnr is not None


@pytest.mark.parametrize(("weight", "name"), [("scale_weight", "scales"), ("opacity_weight", "opacities")])
def test_penalties_make_splats_smaller_and_more_transparent(scene: TrainingScene, weight: str, name: str) -> None:
    free, held = (trained(scene, replace(OPTIONS, **{weight: value}), steps=5) for value in (0.0, 10.0))
    assert held.model.gaussians[name].mean() < free.model.gaussians[name].mean() - 0.01
