"""Agreement of unconfirmed depth: walls and floors without texture, at which each frame puts another depth.

Fusion removes a surface where frames differ by more than its truncation distance. So a pixel that stereo neither
confirmed nor has near what it confirmed moves to the weighted median of the depths that other frames show along its
ray, as in depth fusion by Merrell et al. (2007), in a few rounds.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.cores import usable_cores
from stream_recon.app.core.depth_points import look_up
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import Certainty, FrameResult
from stream_recon.app.mesh.config import AgreementConfig
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.folder import ResultFolder
from stream_recon.configs.errors import OutputError

FloatArray = NDArray[np.float32]
OnStep = Callable[[], None]
"""Called for each frame and each round; may raise Cancelled."""


class AgreedMaps:
    """Frames of a result with depth maps that agree."""

    def __init__(
        self, result: ResultFolder, cameras: Sequence[FrameCamera], config: AgreementConfig, on_step: OnStep
    ) -> None:
        self._cameras, self._result = cameras, result
        self._reduced: dict[int, _Reduced] = {}
        for number, camera in enumerate(cameras):
            on_step()
            with suppress(OutputError):
                self._reduced[number] = _Reduced.of(result.surface_of(camera), config.side)
        _agree(list(self._reduced.values()), config, on_step)

    def __len__(self) -> int:
        return len(self._cameras)

    def frame(self, number: int) -> FrameResult:
        """A frame by its place among the cameras. Raises OutputError."""
        frame = self._result.surface_of(self._cameras[number])
        reduced = self._reduced.get(number)
        if reduced is None or not reduced.moved.any():
            return frame
        moved = cv2.resize(reduced.moved, frame.depth.shape[::-1], interpolation=cv2.INTER_LINEAR)
        moved[_certainty(frame) != Certainty.NETWORK] = 0
        return replace(frame, depth=(frame.depth * np.exp(moved)).astype(np.float32))


@dataclass
class _Reduced:
    """Every n-th pixel of a frame's depth."""

    depth: FloatArray  # [h, w]
    certainty: NDArray[np.uint8]  # [h, w]
    rays: FloatArray  # [h, w, 3] of depth 1, in camera axes
    focal: FloatArray  # [2] in reduced pixels
    centre: FloatArray  # [2], where the first pixel's centre is 0
    T_world_camera: FloatArray  # [4, 4]
    moved: FloatArray  # [h, w] log ratio of the depth to the frame's

    @staticmethod
    def of(frame: FrameResult, side: int) -> "_Reduced":
        step = max(1, round(max(frame.depth.shape) / side))
        first, k = step // 2, frame.network_intrinsics
        depth = np.ascontiguousarray(frame.depth[first::step, first::step], np.float32)
        focal = np.array([k.fx, k.fy], np.float32) / np.float32(step)
        centre = ((np.array([k.cx, k.cy]) - 0.5 - first) / step).astype(np.float32)
        grid = np.stack(np.meshgrid(*(np.arange(n, dtype=np.float32) for n in depth.shape[::-1])), axis=-1)
        rays = np.concatenate([(grid - centre) / focal, np.ones((*depth.shape, 1), np.float32)], axis=-1)
        certainty, T = _certainty(frame)[first::step, first::step], frame.T_world_camera.astype(np.float32)
        return _Reduced(depth, certainty, rays, focal, centre, T, np.zeros_like(depth))

    def seen(self, xyz: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Columns, rows and depths [...] of points [...] of the world, in the image or not; NaN behind it."""
        T = invert_pose(self.T_world_camera).astype(np.float32)
        local = xyz @ T[:3, :3].T + T[:3, 3]
        z = np.where(local[..., 2] > 0, local[..., 2], np.float32(np.nan))
        column, row = np.moveaxis(local[..., :2] / z[..., None] * self.focal + self.centre, -1, 0)
        return column, row, z


def _certainty(frame: FrameResult) -> NDArray[np.uint8]:
    """Certainty [h, w] of a frame's pixels; without stereo all have that of the network."""
    return np.full(frame.depth.shape, Certainty.NETWORK, np.uint8) if frame.certainty is None else frame.certainty


def _agree(maps: Sequence[_Reduced], config: AgreementConfig, on_step: OnStep) -> None:
    """Move the depths of all maps, all of them by those of the round before."""
    with ThreadPoolExecutor(usable_cores(), "agreement") as pool:
        neighbours = list(pool.map(lambda one: _neighbours(one, maps, config), maps))
        for _ in range(config.rounds):
            on_step()
            steps = pool.map(lambda one, others: _step(one, [maps[n] for n in others], config), maps, neighbours)
            for one, step in zip(maps, list(steps), strict=True):
                one.depth, one.moved = one.depth * np.exp(step), one.moved + step


def _neighbours(one: _Reduced, maps: Sequence[_Reduced], config: AgreementConfig) -> list[int]:
    """Numbers of the maps that show most of a map's points, not from much farther away."""
    some = (slice(config.spacing // 2, None, config.spacing),) * 2
    depth = one.depth[some].reshape(-1, 1)
    local = (one.rays[some].reshape(-1, 3) * depth)[depth[:, 0] > 0]
    xyz = np.asarray(local @ one.T_world_camera[:3, :3].T + one.T_world_camera[:3, 3], np.float32)
    shares = []
    for other in maps:
        column, row, z = other.seen(xyz)
        height, width = other.depth.shape
        inside = (column > -0.5) & (column < width - 0.5) & (row > -0.5) & (row < height - 0.5)
        nearness = np.minimum(1, local[:, 2][inside] / z[inside])
        shares.append(0.0 if other is one else float(nearness.sum() / max(len(xyz), 1)))
    best = np.argsort(-np.array(shares), kind="stable")[: config.max_neighbours]
    return [int(number) for number in best if shares[number] > config.min_shared]


def _step(one: _Reduced, others: Sequence[_Reduced], config: AgreementConfig) -> FloatArray:
    """Log ratios [h, w] of new depths to a map's."""
    may_move = (one.certainty == Certainty.NETWORK) & (one.depth > 0)
    if not others or not may_move.any():
        return np.zeros_like(one.depth)
    T = one.T_world_camera
    xyz = np.asarray((one.rays * one.depth[..., None]) @ T[:3, :3].T + T[:3, 3], np.float32)
    vote = np.array(config.weights, np.float32)
    ratios = [np.zeros_like(one.depth)]
    weights = [np.where(one.depth > 0, np.float32(config.own), np.float32(0))]
    for other in others:
        column, row, z = other.seen(xyz)
        depth, certainty = (look_up(values, column, row, "nearest") for values in (other.depth, other.certainty))
        known = (depth > 0) & (one.depth > 0)
        ratio = np.log(np.where(known, depth / np.where(known, z, 1), 1))
        known &= np.abs(ratio) < config.max_log_ratio
        ratios.append(np.where(known, ratio, 0))
        weights.append(np.where(known, vote[certainty], 0))
    votes = np.array(weights)
    median = _weighted_median(np.array(ratios), votes)
    median = np.sign(median) * np.maximum(np.abs(median) - np.float32(config.tolerance), 0)
    # Where depth stays, the change of what is beside it is 0, too.
    weight = np.where(may_move, (votes > 0).sum(axis=0) > 1, np.float32(config.staying))
    window = (config.window, config.window)
    smooth = cv2.blur(np.where(may_move, median, 0) * weight, window)
    smooth /= np.maximum(cv2.blur(weight.astype(np.float32), window), np.float32(1e-6))
    return np.where(may_move, smooth, 0).astype(np.float32)


def _weighted_median(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Medians over the first axis."""
    order = np.argsort(values, axis=0)
    total = np.cumsum(np.take_along_axis(weights, order, 0), axis=0)
    middle = (total >= total[-1:] / 2).argmax(axis=0)[None]
    return np.asarray(np.take_along_axis(values, np.take_along_axis(order, middle, 0), 0)[0], np.float32)
