"""Errors of the weights on held-out synthetic clips, compared with constant answers."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stream_recon.app.evaluation.metrics import depth_errors, pose_errors
from stream_recon.models.pose import inverse_pose, pose_to_matrix
from training.synthetic import ClipBatch, SceneGenerator, SceneShares

VALIDATION_SEED = 7_777_777
"""Scene seeds from here on are never trained on."""
KINDS = ("room", "outdoor", "clutter")
MIN_STEP = 0.003
"""Share of the median depth: clips with a shorter mean step are left out of directions and paths."""

FIELDS = (
    "rot_step_deg",
    "tdir_deg",
    "ate_over_path",
    "absrel",
    "delta1",
    "fov_deg",
    "rot_still_deg",
    "ate_straight",
    "absrel_constant",
    "true_fov_deg",
)
"""Columns of a clip's row: the network's errors, those of constant answers, and the true field of view."""


@dataclass(frozen=True)
class ClipPrediction:
    T_world_camera: Tensor  # [B, S, 4, 4]
    depth: Tensor  # [B, S, H, W]
    fov: Tensor  # [B, S, 2] vertical and horizontal, radians


def prediction_from(pose: Tensor, log_depth: Tensor) -> ClipPrediction:
    """From the last pose code [B, S, 9] and log depth [B, S, H, W]."""
    return ClipPrediction(pose_to_matrix(pose), log_depth.exp(), pose[..., 7:])


class HeldOutClips:
    """Clips rendered once and kept on the host. Batch i is the same on every worker.

    Args:
        batches: numbers of the batches that this worker measures.
        height, width: image size in pixels.
        compile_scenes: render as training does.
        shares: what the clips show.
    """

    def __init__(
        self,
        *,
        batches: list[int],
        clips: int,
        frames: int,
        height: int,
        width: int,
        device: torch.device,
        tiles: Path | None,
        compile_scenes: bool,
        shares: SceneShares,
    ) -> None:
        self._device = device
        self._batches = []
        for number in batches:
            generator = SceneGenerator(device, VALIDATION_SEED + number, tiles, compile_scenes, shares=shares)
            self._batches.append(_moved(generator.render(clips, frames, height, width), torch.device("cpu")))

    def __iter__(self) -> Iterator[ClipBatch]:
        return (_moved(batch, self._device) for batch in self._batches)


def _moved(batch: ClipBatch, device: torch.device) -> ClipBatch:
    return ClipBatch(**{f.name: getattr(batch, f.name).to(device) for f in fields(batch)})


def clip_errors(prediction: ClipPrediction, batch: ClipBatch) -> NDArray[np.float64]:
    """One row for each clip: its kind, then `FIELDS`; NaN where it is undefined."""
    T_true = inverse_pose(batch.T_world_camera[:, :1]) @ batch.T_world_camera
    arrays = [
        x.detach().double().cpu().numpy()
        for x in (prediction.T_world_camera, T_true, prediction.depth, batch.depth, prediction.fov, batch.intrinsics)
    ]
    height, width = batch.depth.shape[-2:]
    rows = [
        [float(kind), *_one_clip((height, width), *(a[i] for a in arrays))]
        for i, kind in enumerate(batch.kind.tolist())
    ]
    return np.array(rows, dtype=np.float64)


def _one_clip(
    size: tuple[int, int],
    T: NDArray[np.float64],
    T_true: NDArray[np.float64],
    depth: NDArray[np.float64],
    true_depth: NDArray[np.float64],
    fov: NDArray[np.float64],
    intrinsics: NDArray[np.float64],
) -> list[float]:
    neighbours = np.ones(len(T) - 1, dtype=bool)
    straight = np.repeat(np.eye(4)[None], len(T), axis=0)
    straight[:, 2, 3] = np.arange(len(T))
    poses, still = pose_errors(T, T_true, neighbours), pose_errors(straight, T_true, neighbours)
    valid = true_depth > 0
    shape = depth_errors(depth[valid], true_depth[valid])
    flat = depth_errors(np.ones(int(valid.sum())), true_depth[valid])
    true_fov = 2 * np.arctan(np.array(size) / 2 / intrinsics[[1, 0]])
    moved = bool(valid.any()) and (poses.path_m or 0) > MIN_STEP * len(neighbours) * float(np.median(true_depth[valid]))
    values = [
        poses.rpe_rot_deg,
        poses.trans_dir_deg if moved else None,
        poses.ate_over_path if moved else None,
        shape.absrel,
        shape.delta1,
        float(np.degrees(np.abs(fov - true_fov).max(axis=-1).mean())),
        poses.gt_rot_deg,
        still.ate_over_path if moved else None,
        flat.absrel,
        float(np.degrees(true_fov[1])),
    ]
    return [float("nan") if value is None else value for value in values]


def summarise(rows: NDArray[np.float64]) -> dict[str, dict[str, float]]:
    """Rows of `clip_errors` -> figures of all clips and of each kind: means, or medians (names with ``_median``)."""
    groups = {"all": rows} | {name: rows[rows[:, 0] == i] for i, name in enumerate(KINDS)}
    return {name: _figures(group) for name, group in groups.items() if len(group)}


def _figures(rows: NDArray[np.float64]) -> dict[str, float]:
    known = {name: column[~np.isnan(column)] for name, column in zip(FIELDS, rows[:, 1:].T, strict=True)}
    figures = {name: float(np.mean(column)) for name, column in known.items() if len(column)}
    for name in ("tdir_deg", "ate_over_path"):
        if len(known[name]):
            figures[f"{name}_median"] = float(np.median(known[name]))
    true_fov = known["true_fov_deg"]
    figures["fov_constant_deg"] = float(np.abs(true_fov - np.median(true_fov)).mean())
    figures.pop("true_fov_deg", None)
    return figures | {"clips": float(len(rows))}
