"""One scale from end to end: depth scales of keyframes, and scale drift of the map, by depth maps that see the same.

Points tie the scale of the map between keyframes that share many of them. Keyframes with few, as after sharp rotations,
may have any scale. The network's depth maps of neighbours overlap there, and their log ratio at common cells is one
more observation (an edge) between two keyframes. Unknowns are two per keyframe: the log scale of its depth map, and a
correction of the map's log scale around it. Triangulated points relate the two, edges relate depth maps, and shared
points hold the correction together. The system is linear, solved with a Cauchy loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import spsolve

from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.ba.problem import FloatArray, RelativePoses
from stream_recon.app.slam.ba.robust_ba import ADJUSTMENT, AdjustmentConfig, BAState
from stream_recon.app.slam.evidence.depth_ratios import EDGES, EdgeConfig, Pairs, ScaleEdges, measure_edges
from stream_recon.app.slam.evidence.depth_scales import POINTS, PointConfig, parallax_px, point_scales
from stream_recon.app.slam.frame_data import DepthGrid


@dataclass(frozen=True)
class ScaleConfig:
    """How the scales of keyframes are made alike."""

    hops: tuple[int, int] = (1, 2)
    """Distances of keyframes in order that have an edge, beside pairs that share points."""
    max_pairs: int = 3
    """Pairs of each keyframe that share most points; bounds the time."""
    min_points: int = 5
    """Least number of points of a keyframe's depth scale."""
    scale_sigma: float = 0.03
    """Of the log depth scales of keyframes about those that depth maps agree on."""
    point_sigma: float = 0.01
    """Least standard deviation of a depth scale by points."""
    smooth_sigma: float = 0.3
    """Of the change of log scales between neighbours; only keyframes without points and edges depend on it."""
    rounds: int = 10
    """Iterations of the reweighted solution; it has converged by then."""
    loss: float = 2.0
    """Scale of the Cauchy loss, in standard deviations."""
    min_jump: float = 0.1
    """Relative change of the map's scale that counts as a jump; smaller ones are within the error of depth maps."""
    points: PointConfig = POINTS
    edges: EdgeConfig = EDGES
    adjustment: AdjustmentConfig = ADJUSTMENT


SCALES = ScaleConfig()


@dataclass(frozen=True)
class Scales:
    """Log scales at keyframes."""

    depth: FloatArray  # [K]
    """Of the network's depth maps, in the corrected map."""
    correction: FloatArray  # [K]
    """Log factor of lengths of the map around each keyframe."""


def depth_scales(
    fit: BAState, grids: Sequence[DepthGrid], segment: NDArray[np.integer], config: ScaleConfig = SCALES
) -> FloatArray:
    """Depth scales [K] of the keyframes' depth maps in a map that stays as it is.

    ``segment``: [K]; depth maps of different segments are not compared.
    """
    solved = _Estimate.of(fit, grids, segment, config)
    return np.exp(solved.solve(rigid=True).depth)


def jumps(
    fit: BAState, grids: Sequence[DepthGrid], segment: NDArray[np.integer], config: ScaleConfig = SCALES
) -> list[tuple[int, float]]:
    """Keyframes at which depth maps contradict the map's scale by more than `min_jump`, and by which factor."""
    correction = _Estimate.of(fit, grids, segment, config).solve().correction
    change = np.exp(-np.diff(correction))
    large = (np.maximum(change, 1 / change) > 1 + config.min_jump) & (segment[:-1] == segment[1:])
    return [(int(k) + 1, float(change[k])) for k in np.flatnonzero(large)]


@dataclass(frozen=True)
class ScaleTie:
    """A state whose parts, which points do not tie to one another, have one scale by their depth maps."""

    state: BAState
    """Lengths and depths are in one unit, so that log depth scales are 0."""
    log_scale: FloatArray  # [K]
    """Log depth scales of the network's depth maps."""
    correction: float
    """Ratio of the largest to the smallest factor of the map's lengths."""

    def motions(self, motions: RelativePoses | None) -> RelativePoses | None:
        """Motions in the unit of the network's depths, in that of the state."""
        if motions is None:
            return None
        T = motions.T_first_second.copy()
        mean = 0.5 * (self.log_scale[motions.first] + self.log_scale[motions.second])
        T[:, :3, 3] *= np.where(motions.is_in_scene_unit, 1.0, np.exp(mean))[:, None]
        return replace(motions, T_first_second=T)

    def restored(self, fit: BAState) -> BAState:
        """A solution from the state, with the network's depths and their scales."""
        observations, scene = fit.observations, fit.scene
        assert observations.depth is not None and scene.log_depth_scale is not None
        depth = observations.depth * np.exp(-self.log_scale[observations.camera])
        scene = replace(scene, log_depth_scale=scene.log_depth_scale + self.log_scale)
        return replace(fit, scene=scene, observations=replace(observations, depth=depth, depth_sigma=None))


def tie(
    start: BAState, grids: Sequence[DepthGrid], segment: NDArray[np.integer], config: ScaleConfig = SCALES
) -> ScaleTie | None:
    """One scale for the parts of a map that points do not tie to one another; None where these agree on it.

    ``segment``: [K]; different segments are not tied.
    """
    observations = start.observations
    assert observations.depth is not None
    estimate = _Estimate.of(start, grids, segment, config)
    part = estimate.part
    size = np.bincount(part[observations.camera], minlength=part.max() + 1)
    scales = estimate.solve()
    correction = float(np.exp(np.ptp(scales.correction)))
    if (size > 0).sum() < 2 or correction < 1 + config.edges.min_sigma:
        return None
    T = _rescaled(start.scene.T_world_camera, scales.correction, estimate.shared)
    count = len(T)
    depth = observations.depth * np.exp(scales.depth[observations.camera])
    # Each part as a whole is tied to its depth.
    sigma = np.clip(
        config.edges.min_sigma * np.sqrt(size[part[observations.camera]]),
        config.adjustment.depth_sigma,
        config.adjustment.second_pass_depth_sigma,
    )
    observations = replace(observations, depth=depth, depth_sigma=sigma)
    scene = replace(start.scene, T_world_camera=T, log_depth_scale=np.zeros(count))
    state = robust_ba.retriangulated(robust_ba.from_depth(scene, observations, start.feature))
    return ScaleTie(state, scales.depth, correction)


@dataclass(frozen=True)
class _Estimate:
    """Observations of the scales of K keyframes."""

    value: FloatArray  # [K]
    """Log ratio of points' depth to the network's; NaN with few points."""
    sigma: FloatArray  # [K]
    start: FloatArray  # [K], log depth scales with which edges are measured
    edges: ScaleEdges
    shared: csr_matrix  # [K, K], information of shared points on the relative scale of two keyframes
    segment: NDArray[np.integer]  # [K]
    part: NDArray[np.intp]  # [K], numbers of the parts that points tie
    config: ScaleConfig

    @classmethod
    def of(
        cls, fit: BAState, grids: Sequence[DepthGrid], segment: NDArray[np.integer], config: ScaleConfig = SCALES
    ) -> "_Estimate":
        count = len(grids)
        value, sigma = point_scales(fit, count, config.min_points, config.points)
        sigma = np.hypot(sigma, config.point_sigma)
        adjusted = fit.scene.log_depth_scale
        start = np.where(np.isfinite(value), value, 0.0 if adjusted is None else adjusted)
        shared = _shared_information(fit, count, config)
        pairs = _pairs(shared, segment, np.bincount(fit.observations.camera, minlength=count) > 0, config)
        edges = measure_edges(fit.scene.camera_model, fit.scene.T_world_camera, grids, start, pairs, config.edges)
        return cls(value, sigma, start, edges, shared, segment, _parts(shared, config), config)

    def solve(self, *, rigid: bool = False) -> Scales:
        """Least robust cost; ``rigid``: without correction of the map."""
        count = len(self.value)
        known = np.flatnonzero(np.isfinite(self.value))
        steps = np.flatnonzero(self.segment[:-1] == self.segment[1:])
        pairs, part = self.shared.tocoo(), self.part
        # Few points, of which some are wrong, hold nothing together.
        upper = (pairs.row < pairs.col) & (part[pairs.row] == part[pairs.col])
        rows, columns, edges = pairs.row[upper], pairs.col[upper], self.edges
        ratio = self.start[edges.first] - self.start[edges.second] - edges.log_ratio
        return self._solved(
            [
                # Points: depth scale less correction.
                _Rows(known, count + known, self.value[known], self.sigma[known], True),
                _Rows(edges.first, edges.second, ratio, edges.sigma, True),
                _Rows(steps, steps + 1, np.zeros(len(steps)), np.full(len(steps), self.config.smooth_sigma)),
                _Rows(count + rows, count + columns, np.zeros(len(rows)), pairs.data[upper] ** -0.5),
            ],
            rigid,
        )

    def _solved(self, blocks: "Sequence[_Rows]", rigid: bool) -> Scales:
        count = len(self.value)
        first, second, target, sigma = (
            np.concatenate(part)
            for part in zip(*((each.first, each.second, each.target, each.sigma) for each in blocks), strict=True)
        )
        lossy = np.repeat([each.is_robust for each in blocks], [len(each.first) for each in blocks])
        A = _incidence(first, second, 2 * count)
        # A weak prior fixes the gauge; of a rigid map, corrections are 0.
        prior = np.concatenate([np.full(count, 1e-4), np.full(count, 1e8 if rigid else 1e-2)])
        x: FloatArray = np.concatenate([self.start, np.zeros(count)])
        weight = sigma**-2
        for _ in range(self.config.rounds):
            weighted = A.multiply(weight[:, None]).tocsr()
            normal = (A.T @ weighted + coo_matrix((prior, (np.arange(2 * count),) * 2))).tocsc()
            x = np.asarray(spsolve(normal, weighted.T @ target + prior * np.concatenate([self.start, np.zeros(count)])))
            residual = (A @ x - target) / sigma
            weight = np.where(lossy, 1 / (1 + (residual / self.config.loss) ** 2), 1.0) / sigma**2
        correction = x[count:] - np.median(x[count:])
        return Scales(x[:count] + correction - x[count:], correction)


@dataclass(frozen=True)
class _Rows:
    """Differences of unknowns ``first`` [R] and ``second`` [R] are ``target`` [R] up to ``sigma`` [R]."""

    first: NDArray[np.integer]
    second: NDArray[np.integer]
    target: FloatArray
    sigma: FloatArray
    is_robust: bool = False


def _shared_information(fit: BAState, count: int, config: ScaleConfig) -> csr_matrix:
    """Information [K, K] of points on the relative scale of keyframes that see them; a point needs three views."""
    observations = fit.observations
    usable = (fit.errors < config.points.good_px) & (fit.views_of_points[observations.point] >= config.points.min_views)
    sure = config.points.independent / (config.points.pixel_sigma / np.maximum(parallax_px(fit), 1e-6)) ** 2
    shape = (count, len(fit.scene.points))
    where = observations.camera[usable], observations.point[usable]
    weighted, visible = (coo_matrix((each, where), shape).tocsr() for each in (sure[usable], np.ones(usable.sum())))
    return csr_matrix(weighted @ visible.T)


def _parts(shared: csr_matrix, config: ScaleConfig) -> NDArray[np.intp]:
    """Numbers [K] of the parts that points tie as firmly as an edge."""
    firm = shared.copy()
    firm.data = (firm.data >= config.edges.min_sigma**-2).astype(np.int8)
    firm.eliminate_zeros()
    return np.asarray(connected_components(firm, directed=False)[1], np.intp)


def _pairs(shared: csr_matrix, segment: NDArray[np.integer], used: NDArray[np.bool_], config: ScaleConfig) -> Pairs:
    """Pairs of neighbours, and of keyframes that share most points, within segments."""
    count = len(segment)
    pairs = {(k, k + hop) for hop in config.hops for k in range(count - hop)}
    for k in range(count):
        row = shared.getrow(k).tocoo()
        order = np.argsort(-row.data)
        partners = [int(j) for j in row.col[order] if abs(int(j) - k) > max(config.hops)]
        pairs |= {(min(j, k), max(j, k)) for j in partners[: config.max_pairs]}
    return {(i, j) for i, j in pairs if segment[i] == segment[j] and used[i] and used[j]}


def _incidence(plus: NDArray[np.integer], minus: NDArray[np.integer], unknowns: int) -> csr_matrix:
    """Matrix [R, unknowns] of the differences of unknowns ``plus`` [R] and ``minus`` [R]."""
    one, index = np.ones(len(plus)), np.arange(len(plus))
    where = np.concatenate([index, index]), np.concatenate([plus, minus])
    return coo_matrix((np.concatenate([one, -one]), where), (len(plus), unknowns)).tocsr()


def _rescaled(T_world_camera: FloatArray, correction: FloatArray, shared: csr_matrix) -> FloatArray:
    """Poses [K, 4, 4] whose relative translations have grown by the mean correction of both keyframes.

    Positions solve that by least squares over neighbours and pairs that share points.
    """
    count = len(T_world_camera)
    pairs = shared.tocoo()
    upper = pairs.row < pairs.col
    first = np.concatenate([pairs.row[upper], np.arange(count - 1)])
    second = np.concatenate([pairs.col[upper], np.arange(1, count)])
    centres = T_world_camera[:, :3, 3]
    difference = centres[second] - centres[first]
    target = difference * np.exp(0.5 * (correction[first] + correction[second]))[:, None]
    weight = 1 / np.maximum((difference**2).sum(axis=1), 1e-4 * np.median((difference**2).sum(axis=1)) + 1e-12)
    A = _incidence(second, first, count)
    weighted = A.multiply(weight[:, None]).tocsr()
    # The first keyframe stays.
    normal, right = (A.T @ weighted).tocsc()[1:, 1:], (weighted.T @ (target - A[:, [0]] @ centres[[0]]))[1:]
    T = T_world_camera.copy()
    T[1:, :3, 3] = spsolve(normal, right).reshape(count - 1, 3)
    return T
