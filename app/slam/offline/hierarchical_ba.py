"""Hierarchical bundle adjustment of many keyframes on a skeletal set (Snavely et al., CVPR 2008).

Rounds with a large loss scale adjust every second or third keyframe only. The others are registered by the points of
this skeletal set, and all are adjusted together. With too many for that, the skeletal set is adjusted in all rounds,
then all keyframes block by block with the rest fixed. Time and memory grow linearly with the number of keyframes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.ba.pose_only import pose_only_ba_each
from stream_recon.app.slam.ba.problem import IntArray, Priors, RelativePoses
from stream_recon.app.slam.ba.robust_ba import BARound, BAState, SolveOptions
from stream_recon.app.slam.offline.all_frames import PoseInterpolator


@dataclass(frozen=True)
class HierarchyConfig:
    """How many keyframes are adjusted together."""

    max_at_once: int = 400
    """Keyframes that are adjusted together; a factorization takes 1/3 s where loops connect all."""
    min_skeletal: int = 80
    """Least number of keyframes of a skeletal set."""
    max_stride: int = 3
    """Largest stride of a skeletal set while all can be adjusted together; with larger ones there are few matches."""
    coarse_px: float = 2.5
    """Loss scale above which a round adjusts the skeletal set only."""
    iterations_after_registration: int = 3
    """Iterations of all keyframes after registration, before outliers are dropped."""
    block: int = 120
    """Keyframes in a block."""
    block_step: int = 60
    """Keyframes from one block to the next; each keyframe is in two blocks."""
    fixed_views: int = 4
    """Most observations of a point by keyframes outside a block; more constrain it little further."""
    max_composed: int = 16
    """Keyframes over which the network's motions are composed; over more, drift makes them useless."""
    min_inliers: int = 20
    """Least number of inliers of a registered keyframe."""
    min_inlier_share: float = 0.4
    """Least share of inliers of a registered keyframe."""
    inlier_px: float = 6.0
    """Inlier distance of registration: errors that later rounds can correct."""


HIERARCHY = HierarchyConfig()


def solve(
    fit: BAState,
    motions: RelativePoses | None,
    rounds: Sequence[BARound],
    priors: Priors,
    options: SolveOptions | None = None,
    config: HierarchyConfig = HIERARCHY,
) -> BAState:
    """`robust_ba.solve` for any number of keyframes, with motions from each to the next, and without fixed cameras."""
    count = len(fit.scene.T_world_camera)
    coarse = [r for r in rounds if r.loss_px > config.coarse_px]
    fine = [r for r in rounds if r.loss_px <= config.coarse_px]
    all_at_once = count <= config.max_at_once
    chosen = skeletal_set(count, config)
    if all_at_once and (len(chosen) == count or not coarse):
        return robust_ba.solve(fit, motions, rounds, priors, options)
    small_rounds, small_motions = coarse if all_at_once else rounds, composed(motions, chosen, config)
    small = robust_ba.solve(subset(fit, chosen), small_motions, small_rounds, priors, options)
    registered = register_remaining(fit, chosen, small, config)
    last = [*(replace(r, iterations=config.iterations_after_registration) for r in coarse[-1:]), *fine]
    if all_at_once:
        return robust_ba.solve(registered, motions, last, priors, options)
    return blockwise_ba(registered, motions, last, priors, config)


def skeletal_set(count: int, config: HierarchyConfig = HIERARCHY) -> IntArray:
    """Skeletal set of ``count`` keyframes; all of them if they are few."""
    all_at_once = count <= config.max_at_once
    stride = min(count // config.min_skeletal, config.max_stride) if all_at_once else -(-count // config.max_at_once)
    return np.arange(count) if stride < 2 else np.union1d(np.arange(0, count, stride), count - 1)


def subset(fit: BAState, cameras: IntArray, keep: NDArray[np.bool_] | None = None) -> BAState:
    """The state of some cameras, ascending, and of the points that they see at least twice.

    ``keep``: [O], observations to use; None: all.
    """
    observations, scene = fit.observations, fit.scene
    keep = np.isin(observations.camera, cameras) if keep is None else keep
    rank = np.full(len(scene.T_world_camera), -1)
    rank[cameras] = np.arange(len(cameras))
    keep = keep & (np.bincount(observations.point[keep], minlength=len(scene.points))[observations.point] >= 2)
    used, point = np.unique(observations.point[keep], return_inverse=True)
    scale = None if scene.log_depth_scale is None else scene.log_depth_scale[cameras]
    T, points = scene.T_world_camera[cameras], scene.points[used]
    scene = replace(scene, T_world_camera=T, points=points, log_depth_scale=scale)
    observations = replace(observations.take(keep), camera=rank[observations.camera[keep]], point=point)
    return BAState(scene, observations, fit.feature[keep], fit.errors[keep], fit.depth[keep])


def composed(
    motions: RelativePoses | None, cameras: IntArray, config: HierarchyConfig = HIERARCHY
) -> RelativePoses | None:
    """Motions between these cameras, ascending, composed of those between neighbours."""
    if motions is None:
        return None
    single = np.flatnonzero(motions.second - motions.first == 1)
    row_of = dict(zip(motions.first[single].tolist(), single.tolist(), strict=True))
    first, relative, rotation, translation, unit = [], [], [], [], []
    for k, (a, b) in enumerate(zip(cameras.tolist(), cameras[1:].tolist(), strict=False)):
        rows = [row_of.get(c, -1) for c in range(a, b)] if b - a <= config.max_composed else [-1]
        if min(rows) < 0:
            continue
        T = np.eye(4)
        for row in rows:
            T = T @ motions.T_first_second[row]
        first.append(k)
        relative.append(T)
        rotation.append(np.sqrt(np.square(motions.rotation_sigma[rows]).sum()))
        translation.append(np.sqrt(np.square(motions.translation_sigma[rows]).sum()))
        unit.append(bool(motions.is_in_scene_unit[rows].all()))
    start = np.array(first, np.intp)
    T_first_second = np.array(relative, np.float64).reshape(-1, 4, 4)
    sigmas = np.array(rotation), np.array(translation)
    return RelativePoses(start, start + 1, T_first_second, *sigmas, motions.still, np.array(unit, bool))


def register_remaining(fit: BAState, chosen: IntArray, small: BAState, config: HierarchyConfig = HIERARCHY) -> BAState:
    """State of all cameras after adjustment of some: the others are interpolated, then registered by the points."""
    before, observations = fit.scene, fit.observations
    count = len(before.T_world_camera)
    old = np.zeros(count) if before.log_depth_scale is None else before.log_depth_scale
    new = small.scene.log_depth_scale
    change = (np.zeros(len(chosen)) if new is None else new) - old[chosen]
    one = np.zeros(count, np.intp)
    interpolator = PoseInterpolator(chosen, before.T_world_camera, small.scene.T_world_camera, np.exp(change), one)
    T = np.array([interpolator.pose(k) for k in range(count)])
    T[chosen] = small.scene.T_world_camera
    scale = old + np.interp(np.arange(count), chosen, change)
    scene = replace(before, T_world_camera=T, camera_model=small.scene.camera_model, log_depth_scale=scale)
    theirs = np.isin(observations.camera, chosen)
    known = robust_ba.retriangulated(robust_ba.from_depth(scene, observations.take(theirs), fit.feature[theirs]))
    sure = np.bincount(observations.point[theirs][known.errors < config.inlier_px], minlength=len(before.points)) >= 2
    rows = ~theirs & sure[observations.point]
    moved, distances = pose_only_ba_each(T, known.scene.points, observations.take(rows), scene.camera_model)
    camera = observations.camera[rows]
    inliers, every = (np.bincount(each, minlength=count) for each in (camera[distances < config.inlier_px], camera))
    fitted = inliers >= np.maximum(config.min_inliers, config.min_inlier_share * every)
    T[fitted] = moved[fitted]
    scene = replace(scene, T_world_camera=T)
    return robust_ba.retriangulated(robust_ba.from_depth(scene, observations, fit.feature))


def blockwise_ba(
    fit: BAState,
    motions: RelativePoses | None,
    rounds: Sequence[BARound],
    priors: Priors,
    config: HierarchyConfig = HIERARCHY,
) -> BAState:
    """State after adjusting one block of cameras after the other, with all other cameras and the intrinsics fixed."""
    rounds = [replace(r, free_k1=False) for r in rounds]
    scene, observations = fit.scene, fit.observations
    T = scene.T_world_camera.copy()
    scale = np.zeros(len(T)) if scene.log_depth_scale is None else scene.log_depth_scale.copy()
    scene = replace(scene, T_world_camera=T, log_depth_scale=scale)
    order = np.argsort(observations.camera, kind="stable")
    starts = np.searchsorted(observations.camera[order], np.arange(len(T) + 1))
    for begin in range(0, max(len(T) - config.block_step, 1), config.block_step):
        end = min(begin + config.block, len(T))
        mine = np.zeros(len(observations), bool)
        mine[order[starts[begin] : starts[end]]] = True
        shared = ~mine & np.isin(observations.point, observations.point[mine])
        keep = mine | _few_views(observations.point, shared, config)
        cameras = np.union1d(np.unique(observations.camera[keep]), np.arange(begin, end))
        stays = (cameras < begin) | (cameras >= end)
        block = subset(replace(fit, scene=scene), cameras, keep)
        block = robust_ba.retriangulated(robust_ba.with_errors(block.scene, block.observations, block.feature))
        options = SolveOptions(free_focal=False, fixed=stays)
        solved = robust_ba.solve(block, composed(motions, cameras, config), rounds, priors, options).scene
        # Without other cameras the first one of the block stayed.
        T[begin:end] = solved.T_world_camera[~stays]
        if solved.log_depth_scale is not None:
            scale[begin:end] = solved.log_depth_scale[~stays]
    full = robust_ba.retriangulated(robust_ba.from_depth(scene, observations, fit.feature))
    options = SolveOptions(free_focal=False, fixed=np.ones(len(T), bool))
    return robust_ba.solve(full, None, rounds[-1:], priors, options)


def _few_views(point: NDArray[np.integer], allowed: NDArray[np.bool_], config: HierarchyConfig) -> NDArray[np.bool_]:
    """Mask of at most `fixed_views` allowed observations of each point, at a regular stride."""
    rows = np.flatnonzero(allowed)
    rows = rows[np.argsort(point[rows], kind="stable")]
    _, start, length = np.unique(point[rows], return_index=True, return_counts=True)
    number = np.arange(len(rows)) - np.repeat(start, length)
    every = np.repeat(-(-length // config.fixed_views), length)
    chosen = np.zeros(len(point), bool)
    chosen[rows[number % np.maximum(every, 1) == 0]] = True
    return chosen
