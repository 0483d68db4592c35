"""A small scene of coloured blobs before cameras in a row, with its true images and depth."""

from dataclasses import replace

import numpy as np
import torch

from stream_recon.app.core.splats import SH_0, Splats
from stream_recon.app.splat.scene import TrainingScene
from tests.app.splat.plain import draw_plainly

SIZE = (32, 24)
K = np.array([[28.0, 0, 16], [0, 28, 12], [0, 0, 1]])


def blob_splats(count: int = 60) -> Splats:
    """Blobs on a wavy wall that fills the view."""
    rng = np.random.default_rng(1)
    x, y = rng.uniform(-3, 3, count), rng.uniform(-2.2, 2.2, count)
    means = np.stack([x, y, 4 + 0.4 * np.sin(2 * x)], axis=1).astype(np.float32)
    sh = ((rng.uniform(0.1, 1, (count, 1, 3)) - 0.5) / SH_0).astype(np.float32)
    scales = np.log(rng.uniform(0.3, 0.6, (count, 3))).astype(np.float32)
    quats = rng.normal(size=(count, 4)).astype(np.float32)
    return Splats(means, scales, quats, np.full(count, 3.0, np.float32), sh)


def tensors(splats: Splats) -> dict[str, torch.nn.Parameter]:
    """The parameters of a rasterizer."""
    values = {
        "means": splats.means,
        "scales": splats.scales,
        "quats": splats.quats,
        "opacities": splats.opacities,
        "sh0": splats.sh[:, :1],
        "shN": splats.sh[:, 1:],
    }
    return {name: torch.nn.Parameter(torch.from_numpy(np.ascontiguousarray(value))) for name, value in values.items()}


@torch.no_grad()
def blob_scene(images: int = 10) -> TrainingScene:
    """Images of the blobs with depth that is confirmed everywhere, and points of them all in pale colours."""
    truth = blob_splats()
    gaussians = tensors(truth)
    poses = np.tile(np.eye(4), (images, 1, 1))
    poses[:, 0, 3] = np.linspace(-0.8, 0.8, images)
    poses[:, 1, 3] = 0.2 * np.cos(np.arange(images))
    pictures, depths = [], []
    for pose in poses:
        drawing = draw_plainly(
            gaussians, torch.from_numpy(np.linalg.inv(pose)).float(), torch.from_numpy(K).float(), SIZE, 0
        )
        pictures.append(np.rint(255 * drawing.rgb.clamp(0, 1).numpy()).astype(np.uint8))
        depths.append(np.where(drawing.alpha.numpy() > 0.9, drawing.depth.numpy(), 0).astype(np.float16))
    depth = np.stack(depths)
    return TrainingScene(
        np.arange(images, dtype=np.int64) * 3,
        poses,
        K,
        np.stack(pictures),
        depth,
        np.where(depth > 0, 3, 0).astype(np.uint8),
        truth.means,
        np.rint(255 * (0.5 * truth.rgb + 0.25)).astype(np.uint8),
    )


def shifted(scene: TrainingScene, number: int, by: tuple[float, float, float]) -> TrainingScene:
    """The scene with one camera at a wrong place."""
    poses = scene.T_world_camera.copy()
    poses[number, :3, 3] += by
    return replace(scene, T_world_camera=poses)
