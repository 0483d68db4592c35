"""Validation distributed over the workers of a run, with shapes that training has compiled."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from training.distributed import Workers
from training.model import TrainingModel
from training.schedule import ClipShape, Schedule
from training.synthetic import SceneShares
from training.synthetic.cameras import MOTIONS
from training.validation import HeldOutClips, clip_errors, prediction_from, summarise

HARD = {
    "turning": SceneShares(turning=1.0),
    "narrow": SceneShares(narrow=1.0, wide=0.0),
    "wide": SceneShares(narrow=0.0, wide=1.0),
    "people": SceneShares(turning=0.0, people=1.0),
} | {motion: SceneShares(turning=0.0, motion=motion) for motion in MOTIONS}
"""Rare cases, in sets of half as many clips as the usual ones."""
BATCH_OFFSET = 1 << 16
"""Difference between batch numbers of one set and the next."""


class Validator:
    """Renders this worker's share of the held-out clips once, and measures the model on them.

    Args:
        shape: of the clips; fewer frames if a step has fewer.
        clips: at least this many over all workers; complete training batches are used, since their shape is compiled.
        tiles: photo tiles for the scenes' textures.
    """

    def __init__(
        self,
        model: TrainingModel,
        schedule: Schedule,
        workers: Workers,
        *,
        clips: int,
        shape: ClipShape,
        patch: int,
        tiles: Path | None,
        compile_scenes: bool,
    ) -> None:
        self._model, self._workers = model, workers
        frames = min(shape.frames, schedule.config.frames_per_step)
        self._plan = schedule.plan(replace(shape, frames=frames))
        rounds = max(1, round(clips / (self._plan.clips * workers.count)))

        def held_out(first: int, rounds: int, shares: SceneShares) -> HeldOutClips:
            return HeldOutClips(
                batches=list(range(first + workers.rank, first + rounds * workers.count, workers.count)),
                clips=self._plan.clips,
                frames=frames,
                height=shape.rows * patch,
                width=shape.columns * patch,
                device=workers.device,
                tiles=tiles,
                compile_scenes=compile_scenes,
                shares=shares,
            )

        self._usual = held_out(0, rounds, SceneShares())
        self._hard = {
            name: held_out((number + 1) * BATCH_OFFSET, max(1, rounds // 2), shares)
            for number, (name, shares) in enumerate(HARD.items())
        }

    def measure(self, flex: bool) -> dict[str, dict[str, float]]:
        """Figures over all workers' clips, see `summarise`, and those of each set of `HARD` under its name."""
        figures = self.measure_usual(flex)
        return figures | {name: summarise(self._rows(clips, flex))["all"] for name, clips in self._hard.items()}

    def measure_usual(self, flex: bool) -> dict[str, dict[str, float]]:
        """`measure` without the hard sets."""
        return summarise(self._rows(self._usual, flex))

    def _rows(self, clips: HeldOutClips, flex: bool) -> NDArray[np.float64]:
        """`clip_errors` of all workers' clips."""
        device = self._workers.device
        frames = self._plan.shape.frames
        times = torch.arange(frames, device=device).expand(self._plan.clips, frames)
        rows = []
        for batch in clips:
            # With gradients: without them every block would be compiled a second time.
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                output = self._model(batch.images, self._plan.visibility, times, flex=flex)
            pose, maps = output.prediction.pose.detach(), output.prediction.head_maps.detach()
            del output
            prediction = prediction_from(pose, maps[:, :, 0])
            rows.append(torch.from_numpy(clip_errors(prediction, batch)))
        own = torch.cat(rows).float().to(device)
        gathered: NDArray[np.float64] = self._workers.gather(own).double().cpu().numpy()
        return gathered
