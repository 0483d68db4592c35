"""Bundle adjustment of keyframes of the online map: the latest ones (local) or many (global).

It starts from the map's points, so few iterations suffice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.ba.adjustment import intrinsics_information
from stream_recon.app.slam.ba.problem import BAScene, FloatArray, Observations, Problem, RelativePoses
from stream_recon.app.slam.ba.robust_ba import BARound, BAState, SolveOptions
from stream_recon.app.slam.evidence import depth_scales
from stream_recon.app.slam.online.config import DEFAULT_ONLINE, OnlineConfig, WindowConfig
from stream_recon.app.slam.online.keyframe import Keyframe

NOT_ROBUST_PX = 1e6
"""Scale of the loss at which all errors count."""


@dataclass(frozen=True)
class BAResult:
    """Result of an adjustment, in the order of its keyframes."""

    T_world_camera: FloatArray  # [K, 4, 4]
    log_scale: FloatArray  # [K]
    z: list[FloatArray]
    """Depths of each keyframe's tracks; NaN without a point."""
    camera_model: CameraModel
    tracks: int
    error_px: float
    """Median reprojection error in working pixels."""

    def aligned(self, keyframes: Sequence[Keyframe], config: WindowConfig = DEFAULT_ONLINE.window) -> "BAResult":
        """The result aligned with known poses, or else with those that were output, by a similarity.

        Only the first keyframe fixes an adjustment's world: without alignment all later poses would move with each
        correction of the first ones. Known poses far from the others' fit do not count.
        """
        output = np.array([k.T_world_camera if k.T_output is None else k.T_output for k in keyframes])
        if config.known_rounds:
            output = np.array([keyframe.T_network for keyframe in keyframes])
        depth = float(np.median([keyframe.median_depth for keyframe in keyframes]))
        T, rows = self.T_world_camera.copy(), np.arange(len(keyframes))
        for _ in range(config.known_rounds or 1):
            middle = output[rows, :3, 3].mean(axis=0)
            ours, theirs = T[:, :3, 3] - T[rows, :3, 3].mean(axis=0), output[:, :3, 3] - middle
            # Where the camera hardly moved, rotations determine the alignment and the scale stays.
            rotations = np.einsum("nij,nkj->ik", output[rows, :3, :3], T[rows, :3, :3])
            U, _, V = np.linalg.svd(theirs[rows].T @ ours[rows] + (config.rotation_lever * depth) ** 2 * rotations)
            R = U @ np.diag([1.0, 1.0, np.linalg.det(U @ V)]) @ V
            still, own = len(rows) * (config.still * depth) ** 2, ours[rows]
            scale = float((((own @ R.T) * theirs[rows]).sum() + still) / ((own * own).sum() + still))
            scale = float(np.clip(scale, 1 / config.max_scale_change, config.max_scale_change))
            error = np.linalg.norm(scale * ours @ R.T - theirs, axis=1)
            rows = np.flatnonzero(error <= config.max_known_error * np.median(error))
        T[:, :3, :3] = R @ T[:, :3, :3]
        T[:, :3, 3] = middle + scale * ours @ R.T
        z = [scale * each for each in self.z]
        log_scale = self.log_scale + np.log(scale)
        return replace(self, T_world_camera=T, log_scale=log_scale, z=z)

    def apply(self, keyframes: Sequence[Keyframe]) -> None:
        """Set poses, scales and points of the keyframes."""
        for k, keyframe in enumerate(keyframes):
            keyframe.set_pose(self.T_world_camera[k], float(self.log_scale[k]))
            # Since the adjustment began, it may have got more tracks, or have dropped them.
            known, size = np.full(len(keyframe.z), np.nan), min(len(keyframe.z), len(self.z[k]))
            known[:size] = self.z[k][:size]
            keyframe.z = np.where(np.isnan(known), keyframe.z, known)


def adjust_window(
    keyframes: Sequence[Keyframe],
    camera_model: CameraModel,
    rounds: Sequence[BARound],
    options: SolveOptions,
    config: OnlineConfig = DEFAULT_ONLINE,
) -> BAResult | None:
    """Adjusted keyframes, points and, if free, focal length; None with too few observations."""
    if not config.window.is_robust:
        rounds = [replace(each, loss_px=NOT_ROBUST_PX, drop_px=None) for each in rounds]
    start = _initial_state(keyframes, camera_model, config)
    if start is None:
        return None
    motions = network_motion_priors(keyframes, config)
    focal_network = float(np.median([keyframe.focal_network for keyframe in keyframes]))
    priors = replace(config.window.priors, focal=focal_network)
    fitted = robust_ba.solve(start, motions, rounds, priors, options)
    if options.free_focal and len(fitted.observations) >= config.window.min_observations:
        focal = combined_focal(fitted, focal_network, options.fixed, config.window)
        scene = replace(fitted.scene, camera_model=replace(fitted.scene.camera_model, focal=focal))
        fitted = robust_ba.with_errors(scene, fitted.observations, fitted.feature)
        fitted = robust_ba.solve(fitted, motions, rounds[-1:], priors, replace(options, free_focal=False))
    if len(fitted.observations) < config.window.min_observations or not np.isfinite(fitted.scene.T_world_camera).all():
        return None
    return _result(keyframes, fitted, config.window)


def combined_focal(
    fitted: BAState, focal_network: float, fixed: NDArray[np.bool_] | None, config: WindowConfig = DEFAULT_ONLINE.window
) -> float:
    """Mean of the network's and the adjustment's focal length, weighted by their information."""
    known = intrinsics_information(
        Problem(fitted.scene, fitted.observations, None, fixed, free_focal=False, priors=config.priors)
    )
    information = config.focal_share * known.log_focal() / max(known.variance, 0.1)
    prior = config.focal_sigma**-2
    limit = config.adjustment.max_focal_change
    change = float(np.clip(np.log(fitted.scene.camera_model.focal / focal_network), -limit, limit))
    return focal_network * float(np.exp(change * information / (information + prior)))


def _initial_state(keyframes: Sequence[Keyframe], camera_model: CameraModel, config: OnlineConfig) -> BAState | None:
    """State with points at the weighted mean of the keyframes' positions; the map's depths outweigh the network's.

    Depth scales are relative to the keyframes' present ones.
    """
    camera = np.repeat(np.arange(len(keyframes)), [len(keyframe.track) for keyframe in keyframes])

    def of_tracks(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(keyframe, name) for keyframe in keyframes])

    def of_keyframes(name: str) -> NDArray[Any]:
        return np.array([getattr(keyframe, name) for keyframe in keyframes])

    depths = of_tracks("depths")
    known = np.isfinite(depths)
    weight = np.where(known, np.where(np.isfinite(of_tracks("z")), 100.0, 1.0) / np.where(known, depths, 1.0), 0.0)
    tracks, track = np.unique(of_tracks("track"), return_inverse=True)
    total = np.bincount(track, weight, len(tracks))
    # Points without any depth have no initial position.
    usable = (np.bincount(track)[track] >= 2) & (total[track] > 0)
    if usable.sum() < config.window.min_observations:
        return None
    used, point = np.unique(track[usable], return_inverse=True)
    xyz = np.concatenate([keyframe.points(camera_model) for keyframe in keyframes])
    sums = [np.bincount(track, weight * np.where(known, axis, 0.0), len(tracks)) for axis in xyz.T]
    points = np.stack([each[used] / total[used] for each in sums], axis=1)
    depth = of_tracks("z_network").astype(np.float64) * np.exp(of_keyframes("log_scale")[camera])
    uv = of_tracks("uv").astype(np.float64)
    observations = Observations(camera[usable], point, uv[usable], np.ones(len(point)), depth[usable])
    scene = BAScene(of_keyframes("T_world_camera"), points, camera_model, np.zeros(len(keyframes)))
    row = np.concatenate([np.arange(len(keyframe.track)) for keyframe in keyframes])
    return robust_ba.with_errors(scene, observations, row[usable])


def network_motion_priors(keyframes: Sequence[Keyframe], online: OnlineConfig = DEFAULT_ONLINE) -> RelativePoses:
    """Priors of the network's motion between neighbouring keyframes, in the map's scale."""
    config = online.network_motion
    first = np.arange(len(keyframes) - 1 if config.is_enabled else 0)
    second = first + 1
    T = np.array([keyframe.T_network for keyframe in keyframes])
    relative = np.asarray(invert_pose(T[first]) @ T[second])
    log_scale = np.array([keyframe.log_scale for keyframe in keyframes])
    relative[:, :3, 3] *= np.exp(0.5 * (log_scale[first] + log_scale[second]))[:, None]
    sigmas, share = online.window.adjustment, np.full(len(first), config.firmer)
    return RelativePoses(first, second, relative, sigmas.rotation_sigma * share, sigmas.translation_sigma * share)


def _result(keyframes: Sequence[Keyframe], fitted: BAState, config: WindowConfig) -> BAResult:
    good = fitted.errors < config.max_point_px
    assert fitted.scene.log_depth_scale is not None
    log_scale = fitted.scene.log_depth_scale + [keyframe.log_scale for keyframe in keyframes]
    z = []
    for k, keyframe in enumerate(keyframes):
        mine = np.flatnonzero(good & (fitted.observations.camera == k) & (fitted.depth > 0))
        depths = np.full(len(keyframe.track), np.nan)
        depths[fitted.feature[mine]] = fitted.depth[mine]
        z.append(depths)
        known = np.isfinite(depths) & (keyframe.z_network > 0)
        if known.sum() >= depth_scales.POINTS.min_points:
            log_scale[k] = float(np.log(np.median(depths[known] / keyframe.z_network[known])))
    error = float(np.median(fitted.errors))
    scene = fitted.scene
    return BAResult(scene.T_world_camera, log_scale, z, scene.camera_model, len(scene.points), error)
