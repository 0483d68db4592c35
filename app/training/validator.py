"""Validation spread over the workers of a run, through the very shapes that training has compiled."""

from pathlib import Path

import torch

from stream_recon.app.training.distributed import Workers
from stream_recon.app.training.model import TrainingModel
from stream_recon.app.training.schedule import ClipShape, Schedule
from stream_recon.app.training.validation import (
    HeldOutClips,
    clip_errors,
    contact_sheet,
    prediction_from,
    summarise,
)

FRAMES, ROWS, COLUMNS = 16, 12, 16


class Validator:
    """Renders its share of the held-out clips once and measures the model on them whenever asked.

    Args:
        clips: at least this many over all workers; whole training batches are used, so that nothing is compiled anew.
        tiles: photo tiles for the scenes' textures.
    """

    def __init__(
        self,
        model: TrainingModel,
        schedule: Schedule,
        workers: Workers,
        *,
        clips: int,
        patch: int,
        tiles: Path | None,
        compile_scenes: bool,
    ) -> None:
        self._model, self._workers = model, workers
        frames = min(FRAMES, schedule.config.frames_per_step)
        self._plan = schedule.plan(ClipShape(frames, ROWS, COLUMNS))
        rounds = max(1, round(clips / (self._plan.clips * workers.count)))
        self._held_out = HeldOutClips(
            batches=list(range(workers.rank, rounds * workers.count, workers.count)),
            clips=self._plan.clips,
            frames=frames,
            height=ROWS * patch,
            width=COLUMNS * patch,
            device=workers.device,
            tiles=tiles,
            compile_scenes=compile_scenes,
        )

    def measure(self, flex: bool, sheet: Path | None = None) -> dict[str, dict[str, float]]:
        """Figures over all workers' clips, see `summarise`; a contact sheet of the first batch goes to ``sheet``."""
        device = self._workers.device
        frames = self._plan.shape.frames
        times = torch.arange(frames, device=device).expand(self._plan.clips, frames)
        rows = []
        for batch in self._held_out:
            # Gradients stay on: without them every block would be compiled a second time.
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                output = self._model(batch.images, self._plan.visibility, times, flex=flex)
            pose, dense = output.prediction.pose[-1].detach(), output.prediction.dense.detach()
            del output
            prediction = prediction_from(pose, dense[:, :, 0])
            rows.append(torch.from_numpy(clip_errors(prediction, batch)))
            if sheet is not None:
                contact_sheet(sheet, batch, prediction)
                sheet = None
        own = torch.cat(rows).float().to(device)
        return summarise(self._workers.gather(own).double().cpu().numpy())
