"""Metres of a rig whose cameras are apart: depth by stereo of images of one moment, against the network's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import FloatArray, invert_pose
from stream_recon.app.slam.matching.features import Features, detect
from stream_recon.app.slam.matching.matching import match
from stream_recon.app.slam.offline.keyframe_matching import Images
from stream_recon.app.slam.rig_poses import RigFrames
from stream_recon.configs.errors import InputError


@dataclass(frozen=True)
class StereoScaleConfig:
    """Which moments and matches tell the scale."""

    moments: int = 24
    """Frames of the rig that are looked at, evenly over its path."""
    features: int = 1500
    epipolar_px: float = 1.5
    """Largest distance of a match from where the rig puts it."""
    max_error: float = 0.25
    """Largest relative error of a depth whose match is wrong by a pixel."""
    min_matches: int = 15
    """Fewest matches of a moment, and fewest moments."""
    min_moments: int = 3
    least_error: float = 0.01
    """Least relative error that is stated: errors that all moments have in common do not show in their spread. On a
    rendered walk with a baseline of 12 cm the scale was wrong by 1 %."""


STEREO_SCALE = StereoScaleConfig()


@dataclass(frozen=True)
class StereoScale:
    """Metres per length of each view's network, and their relative standard error."""

    scales: tuple[float, ...]
    error: float
    moments: int


def measure_stereo_scale(
    images: Images, rig: RigFrames, camera_model: CameraModel, config: StereoScaleConfig = STEREO_SCALE
) -> StereoScale:
    """The scale by images of one moment; ``camera_model``: of the working images.

    Raises InputError: a view and view 0 show too little in common.
    """
    of_part = rig.measuring
    bodies = np.unique(rig.body[of_part & (rig.view == 0)])
    chosen = bodies[np.linspace(0, len(bodies) - 1, min(len(bodies), config.moments)).round().astype(int)]
    positions = np.flatnonzero(of_part & np.isin(rig.body, chosen))
    seen: dict[tuple[int, int], Features] = {}
    for position, grey, depth in images.read(positions.tolist()):
        seen[int(rig.body[position]), int(rig.view[position])] = detect(grey, depth(), config.features)
    ratios: list[list[float]] = [[] for _ in rig.rig.names]
    for view in range(1, len(rig.rig)):
        found = 0
        for body in chosen.tolist():
            first, second = seen.get((body, 0)), seen.get((body, view))
            if first is None or second is None:
                continue
            logs = _log_ratios(first, second, rig.rig.T_body_view[view], camera_model, config)
            if min(map(len, logs)) >= config.min_matches:
                found += 1
                ratios[0].append(float(np.median(logs[0])))
                ratios[view].append(float(np.median(logs[1])))
        if found < config.min_moments:
            names = rig.rig.names
            raise InputError(f"--rig: {names[view]} and {names[0]} show too little in common to measure the scale")
    return _scale(ratios, config)


def _scale(ratios: Sequence[Sequence[float]], config: StereoScaleConfig) -> StereoScale:
    medians = [float(np.median(own)) for own in ratios]
    spread = 1.4826 * float(np.median(np.abs(np.array(ratios[0]) - medians[0])))
    error = 1.2533 * spread / float(np.sqrt(len(ratios[0])))  # of a median
    return StereoScale(tuple(float(np.exp(m)) for m in medians), max(error, config.least_error), len(ratios[0]))


def _log_ratios(
    first: Features, second: Features, T_first_second: FloatArray, camera_model: CameraModel, config: StereoScaleConfig
) -> tuple[FloatArray, FloatArray]:
    """Log ratios of the depth by stereo to the network's, of matches with depth in each of two images."""
    m = match(first, second)
    T = invert_pose(T_first_second)
    x, y = (camera_model.unproject(f.uv[m[:, k]].astype(np.float64)) for k, f in enumerate((first, second)))
    z, other = _depths(x @ T[:3, :3].T, y, T[:3, 3])
    with np.errstate(invalid="ignore", divide="ignore"):
        apart_px = camera_model.focal * float(np.linalg.norm(T[:3, 3])) / z
        reached = camera_model.project((x * z[:, None]) @ T[:3, :3].T + T[:3, 3])
        wrong_px = np.linalg.norm(reached - second.uv[m[:, 1]], axis=1)
        good = (z > 0) & (other > 0) & (wrong_px < config.epipolar_px) & (apart_px > 1 / config.max_error)
    pairs = ((z, first.z[m[:, 0]]), (other, second.z[m[:, 1]]))
    logs = [np.log(stereo[good & (own > 0)] / own[good & (own > 0)]) for stereo, own in pairs]
    return logs[0], logs[1]


def _depths(x: FloatArray, y: FloatArray, t: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Depths [N] along rays x and y [N, 3] where x z + t and y z' are nearest to each other; NaN for parallel rays."""
    xx, xy, yy = (x * x).sum(axis=1), (x * y).sum(axis=1), (y * y).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        determinant = xx * yy - xy * xy
        xt, yt = x @ t, y @ t
        return (xy * yt - yy * xt) / determinant, (xx * yt - xy * xt) / determinant
