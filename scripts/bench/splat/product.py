"""The program's own trainer on the images of an export, and a measure of floaters."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from bench.splat.scene import Figures
from stream_recon.app.splat.config import DEFAULT_SPLATS
from stream_recon.app.splat.free_space import in_free_space
from stream_recon.app.splat.rasterizer import Gaussians, Rasterizer, draw_gsplat
from stream_recon.app.splat.scene import TrainingScene
from stream_recon.app.splat.trainer import Trainer, TrainOptions, train

SCENE_NAME = "scene.npz"
MODEL = "trained here"
"""Name of the row in the table."""
QUALITY = 95
OFF_PATH = 0.2
"""Distance of views from the path as a share of the scene's size."""
VIEWS_EVERY = 8


def save_training_scene(scene: TrainingScene, folder: Path) -> None:
    """Write a scene, with its images as JPEG files."""
    folder.mkdir(parents=True, exist_ok=True)
    jpegs = []
    for image in scene.images:
        ok, jpeg = cv2.imencode(".jpg", image[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, QUALITY))
        assert ok
        jpegs.append(jpeg.ravel())
    arrays = {
        name: value for name, value in vars(scene).items() if name not in ("images", "every") and value is not None
    }
    ends = np.cumsum([len(jpeg) for jpeg in jpegs])
    np.savez_compressed(folder / SCENE_NAME, jpegs=np.concatenate(jpegs), ends=ends, every=scene.every, **arrays)


def load_training_scene(folder: Path) -> TrainingScene:
    """What `save_training_scene` wrote there."""
    with np.load(folder / SCENE_NAME) as stored:
        arrays: dict[str, Any] = dict(stored)
    ends = arrays.pop("ends").tolist()
    parts = np.split(arrays.pop("jpegs"), ends[:-1])
    images = [np.asarray(cv2.imdecode(part, cv2.IMREAD_COLOR))[..., ::-1] for part in parts]
    return TrainingScene(images=np.stack(images), **{**arrays, "every": int(arrays["every"])})


def train_product(
    scene: TrainingScene, options: TrainOptions, device: torch.device, draw: Rasterizer = draw_gsplat
) -> tuple[Trainer, Figures]:
    """Train with the program's trainer."""
    trainer = Trainer(scene, options, device, draw)
    held_out = train(trainer, measure_every=options.steps)
    names = {f"frame_{frame:06d}.jpg": psnr for frame, psnr in held_out.psnr_of.items()}
    assert held_out.psnr is not None and held_out.ssim is not None
    return trainer, Figures(held_out.psnr, held_out.ssim, names, len(trainer.model), trainer.seconds)


def off_path_views(scene: TrainingScene) -> list[Tensor]:
    """Cameras [4, 4] from the trainer's world, beside and above the path."""
    low, high = np.quantile(scene.points, [0.05, 0.95], axis=0)
    away = OFF_PATH * float(np.linalg.norm(high - low)) / scene.unit
    views = []
    for pose in scene.T_world_camera[::VIEWS_EVERY]:
        for axis in ((1, 0, 0), (-1, 0, 0), (0, -1, 0)):
            T = pose.copy()
            T[:3, 3] = (pose[:3, 3] - scene.centre) / scene.unit + away * pose[:3, :3] @ np.array(axis)
            views.append(torch.from_numpy(np.linalg.inv(T)).float())
    return views


@torch.no_grad()
def floaters(scene: TrainingScene, gaussians: Gaussians, trainer: Trainer, draw: Rasterizer = draw_gsplat) -> float:
    """Mean opacity, in views off the path, of what lies in space that depth maps see free, held-out ones included.

    ``trainer``: of the same scene; its cameras and depth serve. ``gaussians``: in its world.
    """
    device = gaussians["means"].device
    maps = (
        (n, torch.from_numpy(scene.depths[n].astype(np.float32)).to(device) / scene.unit,
         torch.from_numpy(scene.certainties[n]).to(device))
        for n in range(len(scene.frames))
    )  # fmt: skip
    sizes = torch.zeros(len(gaussians["means"]), device=device)
    floating = in_free_space(
        gaussians["means"].detach(), sizes, trainer.cameras, trainer.small_K, maps, DEFAULT_SPLATS.floaters
    )
    alone = {name: torch.nn.Parameter(value[floating]) for name, value in gaussians.items()}
    if not floating.any():
        return 0.0
    views = [view.to(device) for view in off_path_views(scene)]
    return float(np.mean([draw(alone, T, trainer.K, scene.size, 0).alpha.mean().item() for T in views]))
