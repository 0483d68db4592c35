"""What depth maps say of one another: log ratios of their depths at common cells, and their relative scales by them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.evidence.depth_scales import POINTS, PointConfig
from stream_recon.app.slam.frame_data import DepthGrid


@dataclass(frozen=True)
class EdgeConfig:
    """How the depth maps of two keyframes are compared."""

    pairs_at_once: int = 256
    """Pairs of keyframes that are measured at once; bounds the memory."""
    min_cells: int = 20
    """Least number of common cells of an edge."""
    min_sigma: float = 0.05
    """Least standard deviation of an edge: errors of a depth map that depend on the direction of view."""
    points: PointConfig = POINTS


EDGES = EdgeConfig()


Pairs = Collection[tuple[int, int]]


@dataclass(frozen=True)
class ScaleEdges:
    """Relative log scales of depth maps, in the order of pairs."""

    first: NDArray[np.intp]  # [E]
    second: NDArray[np.intp]  # [E]
    log_ratio: FloatArray  # [E]
    """Log of the first keyframe's depths over the second one's, at what both see, with given depth scales."""
    sigma: FloatArray  # [E]


@dataclass(frozen=True)
class DepthMaps:
    """Scaled depth grids of K keyframes in common tables of N cells, to ask what one says of another one's points.

    Cells that a grid lacks have depth 0.
    """

    xyz: FloatArray  # [K, N, 3], points of the cells in camera axes; NaN without depth
    z: FloatArray  # [K, N]
    origin: FloatArray  # [K, 2], working pixel of the first cell
    step: FloatArray  # [K, 2], pixels between cells
    shape: NDArray[np.intp]  # [K, 2], columns and rows

    @classmethod
    def of(
        cls, camera_model: CameraModel, grids: Sequence[DepthGrid], scale: Sequence[float] | FloatArray
    ) -> "DepthMaps":
        """Grids times their scales [K]."""
        cells, count = max((grid.z.size for grid in grids), default=0), len(grids)
        z, uv = np.zeros((count, cells)), np.zeros((count, cells, 2))
        for k, grid in enumerate(grids):
            z[k, : grid.z.size] = grid.z.reshape(-1).astype(np.float64) * scale[k]
            uv[k, : grid.z.size] = np.stack(np.meshgrid(grid.u, grid.v), axis=-1).reshape(-1, 2)
        xyz = camera_model.unproject(uv.reshape(-1, 2)).reshape(count, cells, 3) * np.where(z > 0, z, np.nan)[..., None]
        origin = np.array([(grid.u[0], grid.v[0]) for grid in grids], np.float64).reshape(-1, 2)
        step = np.array([grid.steps for grid in grids]).reshape(-1, 2)
        shape = np.array([(len(grid.u), len(grid.v)) for grid in grids], np.intp).reshape(-1, 2)
        return cls(xyz, z, origin, step, shape)

    def log_ratios(
        self, camera_model: CameraModel, T: FloatArray, a: NDArray[np.intp], b: NDArray[np.intp]
    ) -> FloatArray:
        """Log of depths of keyframes ``a`` [P] over those of ``b`` [P], at common cells [P, N] of ``a``; NaN elsewhere.

        Both are depths in the camera of ``b``. ``T``: [K, 4, 4].
        """
        between = invert_pose(T[b]) @ T[a]
        local = self.xyz[a] @ between[:, :3, :3].transpose(0, 2, 1) + between[:, None, :3, 3]
        depth = local[..., 2]
        pixel = camera_model.project(local.reshape(-1, 3)).reshape(*depth.shape, 2)
        with np.errstate(invalid="ignore"):
            at = np.rint((pixel - self.origin[b, None]) / self.step[b, None])
            inside = ((at >= 0) & (at < self.shape[b, None])).all(axis=-1) & (depth > 0)
            cell = np.where(inside, at[..., 1] * self.shape[b, :1] + at[..., 0], 0).astype(np.intp)
            shown = np.where(inside, self.z[b[:, None], cell], 0.0)
            ratios = np.log(np.where(inside, depth, 1.0) / np.where(shown > 0, shown, 1.0))
            return np.asarray(np.where(shown > 0, ratios, np.nan))

    def common_log_ratios(
        self, camera_model: CameraModel, T: FloatArray, pairs: Pairs, config: EdgeConfig = EDGES
    ) -> list[FloatArray]:
        """`log_ratios` of pairs at their common cells alone."""
        chosen, ratios = np.array([*pairs], np.intp).reshape(-1, 2), []
        for begin in range(0, len(chosen), config.pairs_at_once):
            rows = self.log_ratios(camera_model, T, *chosen[begin : begin + config.pairs_at_once].T)
            ratios += [row[np.isfinite(row)] for row in rows]
        return ratios


def measure_edges(
    camera_model: CameraModel,
    T: FloatArray,
    grids: Sequence[DepthGrid],
    log_scale: FloatArray,
    pairs: Pairs,
    config: EdgeConfig = EDGES,
) -> ScaleEdges:
    """Edges of pairs of keyframes whose depth maps overlap. T: [K, 4, 4]; log_scale: [K], of the depth maps."""
    chosen = np.array(sorted(pairs), np.intp).reshape(-1, 2)
    maps = DepthMaps.of(camera_model, grids, [np.exp(each) for each in log_scale])
    rows = []
    for begin in range(0, len(chosen), config.pairs_at_once):
        i, j = chosen[begin : begin + config.pairs_at_once].T
        (forward, enough), (backward, enough_back) = (
            _medians(maps.log_ratios(camera_model, T, *each), config=config) for each in ((i, j), (j, i))
        )
        spread = 1.4826 * np.maximum(forward[1], backward[1])
        # Occlusion makes both medians positive; it cancels.
        log_ratio = 0.5 * (forward[0] - backward[0])
        sigma = np.hypot(spread / np.sqrt(config.points.independent_samples), config.min_sigma)
        rows.append(np.stack([i, j, log_ratio, sigma], axis=1)[enough & enough_back])
    table = np.concatenate([np.zeros((0, 4)), *rows])
    return ScaleEdges(table[:, 0].astype(np.intp), table[:, 1].astype(np.intp), table[:, 2], table[:, 3])


def _medians(values: FloatArray, config: EdgeConfig = EDGES) -> tuple[tuple[FloatArray, FloatArray], NDArray[np.bool_]]:
    """Medians [P] of the numbers among ``values`` [P, N], and of their distances from these; whether there are
    `min_cells` [P]."""
    count = np.isfinite(values).sum(axis=1)

    def median(each: FloatArray) -> FloatArray:
        # NaN are last.
        order, row = np.sort(each, axis=1), np.arange(len(each))
        middle = order[row, (count - 1).clip(0) // 2] + order[row, (count // 2).clip(0, order.shape[1] - 1)]
        return np.asarray(0.5 * middle)

    middle = median(values)
    return (middle, median(np.abs(values - middle[:, None]))), count >= config.min_cells
