"""Training of a result's splats as a whole: scene, training with its views, files, and the record in run.json."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from stream_recon.app.core.process import peak_host_memory_mb
from stream_recon.app.core.splats import Splats, write_splats
from stream_recon.app.result.files import replace_file, replace_json
from stream_recon.app.result.folder import CHECKPOINT_NAME, SPLATS_NAME, ResultFolder, read_result, revision_of
from stream_recon.app.result.run_record import RUN_NAME, SPLATS
from stream_recon.app.splat.rasterizer import Rasterizer, draw_gsplat
from stream_recon.app.splat.scene import SceneOptions, TrainingScene, scene_of
from stream_recon.app.splat.trainer import HeldOut, Trainer, TrainOptions, TrainProgress, peak_memory_mb, train
from stream_recon.configs.errors import ConfigError, OutputError, ResourceError

CHECKPOINT_S = 30.0
"""Seconds between two checkpoints."""
SHOW_S = 5.0
"""Seconds between two views of the splats, or longer where a view takes long."""
SHOW_SHARE = 0.1
"""Share of the time that views may take."""


@dataclass(frozen=True)
class SplatOptions:
    """What is trained, and on what."""

    train: TrainOptions = field(default_factory=TrainOptions)
    scene: SceneOptions = field(default_factory=SceneOptions)
    resume: bool = False

    def __post_init__(self) -> None:
        if self.train.steps < 1 or self.train.max_splats < 1:
            raise ConfigError("--steps and --max-splats must be 1 or more")


class SplatEvents:
    """What a training tells; all methods do nothing here."""

    def on_scene(self, done: int, total: int) -> None:
        """Images read, before the training; may raise Cancelled."""

    def on_step(self, progress: TrainProgress) -> None:
        """After each step."""

    def on_splats(self, splats: Splats) -> None:
        """The splats so far, every few seconds and at the end."""


@dataclass(frozen=True)
class SplatReport:
    """Figures of a training; its fields are keys of ``run.json``."""

    steps: int
    """Steps done."""
    wanted_steps: int
    splats: int
    images: int
    held_out: int
    """Images that were not trained on."""
    psnr: float | None
    """Mean over the held-out images in dB; None without such images."""
    ssim: float | None
    seconds: float
    seconds_before: float
    """From the beginning of the work to the first step."""
    peak_memory_mb: dict[str, float | None]
    max_side: int
    """Longer side of the images in pixels."""
    revision: int
    """Number of the last change of the poses that were used."""

    @property
    def is_complete(self) -> bool:
        return self.steps >= self.wanted_steps


def make_splats(
    folder: Path,
    options: SplatOptions,
    events: SplatEvents,
    cancelled: Callable[[], bool] = lambda: False,
    device: torch.device | None = None,
    draw: Rasterizer = draw_gsplat,
) -> SplatReport:
    """Train the splats of a result, whose lock the caller holds, write its ``splats.ply``, and record them.

    Args:
        cancelled: asked after each step; what is there is kept then, and may go on later.
        device: None: the GPU.
        draw: what draws splats.

    Raises StreamReconError: nothing to train on, no memory, or a file cannot be written.
    """
    began = time.monotonic()
    device = device or torch.device("cuda")
    # Images are read meanwhile.
    threading.Thread(target=_load_optimizers, daemon=True).start()
    result = read_result(folder)
    path = folder / CHECKPOINT_NAME
    if options.resume and not path.is_file():
        raise ConfigError(f"{folder} has no training to continue: leave out --resume")
    scene = scene_of(result, options.scene, events.on_scene)
    try:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        trainer = Trainer(scene, options.train, device, draw)
        run = _Run(result, scene, trainer, options, events, cancelled, path)
        return run.go(began)
    except torch.OutOfMemoryError as error:
        fewer = max(options.train.max_splats // 2, 1)
        raise ResourceError(
            f"the GPU has too little memory for {options.train.max_splats} splats: use --max-splats {fewer}, or "
            f"--max-side below {options.scene.max_side}"
        ) from error


def _load_optimizers() -> None:
    """Import what the first optimizer of a process imports, for seconds."""
    import torch._dynamo  # noqa: F401


@dataclass
class _Run:
    result: ResultFolder
    scene: TrainingScene
    trainer: Trainer
    options: SplatOptions
    events: SplatEvents
    cancelled: Callable[[], bool]
    checkpoint: Path
    next_show: float = 0.0
    next_checkpoint: float = 0.0

    @property
    def key(self) -> str:
        """What a training that goes on must share."""
        frames = f"{self.scene.frames.tolist()} {self.scene.size}"
        return f"{self.options.train.fingerprint()} {frames} {revision_of(self.result)}"

    def go(self, began: float) -> SplatReport:
        if self.options.resume:
            self._read_checkpoint()
        before = time.monotonic() - began
        self.next_checkpoint = time.monotonic() + CHECKPOINT_S
        held_out = train(self.trainer, self._after_step)
        if not self.trainer.is_done:
            self._write_checkpoint()
        report = self._report(held_out, before)
        splats = self.trainer.splats
        replace_file(self.result.folder / SPLATS_NAME, lambda file: write_splats(file, splats))
        record: dict[str, Any] = read_result(self.result.folder).run
        replace_json(self.result.folder / RUN_NAME, {**record, SPLATS: vars(report)})
        if self.trainer.is_done:
            with suppress(OSError):
                self.checkpoint.unlink(missing_ok=True)
        self.events.on_splats(splats)
        return report

    def _after_step(self, trainer: Trainer) -> bool:
        self.events.on_step(trainer.progress())
        if self.cancelled():
            return False
        now = time.monotonic()
        if now >= self.next_show:
            self.events.on_splats(trainer.splats)
            took = time.monotonic() - now
            self.next_show = time.monotonic() + max(SHOW_S, took / SHOW_SHARE)
        if now >= self.next_checkpoint:
            self._write_checkpoint()
            self.next_checkpoint = time.monotonic() + CHECKPOINT_S
        return True

    def _write_checkpoint(self) -> None:
        """Write the state from which a stopped or killed training goes on. Raises OutputError."""
        state = {name: value.detach().contiguous().cpu() for name, value in self.trainer.state().items()}
        content = save(state, {"training": self.key})
        replace_file(self.checkpoint, lambda file: file.write(content))

    def _read_checkpoint(self) -> None:
        """Go on from the checkpoint.

        Raises ConfigError where it is of another training, OutputError where it is missing or damaged.
        """
        path, again = self.checkpoint, "leave out --resume to begin again"
        try:
            with safe_open(path, "pt") as file:
                if (file.metadata() or {}).get("training") != self.key:
                    raise ConfigError(f"{path} is of other options, or of other poses: {again}")
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self.trainer.load(state)
        except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise OutputError(f"{path} is missing or damaged: {again} ({error})") from error

    def _report(self, held_out: HeldOut, before: float) -> SplatReport:
        trainer = self.trainer
        return SplatReport(
            steps=trainer.step,
            wanted_steps=trainer.options.steps,
            splats=len(trainer.model),
            images=len(self.scene.frames),
            held_out=int(self.scene.held_out.sum()),
            psnr=None if held_out.psnr is None else round(held_out.psnr, 3),
            ssim=None if held_out.ssim is None else round(held_out.ssim, 4),
            seconds=round(trainer.seconds, 3),
            seconds_before=round(before, 3),
            peak_memory_mb={"host": peak_host_memory_mb(), "device": peak_memory_mb(trainer.device)},
            max_side=max(self.scene.size),
            revision=revision_of(self.result),
        )
