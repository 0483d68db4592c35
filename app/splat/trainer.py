"""Training of Gaussian splats on a scene: one image a step, with poses, focal length and exposure refined along."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from stream_recon.app.core.splats import Splats
from stream_recon.app.splat.config import DEFAULT_SPLATS, SplatConfig
from stream_recon.app.splat.corrections import Corrections
from stream_recon.app.splat.densification import Densification, bounded
from stream_recon.app.splat.free_space import in_free_space
from stream_recon.app.splat.losses import depth_loss, image_loss, normal_loss, ssim
from stream_recon.app.splat.model import SplatModel
from stream_recon.app.splat.rasterizer import Drawing, Rasterizer
from stream_recon.app.splat.scene import TrainingScene


@dataclass(frozen=True)
class TrainOptions:
    """Choices of a training."""

    steps: int = DEFAULT_SPLATS.schedule.full_steps
    max_splats: int = 500_000
    sh_degree: int = 2
    depth_weight: float = 0.2
    """Weight of depth, which falls to a tenth."""
    normal_weight: float = 0.02
    opacity_weight: float = 0.01
    """Weight that draws opacities to 0, so that what no image needs disappears."""
    scale_weight: float = 0.01
    """Weight that draws sizes to 0."""
    poses: bool = True
    exposure: bool = True
    free_space: bool = True
    tuning: SplatConfig = DEFAULT_SPLATS

    @property
    def rate_factor(self) -> float:
        """Factor of the rates of positions and poses: a short training has as far to move them."""
        schedule = self.tuning.schedule
        return min(max(schedule.full_steps / self.steps, 1.0), schedule.max_rate_factor)

    def fingerprint(self) -> str:
        """The choices that a resumed training must share."""
        choices = asdict(self)
        if self.tuning == DEFAULT_SPLATS:
            del choices["tuning"]
        return repr(sorted(choices.items()))


@dataclass(frozen=True)
class HeldOut:
    """Agreement with the images that are not trained on; None without such images."""

    psnr: float | None = None
    """Mean in dB."""
    ssim: float | None = None
    psnr_of: dict[int, float] = field(default_factory=dict)
    """PSNR by the frame's number."""


@dataclass(frozen=True)
class TrainProgress:
    """State of a training."""

    step: int
    steps: int
    splats: int
    psnr: float | None
    """Last held-out PSNR."""
    seconds: float


class Trainer:
    """Trains the Gaussians of a scene step by step. Deterministic up to the rasterizer, also across `state`."""

    def __init__(
        self,
        scene: TrainingScene,
        options: TrainOptions,
        device: torch.device,
        draw: Rasterizer,
        model: SplatModel | None = None,
    ) -> None:
        self.scene, self.options, self.device = scene, options, device
        self._draw, self._tuning = draw, options.tuning
        self.step = 0
        self.seconds = 0.0
        """Time of training so far."""
        self.held_out = HeldOut()
        poses = scene.T_world_camera.copy()
        poses[:, :3, 3] = (poses[:, :3, 3] - scene.centre) / scene.unit
        self.cameras = torch.from_numpy(np.linalg.inv(poses)).float().to(device)
        self.K = torch.from_numpy(scene.K).float().to(device)
        self._images = torch.from_numpy(scene.images).to(device)
        self._kept = None if scene.excluded is None else torch.from_numpy(~scene.excluded).to(device)
        self._depths = torch.from_numpy(scene.depths).to(device)
        self._certainties = torch.from_numpy(scene.certainties).to(device)
        self.small_K = self.K.clone()
        self.small_K[0] *= scene.depths.shape[2] / scene.size[0]
        self.small_K[1] *= scene.depths.shape[1] / scene.size[1]
        self.max_splats = bounded(options.max_splats, device, self._tuning.densification)
        self._generator = torch.Generator(device)
        self.model = model or SplatModel.of(scene, device, options.sh_degree, self._tuning)
        if len(self.model) > self.max_splats:
            kept = np.random.default_rng(0).permutation(len(self.model))[: self.max_splats]
            self.model.keep(torch.from_numpy(np.sort(kept)).to(device))
        self.corrections = Corrections(len(scene.frames), ~scene.held_out, device, self._tuning.corrections)
        self._trained = np.flatnonzero(~scene.held_out)
        self._densification = Densification(self.max_splats, self._generator, self._tuning.densification)

    @property
    def is_done(self) -> bool:
        return self.step >= self.options.steps

    @property
    def splats(self) -> Splats:
        """The Gaussians in the scene's world."""
        return self.model.splats(self.scene)

    def advance(self) -> None:
        """One step."""
        began = time.perf_counter()
        options, share, schedule = self.options, self.step / self.options.steps, self._tuning.schedule
        self._generator.manual_seed(self.step)
        number = self._image_of(self.step)
        drawing = self.drawing(number, self._sh_degree(share))
        loss = self._image_loss(number, drawing)
        loss = loss + self._geometry_loss(number, drawing, share) + self.corrections.loss(number)
        g = self.model.gaussians
        loss = loss + options.opacity_weight * torch.sigmoid(g["opacities"]).mean()
        loss = loss + options.scale_weight * torch.exp(g["scales"]).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        rate = options.rate_factor * schedule.means_decay**share
        self.model.step(rate)
        refines_poses = options.poses and share >= schedule.poses_from
        self.corrections.step(share, options.rate_factor, poses=refines_poses)
        self.step += 1
        self._change_gaussians(self.step / options.steps, rate)
        self.seconds += time.perf_counter() - began

    def drawing(self, number: int, sh_degree: int | None = None) -> Drawing:
        """What the camera of an image sees, before exposure."""
        T = self.corrections.pose(number, self.cameras[number])
        degree = self.options.sh_degree if sh_degree is None else sh_degree
        return self._draw(self.model.gaussians, T, self.K, self.scene.size, degree)

    def image(self, number: int) -> Tensor:
        """The photograph [h, w, 3] from 0 to 1."""
        return self._images[number].float() / 255

    @torch.no_grad()
    def drawn(self, number: int) -> Tensor:
        """The image [h, w, 3] as it is drawn, with the exposure that the camera had."""
        rgb = self.drawing(number).rgb
        return (self.corrections.expose(number, rgb) if self.options.exposure else rgb).clamp(0, 1)

    @torch.no_grad()
    def measure(self) -> HeldOut:
        """Draw the held-out images, and compare them."""
        psnr: dict[int, float] = {}
        similar = []
        for number in np.flatnonzero(self.scene.held_out).tolist():
            drawn, photograph = self.drawn(number), self.image(number)
            if self._kept is not None:
                mask = self._kept[number][..., None]
                drawn, photograph = drawn * mask, photograph * mask
            error = F.mse_loss(drawn, photograph)
            if self._kept is not None:
                error = error / self._kept[number].float().mean().clamp_min(1e-3)
            psnr[int(self.scene.frames[number])] = -10 * math.log10(max(error.item(), 1e-12))
            similar.append(ssim(drawn, photograph, padding=0).item())
        self.held_out = HeldOut()
        if psnr:
            self.held_out = HeldOut(float(np.mean(list(psnr.values()))), float(np.mean(similar)), psnr)
        return self.held_out

    @torch.no_grad()
    def floating(self) -> Tensor:
        """Which Gaussians [N] lie in space that depth maps show free."""
        g = self.model.gaussians
        sizes = torch.exp(g["scales"]).amin(1)
        maps = ((n, self._depths[n].float() / self.scene.unit, self._certainties[n]) for n in self._trained.tolist())
        return in_free_space(g["means"], sizes, self.cameras, self.small_K, maps, self._tuning.floaters)

    def progress(self) -> TrainProgress:
        return TrainProgress(self.step, self.options.steps, len(self.model), self.held_out.psnr, self.seconds)

    def state(self) -> dict[str, Tensor]:
        """All that `load` needs to go on."""
        tensors = {f"model.{name}": value for name, value in self.model.state().items()}
        tensors |= {f"corrections.{name}": value for name, value in self.corrections.state().items()}
        tensors["step"] = torch.tensor([float(self.step), self.seconds], dtype=torch.float64)
        return tensors

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from a `state`. Raises KeyError, ValueError or RuntimeError where it does not fit."""
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "corrections": {}}
        for name, value in state.items():
            kind, _, rest = name.partition(".")
            if rest:
                parts[kind][rest] = value
        self.model = SplatModel.from_state(parts["model"], self.device, self._tuning.model)
        self.corrections.load(parts["corrections"])
        step, self.seconds = state["step"].tolist()
        self.step = int(step)

    def _image_of(self, step: int) -> int:
        """The image of a step: all in random order, then again in another one."""
        turn, position = divmod(step, len(self._trained))
        return int(self._trained[np.random.default_rng(turn).permutation(len(self._trained))[position]])

    def _sh_degree(self, share: float) -> int:
        """Degrees are added one after the other in the first half."""
        return min(int(2 * share * (self.options.sh_degree + 1)), self.options.sh_degree)

    def _image_loss(self, number: int, drawing: Drawing) -> Tensor:
        rgb = self.corrections.expose(number, drawing.rgb) if self.options.exposure else drawing.rgb
        kept = None if self._kept is None else self._kept[number]
        return image_loss(rgb, self.image(number), kept, self._tuning.losses.ssim_share)

    def _geometry_loss(self, number: int, drawing: Drawing, share: float) -> Tensor:
        options, losses = self.options, self._tuning.losses
        weight = options.depth_weight * 0.1**share
        if not weight and not options.normal_weight:
            return torch.zeros((), device=self.device)
        depth, certainty = self._depths[number].float() / self.scene.unit, self._certainties[number]
        drawn = F.interpolate(drawing.depth[None, None], depth.shape, mode="bilinear")[0, 0]
        loss: Tensor = weight * depth_loss(drawn, depth, certainty, losses)
        if options.normal_weight:
            focal, centre = torch.diagonal(self.small_K)[:2], self.small_K[:2, 2]
            loss = loss + options.normal_weight * normal_loss(drawn, depth, certainty, focal, centre, losses)
        return loss

    @torch.no_grad()
    def _change_gaussians(self, share: float, rate: float) -> None:
        schedule = self._tuning.schedule
        if self.options.free_space and (self.step % self._every(schedule.prune_every) == 0 or self.is_done):
            floating = self.floating()
            if not self.is_done and share < schedule.densify_until:
                # The next densification moves what shows nothing.
                self.model.gaussians["opacities"][floating] = -10.0
            else:
                self.model.keep(torch.nonzero(~floating)[:, 0])
        if schedule.densify_from <= share < schedule.densify_until:
            if self.step % self._every(schedule.densify_every) == 0:
                self._densification.act(self.model)
            self._densification.add_noise(self.model, rate)

    def _every(self, steps: int) -> int:
        """Steps between two actions: fewer in a short training, so that it has as many."""
        return max(1, round(steps * min(1.0, self.options.steps / self._tuning.schedule.full_steps)))


def train(
    trainer: Trainer, on_step: Callable[[Trainer], bool] = lambda trainer: True, measure_every: int = 500
) -> HeldOut:
    """Train to the end, or until ``on_step``, which is called after each step, returns False; then measure."""
    while not trainer.is_done:
        trainer.advance()
        if trainer.step % measure_every == 0:
            trainer.measure()
        if not on_step(trainer):
            break
    return trainer.measure()


def peak_memory_mb(device: torch.device) -> float | None:
    """Peak memory of the process's tensors on a GPU; None on a CPU."""
    if device.type != "cuda":
        return None
    return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
