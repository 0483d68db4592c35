"""Adjustment of many keyframes at the cost of few.

Rounds with a wide loss only have to bring all near, so they look at a skeleton: every second or third keyframe. The
others are carried along, each is fitted to the skeleton's points, and all are adjusted together from there. Where there
are too many for that, the skeleton is adjusted to the end, and all keyframes after it stretch by stretch, each with
what it sees of the others held: time grows with the number of keyframes, memory with their observations alone.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.ba import robust_ba as fits
from stream_recon.app.slam.ba.pose_only import batched_pose_only_ba
from stream_recon.app.slam.ba.problem import Priors, RelativePoses
from stream_recon.app.slam.ba.robust_ba import BARound, BAState
from stream_recon.app.slam.offline.pose_interpolation import PoseInterpolator

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

MOST_AT_ONCE = 400
"""Keyframes; a system of so many takes a third of a second to factorise where loops tie all to all."""
LEAST = 80
"""Keyframes of a skeleton."""
WIDEST_STRIDE = 3
"""While all can be adjusted at once; matches of keyframes further apart are few."""
COARSE_PX = 2.5
"""A round with a wider loss only has to bring keyframes near."""
SETTLING = 3
"""Iterations of all keyframes together, after the skeleton's coarse rounds, before what misses is dropped."""
STRETCH, STEP = 120, 60
"""Keyframes that are adjusted together, and from one stretch to the next: each comes in two of them."""
HELD_VIEWS = 4
"""Of a point, by keyframes outside a stretch."""
LONGEST_LINK = 16
"""Keyframes over which the network's steps are joined to one."""
MIN_SEEN, MIN_SHARE, SEEN_PX = 20, 0.4, 6.0
"""A keyframe is put where it sees so many of the skeleton's points, and such a share, no further off than this."""


def narrow(
    fit: BAState,
    steps: RelativePoses | None,
    rounds: Sequence[BARound],
    priors: Priors,
    *,
    free_focal: bool = True,
) -> BAState:
    """As `fit.narrow`, for any number of keyframes.

    Args:
        steps: of the network, from each keyframe to the next.
    """
    count = len(fit.scene.T_world_camera)
    coarse, fine = [r for r in rounds if r.loss_px > COARSE_PX], [r for r in rounds if r.loss_px <= COARSE_PX]
    all_at_once = count <= MOST_AT_ONCE
    chosen = skeletal_set(count)
    if all_at_once and (len(chosen) == count or not coarse):
        return fits.narrow(fit, steps, rounds, priors, free_focal=free_focal)
    small = fits.narrow(
        part(fit, chosen), joined(steps, chosen), coarse if all_at_once else rounds, priors, free_focal=free_focal
    )
    whole, last = (
        register_remaining(fit, chosen, small),
        [*(replace(r, iterations=SETTLING) for r in coarse[-1:]), *fine],
    )
    if all_at_once:
        return fits.narrow(whole, steps, last, priors, free_focal=free_focal)
    return blockwise_ba(whole, steps, last, priors)


def skeletal_set(count: int) -> IntArray:
    """Which of so many keyframes are the skeleton; all of them where they are few."""
    all_at_once = count <= MOST_AT_ONCE
    stride = min(count // LEAST, WIDEST_STRIDE) if all_at_once else -(-count // MOST_AT_ONCE)
    return np.arange(count) if stride < 2 else np.union1d(np.arange(0, count, stride), count - 1)


def part(fit: BAState, cameras: IntArray) -> BAState:
    """With some of the cameras, ascending, and the points that two of them see."""
    rank = np.full(len(fit.scene.T_world_camera), -1)
    rank[cameras] = np.arange(len(cameras))
    return _taken(fit, cameras, rank[fit.observations.camera] >= 0)


def _taken(fit: BAState, cameras: IntArray, keep: NDArray[np.bool_]) -> BAState:
    """With these cameras, and of the observations to keep, which are all theirs, those of points seen twice."""
    seen, scene = fit.observations, fit.scene
    rank = np.full(len(scene.T_world_camera), -1)
    rank[cameras] = np.arange(len(cameras))
    keep = keep & (np.bincount(seen.point[keep], minlength=len(scene.points))[seen.point] >= 2)
    used, point = np.unique(seen.point[keep], return_inverse=True)
    scale = None if scene.log_depth_scale is None else scene.log_depth_scale[cameras]
    return BAState(
        replace(scene, T_world_camera=scene.T_world_camera[cameras], points=scene.points[used], log_depth_scale=scale),
        replace(seen.take(keep), camera=rank[seen.camera[keep]], point=point),
        fit.feature[keep],
        fit.errors[keep],
        fit.depth[keep],
    )


def joined(steps: RelativePoses | None, cameras: IntArray) -> RelativePoses | None:
    """The steps between these cameras, ascending: single ones where they are neighbours, else several made one."""
    if steps is None:
        return None
    single = np.flatnonzero(steps.second - steps.first == 1)
    at = dict(zip(steps.first[single].tolist(), single.tolist(), strict=True))
    first, relative, rotation, translation = [], [], [], []
    for k, (a, b) in enumerate(zip(cameras.tolist(), cameras[1:].tolist(), strict=False)):
        rows = [at.get(c, -1) for c in range(a, b)] if b - a <= LONGEST_LINK else [-1]
        if min(rows) < 0:
            continue
        T = np.eye(4)
        for row in rows:
            T = T @ steps.T_first_second[row]
        first.append(k)
        relative.append(T)
        rotation.append(np.sqrt(np.square(steps.rotation_sigma[rows]).sum()))
        translation.append(np.sqrt(np.square(steps.translation_sigma[rows]).sum()))
    start = np.array(first, np.intp)
    T_first_second = np.array(relative, np.float64).reshape(-1, 4, 4)
    return RelativePoses(start, start + 1, T_first_second, np.array(rotation), np.array(translation), steps.still)


def register_remaining(fit: BAState, chosen: IntArray, small: BAState) -> BAState:
    """All of ``fit`` where some cameras have come to be: the others carried along, then fitted to the points."""
    before, seen = fit.scene, fit.observations
    count = len(before.T_world_camera)
    old = np.zeros(count) if before.log_depth_scale is None else before.log_depth_scale
    new = small.scene.log_depth_scale
    change = (np.zeros(len(chosen)) if new is None else new) - old[chosen]
    one = np.zeros(count, np.intp)
    carrier = PoseInterpolator(chosen, before.T_world_camera, small.scene.T_world_camera, np.exp(change), one)
    T = np.array([carrier.pose(k) for k in range(count)])
    T[chosen] = small.scene.T_world_camera
    scale = old + np.interp(np.arange(count), chosen, change)
    scene = replace(before, T_world_camera=T, lens=small.scene.lens, log_depth_scale=scale)
    theirs = np.isin(seen.camera, chosen)
    scene = replace(scene, points=fits.placed(scene, seen.take(theirs)))
    known = fits.triangulated(fits.measured(scene, seen.take(theirs), fit.feature[theirs]))
    sure = np.bincount(seen.point[theirs][known.errors < SEEN_PX], minlength=len(before.points)) >= 2
    rows = ~theirs & sure[seen.point]
    moved = batched_pose_only_ba(T, known.scene.points, seen.take(rows), scene.lens)
    near = np.bincount(seen.camera[rows][moved.distances < SEEN_PX], minlength=count)
    fitted = (near >= MIN_SEEN) & (near >= MIN_SHARE * np.bincount(seen.camera[rows], minlength=count))
    T[fitted] = moved.T_world_camera[fitted]
    scene = replace(scene, T_world_camera=T)
    scene = replace(scene, points=fits.placed(scene, seen))
    return fits.triangulated(fits.measured(scene, seen, fit.feature))


def blockwise_ba(fit: BAState, steps: RelativePoses | None, rounds: Sequence[BARound], priors: Priors) -> BAState:
    """Adjust one stretch of cameras after the other, what they see of the others held; the lens stays."""
    held = [replace(r, free_k1=False) for r in rounds]
    scene, seen = fit.scene, fit.observations
    T = scene.T_world_camera.copy()
    scale = np.zeros(len(T)) if scene.log_depth_scale is None else scene.log_depth_scale.copy()
    scene = replace(scene, T_world_camera=T, log_depth_scale=scale)
    order = np.argsort(seen.camera, kind="stable")
    starts = np.searchsorted(seen.camera[order], np.arange(len(T) + 1))
    for begin in range(0, max(len(T) - STEP, 1), STEP):
        end = min(begin + STRETCH, len(T))
        mine = np.zeros(len(seen), bool)
        mine[order[starts[begin] : starts[end]]] = True
        keep = mine | _few_of(seen.point, ~mine & np.isin(seen.point, seen.point[mine]))
        cameras = np.union1d(np.unique(seen.camera[keep]), np.arange(begin, end))
        stays = (cameras < begin) | (cameras >= end)
        segment = _taken(replace(fit, scene=scene), cameras, keep)
        segment = fits.triangulated(fits.measured(segment.scene, segment.observations, segment.feature))
        found = fits.narrow(segment, joined(steps, cameras), held, priors, free_focal=False, fixed=stays).scene
        # With nothing held its first camera was.
        T[begin:end] = found.T_world_camera[~stays]
        if found.log_depth_scale is not None:
            scale[begin:end] = found.log_depth_scale[~stays]
    whole = fits.triangulated(fits.measured(replace(scene, points=fits.placed(scene, seen)), seen, fit.feature))
    return fits.narrow(whole, None, held[-1:], priors, free_focal=False, fixed=np.ones(len(T), bool))


def _few_of(point: NDArray[np.integer], allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Of the observations allowed at most `HELD_VIEWS` of each point, spread over them."""
    rows = np.flatnonzero(allowed)
    rows = rows[np.argsort(point[rows], kind="stable")]
    _, start, length = np.unique(point[rows], return_index=True, return_counts=True)
    number = np.arange(len(rows)) - np.repeat(start, length)
    every = np.repeat(-(-length // HELD_VIEWS), length)
    chosen = np.zeros(len(point), bool)
    chosen[rows[number % np.maximum(every, 1) == 0]] = True
    return chosen
