"""The trainer of `python scripts/bench splat` on a CPU, with a renderer slow and plain enough for that."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor

SIZE = (24, 18)
K = np.array([[22.0, 0, 12], [0, 22, 9], [0, 0, 1]])


def render_plainly(
    gaussians: dict[str, Any], T_camera_world: Tensor, K: Tensor, size: tuple[int, int], sh_degree: int
) -> tuple[Tensor, dict[str, Any]]:
    """Round Gaussians, drawn from front to back over all pixels; (0.5, 0.5) is the middle of the first pixel."""
    local = gaussians["means"] @ T_camera_world[:3, :3].T + T_camera_world[:3, 3]
    means2d = (local[:, :2] / local[:, 2:] @ K[:2, :2].T + K[:2, 2])[None]
    every_sigma = (gaussians["scales"].exp().mean(1) * K[0, 0] / local[:, 2]).clamp(0.3)
    order = local[:, 2].argsort()
    centre, sigma = means2d[0, order], every_sigma[order]
    y, x = torch.meshgrid(torch.arange(size[1]) + 0.5, torch.arange(size[0]) + 0.5, indexing="ij")
    away = (torch.stack([x, y], -1)[None] - centre[:, None, None]).square().sum(-1)
    alpha = gaussians["opacities"][order].sigmoid()[:, None, None] * torch.exp(
        -away / (2 * sigma.square())[:, None, None]
    )
    through = torch.cumprod(torch.cat([torch.ones_like(alpha[:1]), 1 - alpha[:-1]]), 0)
    colour = 0.5 + 0.28209479177387814 * gaussians["sh0"][order, 0]
    image = torch.einsum("nhw,nc->hwc", alpha * through, colour)[None]
    radii = (3 * every_sigma).ceil()[None, :, None].expand(1, -1, 2)
    info = {"means2d": means2d, "radii": radii, "gaussian_ids": None, "n_cameras": 1}
    return image, {**info, "width": size[0], "height": size[1]}


def row_of_blobs(images: int = 9) -> tuple[Any, Any]:
    """A model of coloured blobs before cameras in a row, and its images."""
    from bench.splat.models import Model

    rng = np.random.default_rng(1)
    points = rng.uniform((-2, -1, 3), (2, 1, 5), (40, 3)).astype(np.float32)
    colours = rng.integers(40, 255, (40, 3)).astype(np.uint8)
    poses = np.tile(np.eye(4), (images, 1, 1))
    poses[:, 0, 3] = np.linspace(-0.7, 0.7, images)
    truth = {
        "means": torch.from_numpy(points),
        "scales": torch.full((40, 3), -1.5),
        "opacities": torch.full((40,), 3.0),
        "sh0": (torch.from_numpy(colours).float()[:, None] / 255 - 0.5) / 0.28209479177387814,
    }
    cameras = torch.from_numpy(np.linalg.inv(poses)).float()
    drawn = [render_plainly(truth, T, torch.from_numpy(K).float(), SIZE, 0)[0][0].clamp(0, 1) for T in cameras]
    names = np.array([f"frame_{number:06d}.png" for number in range(images)])
    counts, grey = np.array([images, 2]), np.full((40, 3), 128, np.uint8)
    model = Model(names, np.arange(images) % 8 == 0, poses, K, points, grey, counts, np.array(1.5))
    return model, np.rint(255 * torch.stack(drawn).numpy()).astype(np.uint8)


def test_training_explains_images_it_has_not_seen(tmp_path: Path) -> None:
    pytest.importorskip("gsplat")
    from bench.splat.models import IMAGES, load_model
    from bench.splat.train import train

    model, images = row_of_blobs()
    model.save(tmp_path / "ours")
    (tmp_path / IMAGES).mkdir()
    for name, image in zip(model.names, images, strict=True):
        cv2.imwrite(str(tmp_path / IMAGES / name), image[..., ::-1])
    read = load_model(tmp_path / "ours")
    assert read.names[0] == "frame_000000.png" and read.held_out.sum() == 2
    assert np.array_equal(read.images(tmp_path / IMAGES), images)
    _, before = train(read, images, torch.device("cpu"), 1, render_plainly)
    _, after = train(read, images, torch.device("cpu"), 90, render_plainly)
    assert set(after.psnr_of) == {"frame_000000.png", "frame_000008.png"}
    assert after.psnr > before.psnr + 3
    assert after.ssim > before.ssim


def test_normalising_keeps_what_a_camera_sees() -> None:
    from bench.splat.train import normalised

    rng = np.random.default_rng(2)
    poses = np.tile(np.eye(4), (5, 1, 1))
    poses[:, :3, 3] = rng.normal(4, 9, (5, 3))
    points = rng.normal(4, 9, (20, 3))
    moved, there = normalised(poses, points)
    assert np.allclose(np.median(np.linalg.norm(moved[:, :3, 3], axis=1)), 1)
    rays = (points - poses[2, :3, 3]) / (there - moved[2, :3, 3])
    assert np.allclose(rays, rays[0, 0])


def test_a_scene_is_read_as_it_was_written_and_floaters_are_seen_off_the_path(tmp_path: Path) -> None:
    from bench.splat.models import load_training_scene, save_training_scene
    from bench.splat.train import floaters, train_product
    from stream_recon.app.splat.trainer import TrainOptions
    from tests.app.splat.blobs import blob_scene
    from tests.app.splat.plain import draw_plainly

    scene = blob_scene()
    save_training_scene(scene, tmp_path)
    read = load_training_scene(tmp_path)
    assert np.abs(read.images.astype(int) - scene.images).mean() < 4 and np.array_equal(read.depths, scene.depths)
    options = TrainOptions(steps=4, max_splats=60, sh_degree=0)
    trainer, figures = train_product(read, options, torch.device("cpu"), draw_plainly)
    assert set(figures.psnr_of) == {"frame_000000.jpg", "frame_000024.jpg"}
    gaussians = {name: torch.nn.Parameter(value.detach().clone()) for name, value in trainer.model.gaussians.items()}
    none = floaters(read, gaussians, trainer, draw_plainly)
    with torch.no_grad():
        gaussians["means"][:9] *= 0.5  # halfway to the cameras
        gaussians["opacities"][:9] = 4
    assert floaters(read, gaussians, trainer, draw_plainly) > none + 0.01
