"""Keyframes adjusted together: the last ones at each keyframe, or all of them now and then.

Both begin from points as the map has them, so few iterations are enough.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.ba.adjustment import lens_information
from stream_recon.app.slam.ba.problem import BAScene, CameraModel, Observations, Priors, Problem, RelativePoses
from stream_recon.app.slam.ba.robust_ba import BARound, BAState
from stream_recon.app.slam.offline import depth_correction
from stream_recon.app.slam.online.keyframe import Keyframe

FloatArray = NDArray[np.float64]

MIN_OBSERVATIONS = 60
GOOD_PX = 3.0
"""Points that miss by more are not kept in the map."""
UNTRUSTED = 10.0
"""Times the usual pixel error for what a keyframe sees that is left to the network; its motion is held so much more."""
FIRMER = 0.4
"""Times the sigmas that a refinement gives the network's steps: here little is known yet that could contradict them."""
HOPS, UNSURE = (1, 3, 6, 12), 2.0
"""Keyframes from one to another one that the network's motion is held between; more than one only where both see their
tracks so unsurely. The network's places are hardly further off over long ways than over short ones, as those of a map
are that is made of such tracks; where tracks are sure the map is nearer to the truth than that. Beyond it the network's
motions are held more firmly, too, by how much more unsure the tracks are: their errors are alike, so that many of them
know hardly more than one."""
SURE = 1.5
"""Up to which unsureness a keyframe's unit is what its tracks say; beyond, what is known otherwise has its share."""
LOG_DEPTH_SCALE_SIGMA = 0.1
HELD_OVER = 9
"""Keyframes about whose mean a depth scale is held."""
FOCAL_SIGMA = 0.1
"""Of the log of the network's focal length."""
FOCAL_SHARE = 0.3
"""Of what the observations say of the focal length is believed: their errors are alike, and motion bends them."""
STILL, MOST_UNIT = 0.02, 1.3
"""Of the depth: less than that is no motion; and by how much a unit may change at once."""
TURNED = 0.1
"""Of the depth: a turn counts like a motion that turns the view of what is so far away."""


@dataclass(frozen=True)
class BAResult:
    """What an adjustment gave; lists go by the keyframes that it was given."""

    T_world_camera: FloatArray  # [K, 4, 4]
    log_scale: FloatArray  # [K]
    z: list[FloatArray]
    """Depths of each one's tracks; NaN where no point was kept."""
    lens: CameraModel
    tracks: int
    error_px: float
    """Median reprojection error in working pixels."""
    unit: float = 1.0
    """What all was multiplied with in the end."""

    def jump(self, keyframe: Keyframe) -> float:
        """By how much the log of the map's unit changed at the last keyframe, before all was multiplied."""
        return float(self.log_scale[-1]) - float(np.log(self.unit)) - keyframe.log_scale

    def aligned(self, keyframes: Sequence[Keyframe]) -> "BAResult":
        """In a unit and a world that leave the keyframes where they were given out, on the whole.

        Nothing but the first keyframe holds an adjustment's world: without this all later ones, and what is given out
        next, would move by what is newly known of the first.
        """
        given = np.array([k.T_world_camera if k.given is None else k.given for k in keyframes])
        usual = float(np.median([keyframe.usual_depth for keyframe in keyframes]))
        T = self.T_world_camera.copy()
        ours, theirs = (each[:, :3, 3] - each[:, :3, 3].mean(axis=0) for each in (T, given))
        # Where the camera hardly moved its turns say how the world lies, and the unit stays.
        turns = np.einsum("nij,nkj->ik", given[:, :3, :3], T[:, :3, :3])
        U, _, V = np.linalg.svd(theirs.T @ ours + (TURNED * usual) ** 2 * turns)
        R = U @ np.diag([1.0, 1.0, np.linalg.det(U @ V)]) @ V
        still = len(T) * (STILL * usual) ** 2
        unit = float((((ours @ R.T) * theirs).sum() + still) / ((ours * ours).sum() + still))
        unit = float(np.clip(unit, 1 / MOST_UNIT, MOST_UNIT))
        T[:, :3, :3] = R @ T[:, :3, :3]
        T[:, :3, 3] = given[:, :3, 3].mean(axis=0) + unit * ours @ R.T
        z = [unit * each for each in self.z]
        return replace(self, T_world_camera=T, log_scale=self.log_scale + np.log(unit), z=z, unit=unit)

    def place(self, keyframes: Sequence[Keyframe]) -> None:
        """Move the keyframes there, with their points."""
        for k, keyframe in enumerate(keyframes):
            keyframe.move(self.T_world_camera[k], float(self.log_scale[k]))
            # It may have come to see more tracks since, or have forgotten them all.
            known, size = np.full(len(keyframe.z), np.nan), min(len(keyframe.z), len(self.z[k]))
            known[:size] = self.z[k][:size]
            keyframe.z = np.where(np.isnan(known), keyframe.z, known)


def adjust_window(
    keyframes: Sequence[Keyframe],
    lens: CameraModel,
    rounds: Sequence[BARound],
    *,
    fixed: int = 1,
    free_focal: bool = False,
    should_stop: Callable[[], bool] | None = None,
) -> BAResult | None:
    """Keyframes, points and, if ``free_focal``, the lens that agree best with the tracks; None where these are few.

    ``fixed``: so many of the first keyframes stay. With ``should_stop`` it ends early with what it has.
    """
    unit = _held_scales(keyframes)
    start = _start(keyframes, lens, unit)
    if start is None:
        return None
    stays = np.arange(len(keyframes)) < fixed
    steps = network_steps(keyframes, unit)
    focal_network = float(np.median([keyframe.focal_network for keyframe in keyframes]))
    priors = Priors(
        focal=focal_network,
        log_depth_scale_sigma=LOG_DEPTH_SCALE_SIGMA,
        depth_sigma=robust_ba.DEPTH_SIGMA,
        k1_sigma=robust_ba.K1_SIGMA,
    )
    fitted = robust_ba.narrow(start, steps, rounds, priors, free_focal=free_focal, fixed=stays, should_stop=should_stop)
    if free_focal and len(fitted.observations) >= MIN_OBSERVATIONS:
        focal = believed_focal(fitted, focal_network, stays)
        scene = replace(fitted.scene, lens=replace(fitted.scene.lens, focal=focal))
        fitted = robust_ba.measured(scene, fitted.observations, fitted.feature)
        fitted = robust_ba.narrow(
            fitted, steps, rounds[-1:], priors, free_focal=False, fixed=stays, should_stop=should_stop
        )
    if len(fitted.observations) < MIN_OBSERVATIONS or not np.isfinite(fitted.scene.T_world_camera).all():
        return None
    return _outcome(keyframes, fitted, unit)


def _held_scales(keyframes: Sequence[Keyframe]) -> FloatArray:
    """[K] logs of the depth scales that each keyframe's is held about: its neighbours' in the mean.

    The network's unit drifts, slowly: held about one value for all, many keyframes would be bent to its drift.
    """
    scales = np.array([keyframe.log_scale for keyframe in keyframes])
    sides = HELD_OVER // 2
    padded = np.concatenate([[0.0], np.cumsum(np.pad(scales, sides, mode="edge"))])
    return np.asarray((padded[HELD_OVER:] - padded[:-HELD_OVER]) / HELD_OVER)


def believed_focal(fitted: BAState, focal_network: float, fixed: NDArray[np.bool_]) -> float:
    """The network's focal length and the adjustment's, each by what it knows."""
    free = Priors(
        log_depth_scale_sigma=LOG_DEPTH_SCALE_SIGMA, depth_sigma=robust_ba.DEPTH_SIGMA, k1_sigma=robust_ba.K1_SIGMA
    )
    known = lens_information(Problem(fitted.scene, fitted.observations, None, fixed, free_focal=False, priors=free))
    information = FOCAL_SHARE * known.log_focal() / max(known.variance, 0.1)
    prior = FOCAL_SIGMA**-2
    off = float(np.clip(np.log(fitted.scene.lens.focal / focal_network), -robust_ba.MOST_FOCAL, robust_ba.MOST_FOCAL))
    return focal_network * float(np.exp(off * information / (information + prior)))


def _start(keyframes: Sequence[Keyframe], lens: CameraModel, unit: FloatArray) -> BAState | None:
    """Points are means of where the keyframes have them; those that the map knows outweigh the network's.

    ``unit``: [K], log of what the network's lengths are multiplied with before the depth scales.
    """
    rows = [np.flatnonzero(~keyframe.held_out) for keyframe in keyframes]
    camera = np.repeat(np.arange(len(keyframes)), [len(row) for row in rows])

    def gathered(arrays: Sequence[NDArray[np.floating]]) -> FloatArray:
        return np.concatenate([array[row] for array, row in zip(arrays, rows, strict=True)]).astype(np.float64)

    depths = gathered([keyframe.depths for keyframe in keyframes])
    mapped = np.isfinite(gathered([keyframe.z for keyframe in keyframes]))
    xyz = gathered([keyframe.points(lens) for keyframe in keyframes])
    known = np.isfinite(depths)
    weight = np.where(known, np.where(mapped, 100.0, 1.0) / np.where(known, depths, 1.0), 0.0)
    tracks, track = np.unique(
        np.concatenate([keyframe.track[row] for keyframe, row in zip(keyframes, rows, strict=True)]),
        return_inverse=True,
    )
    total = np.bincount(track, weight, len(tracks))
    # A point that no depth is known of cannot be begun anywhere.
    sure = ~np.array([keyframe.doubtful for keyframe in keyframes])[camera]
    usable = (np.bincount(track, sure)[track] >= 2) & (total[track] > 0) & sure
    if usable.sum() < MIN_OBSERVATIONS:
        return None
    used, point = np.unique(track[usable], return_inverse=True)
    sums = [np.bincount(track, weight * np.where(known, xyz[:, k], 0.0), len(tracks)) for k in range(3)]
    points = np.stack([each[used] / total[used] for each in sums], axis=1)
    trusted = np.array([keyframe.trusted for keyframe in keyframes])[camera]
    observations = Observations(
        camera[usable],
        point,
        gathered([keyframe.uv for keyframe in keyframes])[usable],
        (np.where(trusted, 1.0, UNTRUSTED) * gathered([keyframe.sigma for keyframe in keyframes]))[usable],
        (gathered([keyframe.z_network for keyframe in keyframes]) * np.exp(unit[camera]))[usable],
    )
    T = np.array([keyframe.T_world_camera for keyframe in keyframes])
    scene = BAScene(T, points, lens, np.array([keyframe.log_scale for keyframe in keyframes]) - unit)
    return robust_ba.measured(scene, observations, np.concatenate(rows)[usable])


def network_steps(keyframes: Sequence[Keyframe], unit: FloatArray) -> RelativePoses:
    """The network's motion from each keyframe to the next, and over longer ways where tracks are unsure; firm where it
    is preferred.

    ``unit``: [K], log of the map's lengths there for each of the network's.
    """
    unsure = np.array([keyframe.unsure for keyframe in keyframes])
    count = len(keyframes)
    pairs = np.array(
        [
            (a, a + hop)
            for hop in HOPS
            for a in range(count - hop)
            if hop == 1 or unsure[a] * unsure[a + hop] > UNSURE**2
        ],
        np.intp,
    ).reshape(-1, 2)
    first, second = pairs.T
    T = np.array([keyframe.T_network for keyframe in keyframes])
    relative = np.asarray(invert_pose(T[first]) @ T[second])
    relative[:, :3, 3] *= np.exp(0.5 * (unit[first] + unit[second]))[:, None]
    trusted = np.array([keyframe.trusted for keyframe in keyframes])
    share = FIRMER * np.where(trusted[second], 1.0, 1 / UNTRUSTED)
    share /= np.maximum(np.sqrt(unsure[first] * unsure[second]) / UNSURE, 1.0)
    rotation = robust_ba.ROTATION_SIGMA * share * np.sqrt(second - first)
    return RelativePoses(first, second, relative, rotation, robust_ba.TRANSLATION_SIGMA * share)


def _outcome(keyframes: Sequence[Keyframe], fitted: BAState, unit: FloatArray) -> BAResult:
    good = fitted.errors < GOOD_PX
    assert fitted.scene.log_depth_scale is not None
    log_scale = fitted.scene.log_depth_scale + unit
    z = []
    for k, keyframe in enumerate(keyframes):
        mine = np.flatnonzero(good & (fitted.observations.camera == k) & (fitted.depth > 0))
        depths = np.full(len(keyframe.track), np.nan)
        depths[fitted.feature[mine]] = fitted.depth[mine]
        z.append(depths)
        known = np.isfinite(depths) & (keyframe.z_network > 0)
        if known.sum() >= depth_correction.MIN_POINTS:
            told = float(np.log(np.median(depths[known] / keyframe.z_network[known])))
            log_scale[k] += min(SURE / keyframe.unsure, 1.0) * (told - log_scale[k])
    error = float(np.median(fitted.errors))
    return BAResult(fitted.scene.T_world_camera, log_scale, z, fitted.scene.lens, len(fitted.scene.points), error)
