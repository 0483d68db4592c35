"""Train a splat with gsplat's rasteriser and its default strategy, and measure it on images that were held out.

Loss, rates, schedules and thresholds are those of the published 3D Gaussian splatting (Kerbl et al. 2023) as gsplat's
example trainer has them: 0.8 L1 + 0.2 (1 - SSIM), one image a step, a band of spherical harmonics more every 1,000
steps, positions' rate falling to a hundredth in 30,000 steps, Gaussians cloned, split and pruned every 100 steps.
"""

import math
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bench.splat.models import IMAGES, MODEL_NAME, OURS, OWN, Figures, Model, load_model, load_training_scene
from bench.table import header, row
from stream_recon.app.core.splats import SH_0
from stream_recon.app.splat import trainer as own
from stream_recon.app.splat.config import DEFAULT_SPLATS
from stream_recon.app.splat.free_space import in_free_space
from stream_recon.app.splat.losses import image_loss, ssim
from stream_recon.app.splat.model import neighbour_distance
from stream_recon.app.splat.rasterizer import Gaussians, Rasterizer, draw_gsplat, gsplat_rasterization
from stream_recon.app.splat.scene import TrainingScene
from stream_recon.app.splat.trainer import Trainer, TrainOptions

SCHEDULE = 30_000
SH_DEGREE, SH_EVERY = 3, 1_000
FIRST_OPACITY = 0.1
OFF_PATH = 0.2
"""Distance of views from the path as a share of the scene's size."""
VIEWS_EVERY = 8

Optimizers = dict[str, torch.optim.Optimizer]


class Render(Protocol):
    """Draws Gaussians as a camera sees them: an image [1, h, w, 3], and what the strategy wants to know of it."""

    def __call__(
        self, gaussians: Gaussians, T_camera_world: Tensor, K: Tensor, size: tuple[int, int], sh_degree: int
    ) -> tuple[Tensor, dict[str, Any]]: ...


def render_gsplat(
    gaussians: Gaussians, T_camera_world: Tensor, K: Tensor, size: tuple[int, int], sh_degree: int
) -> tuple[Tensor, dict[str, Any]]:
    drawn, _, info = gsplat_rasterization(gaussians, T_camera_world, K, size, sh_degree)
    return drawn[..., :3], info


def train_all(root: Path, steps: int) -> None:
    """Print a row for each model under ``root/SCENE``; PSNR in common: over images that all models of a scene have."""
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device is here")
    device = torch.device("cuda")
    columns = "held out", "PSNR", "in common", "SSIM", "Gaussians", "training s", "opacity in free space"
    header("scene", "model", "images, core s", *columns)
    for scene in sorted({path.parents[1] for path in root.glob(f"*/*/{MODEL_NAME}")}):
        models = {path.parent.name: load_model(path.parent) for path in sorted(scene.glob(f"*/{MODEL_NAME}"))}
        of_product = load_training_scene(scene / OWN)
        trainer, figures = train_product(of_product, TrainOptions(steps=steps), device)
        done = {OWN: figures}
        for name, model in models.items():
            gaussians, done[name] = train(model, model.images(scene / IMAGES), device, steps)
            if name == OURS:  # the world of the program's own training
                done[name] = done[name].off_path(floaters(of_product, gaussians, trainer))
        common = set.intersection(*(set(figures.psnr_of) for figures in done.values()))
        for name, figures in done.items():
            model = models.get(name, models[OURS])
            row(
                scene.name,
                name,
                f"{len(model.names)} of {model.chosen[0]}, {model.seconds:.0f}",
                f"{model.held_out.sum()} of {model.chosen[1]}",
                f"{figures.psnr:.2f}",
                f"{np.mean([figures.psnr_of[image] for image in common]):.2f}",
                f"{figures.ssim:.3f}",
                figures.gaussians,
                f"{figures.seconds:.0f}",
                f"{figures.floaters:.4f}",
            )


def train_product(
    scene: TrainingScene, options: TrainOptions, device: torch.device, draw: Rasterizer = draw_gsplat
) -> tuple[Trainer, Figures]:
    """Train with the program's trainer."""
    trainer = Trainer(scene, options, device, draw)
    held_out = own.train(trainer, measure_every=options.steps)
    names = {f"frame_{frame:06d}.jpg": psnr for frame, psnr in held_out.psnr_of.items()}
    assert held_out.ssim is not None
    opacity = floaters(scene, trainer.model.gaussians, trainer, draw)
    return trainer, Figures(names, held_out.ssim, len(trainer.model), trainer.seconds, opacity)


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


def train(
    model: Model, pictures: NDArray[np.uint8], device: torch.device, steps: int, render: Render = render_gsplat
) -> tuple[Gaussians, Figures]:
    """Train plainly on images [n, h, w, 3] but the held-out ones, and measure on these; in `normalised` axes."""
    from gsplat import DefaultStrategy

    begin = time.perf_counter()
    torch.manual_seed(0)
    poses, points = normalised(model.T_world_camera, model.points)
    extent = 1.1 * float(np.linalg.norm(poses[:, :3, 3], axis=1).max())
    cameras = torch.from_numpy(np.linalg.inv(poses)).float().to(device)
    K = torch.from_numpy(model.K).float().to(device)
    images, size = torch.from_numpy(pictures).to(device), (pictures.shape[2], pictures.shape[1])
    gaussians = first_gaussians(points, model.colours, device)
    optimizers = make_optimizers(gaussians, extent)
    falling = torch.optim.lr_scheduler.ExponentialLR(optimizers["means"], 0.01 ** (1 / SCHEDULE))
    strategy = DefaultStrategy()
    strategy.check_sanity(gaussians, optimizers)
    state = strategy.initialize_state(scene_scale=extent)
    trained = np.flatnonzero(~model.held_out)
    order = np.random.default_rng(0)
    queue: list[int] = []
    for step in range(steps):
        if not queue:
            queue = order.permutation(trained).tolist()
        number = queue.pop()
        target = images[number][None].float() / 255
        image, info = render(gaussians, cameras[number], K, size, min(step // SH_EVERY, SH_DEGREE))
        strategy.step_pre_backward(gaussians, optimizers, state, step, info)
        loss = image_loss(image[0], target[0], None, DEFAULT_SPLATS.losses.ssim_share)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        falling.step()
        strategy.step_post_backward(gaussians, optimizers, state, step, info, packed=False)
    seconds = time.perf_counter() - begin
    psnr: dict[str, float] = {}
    similar = []
    with torch.no_grad():
        for number in np.flatnonzero(model.held_out).tolist():
            target = images[number].float() / 255
            image = render(gaussians, cameras[number], K, size, SH_DEGREE)[0][0].clamp(0, 1)
            psnr[str(model.names[number])] = -10 * math.log10(max(F.mse_loss(image, target).item(), 1e-12))
            similar.append(ssim(image, target, padding=0).item())
    return gaussians, Figures(psnr, float(np.mean(similar)), len(gaussians["means"]), seconds)


def normalised(
    T_world_camera: NDArray[np.float64], points: NDArray[np.floating]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Poses and points in a world whose origin lies amid the cameras, at a median distance of 1 from it.

    Rates and thresholds mean lengths in such a world.
    """
    centre = T_world_camera[:, :3, 3].mean(axis=0)
    scale = 1 / max(float(np.median(np.linalg.norm(T_world_camera[:, :3, 3] - centre, axis=1))), 1e-9)
    poses = T_world_camera.copy()
    poses[:, :3, 3] = (poses[:, :3, 3] - centre) * scale
    return poses, (np.asarray(points, np.float64) - centre) * scale


def first_gaussians(points: NDArray[np.floating], colours: NDArray[np.uint8], device: torch.device) -> Gaussians:
    """A Gaussian at each point, as large as its three nearest neighbours are far."""
    size = neighbour_distance(np.asarray(points, np.float64)).clip(1e-7)
    n, bands = len(points), (SH_DEGREE + 1) ** 2
    sh = torch.zeros(n, bands, 3)
    sh[:, 0] = (torch.from_numpy(colours.astype(np.float32)) / 255 - 0.5) / SH_0
    values = {
        "means": torch.from_numpy(points.astype(np.float32)),
        "scales": torch.from_numpy(np.log(size).astype(np.float32))[:, None].repeat(1, 3),
        "quats": torch.rand(n, 4),
        "opacities": torch.full((n,), math.log(FIRST_OPACITY / (1 - FIRST_OPACITY))),
        "sh0": sh[:, :1].contiguous(),
        "shN": sh[:, 1:].contiguous(),
    }
    return {name: torch.nn.Parameter(value.to(device)) for name, value in values.items()}


def make_optimizers(gaussians: Gaussians, extent: float) -> Optimizers:
    """One for each kind of parameter, as the strategy wants; positions move with the scene's extent."""
    return {
        name: torch.optim.Adam([gaussians[name]], lr=rate * (extent if name == "means" else 1), eps=1e-15, fused=True)
        for name, rate in DEFAULT_SPLATS.model.rates
    }
