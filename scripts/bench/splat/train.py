"""Train a splat with gsplat's rasteriser and its default strategy, and measure it on images that were held out.

Loss, rates, schedules and thresholds are those of the published 3D Gaussian splatting (Kerbl et al. 2023) as gsplat's
example trainer has them: 0.8 L1 + 0.2 (1 - SSIM), one image a step, a band of spherical harmonics more every 1,000
steps, positions' rate falling to a hundredth in 30,000 steps, Gaussians cloned, split and pruned every 100 steps.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bench.splat.product import MODEL, SCENE_NAME, floaters, load_training_scene, train_product
from bench.splat.scene import Figures, Scene, load_scene
from stream_recon.app.core.splats import SH_0
from stream_recon.app.splat.config import DEFAULT_SPLATS
from stream_recon.app.splat.losses import image_loss, ssim
from stream_recon.app.splat.model import neighbour_distance
from stream_recon.app.splat.rasterizer import Gaussians, draw_gsplat, gsplat_rasterization
from stream_recon.app.splat.trainer import Trainer, TrainOptions

STEPS = 7_000
SCHEDULE = 30_000
SH_DEGREE, SH_EVERY = 3, 1_000
FIRST_OPACITY = 0.1
COMPARED = "refined-dense"
"""Model of the same poses as the program's own training, whose floaters are compared."""

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


def train_one(folder: Path, device: str, steps: int) -> Figures:
    """Train in a worker process. Not in `__main__`, where a spawned process cannot find a function by name."""
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    name = f"{folder.parent.name}/{folder.name}"
    on, beside = torch.device(device), folder.parent / MODEL
    trained_here = (folder / SCENE_NAME).is_file()
    if trained_here:
        trainer, figures = train_product(load_training_scene(folder), TrainOptions(steps=steps), on)
        gaussians = trainer.model.gaussians
    else:
        tell = partial(print, name, flush=True)
        gaussians, figures = train(load_scene(folder), on, steps, tell=tell)
    memory = torch.cuda.max_memory_allocated(on) / 1e9 if on.type == "cuda" else math.nan
    figures = replace(figures, memory_gb=memory)
    if not trained_here and not (folder.name == COMPARED and (beside / SCENE_NAME).is_file()):
        return figures
    scene = load_training_scene(beside)
    if not trained_here:
        trainer = Trainer(scene, TrainOptions(), on, draw_gsplat)
    return replace(figures, floaters=floaters(scene, gaussians, trainer))


def train(
    scene: Scene,
    device: torch.device,
    steps: int = STEPS,
    render: Render = render_gsplat,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[Gaussians, Figures]:
    """Train on a scene's images but the held-out ones, and measure on these. The Gaussians are in `normalised` axes."""
    from gsplat import DefaultStrategy

    begin = time.perf_counter()
    torch.manual_seed(0)
    poses, points = normalised(scene.T_world_camera, scene.points)
    extent = 1.1 * float(np.linalg.norm(poses[:, :3, 3], axis=1).max())
    cameras = torch.from_numpy(np.linalg.inv(poses)).float().to(device)
    K = torch.from_numpy(scene.K).float().to(device)
    images = torch.from_numpy(scene.images()).to(device)
    gaussians = first_gaussians(points, scene.colours, device)
    optimizers = make_optimizers(gaussians, extent)
    falling = torch.optim.lr_scheduler.ExponentialLR(optimizers["means"], 0.01 ** (1 / SCHEDULE))
    strategy = DefaultStrategy()
    strategy.check_sanity(gaussians, optimizers)
    state = strategy.initialize_state(scene_scale=extent)
    trained = np.flatnonzero(~scene.held_out)
    order = np.random.default_rng(0)
    queue: list[int] = []
    for step in range(steps):
        if not queue:
            queue = order.permutation(trained).tolist()
        number = queue.pop()
        wanted = images[number][None].float() / 255
        image, info = render(gaussians, cameras[number], K, scene.size, min(step // SH_EVERY, SH_DEGREE))
        strategy.step_pre_backward(gaussians, optimizers, state, step, info)
        loss = image_loss(image[0], wanted[0], None, DEFAULT_SPLATS.losses.ssim_share)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        falling.step()
        strategy.step_post_backward(gaussians, optimizers, state, step, info, packed=False)
        if step % 1000 == 999:
            tell(f"step {step + 1}: loss {loss.item():.4f}, {len(gaussians['means'])} Gaussians")
    seconds = time.perf_counter() - begin
    psnr, similar = measure(scene, images, gaussians, cameras, K, render)
    return gaussians, Figures(
        float(np.mean(list(psnr.values()))) if psnr else math.nan,
        float(np.mean(similar)) if similar else math.nan,
        psnr,
        len(gaussians["means"]),
        seconds,
    )


@torch.no_grad()
def measure(
    scene: Scene, images: Tensor, gaussians: Gaussians, cameras: Tensor, K: Tensor, render: Render
) -> tuple[dict[str, float], list[float]]:
    """PSNR by name, and SSIM, of the held-out images."""
    psnr: dict[str, float] = {}
    similar = []
    for number in np.flatnonzero(scene.held_out).tolist():
        wanted = images[number][None].float() / 255
        image = render(gaussians, cameras[number], K, scene.size, SH_DEGREE)[0].clamp(0, 1)
        psnr[scene.names[number]] = -10 * math.log10(max(F.mse_loss(image, wanted).item(), 1e-12))
        similar.append(ssim(image[0], wanted[0], padding=0).item())
    return psnr, similar


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
