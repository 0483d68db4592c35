"""Metres of a rig whose cameras are apart: depth triangulated from images of one moment, against the network's."""

from contextlib import suppress
from typing import Any

import numpy as np

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import FloatArray, invert_pose
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.run_record import METRIC_SCALE
from stream_recon.app.slam.matching.features import Features, detect
from stream_recon.app.slam.matching.matching import match
from stream_recon.app.slam.offline.keyframe_matching import Images
from stream_recon.app.slam.offline.report import Refinement
from stream_recon.app.slam.rig_poses import RigFrames
from stream_recon.configs.errors import InputError

MOMENTS, FEATURES = 24, 1500
"""Frames of the rig that are looked at, evenly over its path, and features of each image."""
MAX_REPROJECTION_PX, MAX_ERROR = 1.5, 0.25
"""Largest reprojection error of a triangulated match, and largest relative error of a depth whose match is wrong by
a pixel."""
MIN_MATCHES, MIN_MOMENTS = 15, 3
"""Fewest matches of a moment, and fewest moments."""
WINDOWS = 6
"""Parts of the film, each with a scale of its own, whose largest difference from that of all is the error that is
stated: the network's unit drifts, so that moments nearby err alike."""
NETWORK_ERROR, ADJUSTED_ERROR = 0.06, 0.01
"""Least errors that are stated. The network's path may have another unit than its depth, by 5 % on rendered walks; an
adjusted one with a baseline of 12 cm was wrong by 1 %."""


def measure_stereo_scale(
    images: Images, rig: RigFrames, camera_model: CameraModel, metres: FloatArray | None = None
) -> tuple[tuple[float, ...], float]:
    """Metres per length of each view's network, and their relative error: the largest difference of a part of the film.

    Where the network's unit drifts much within the film, an unrefined result may be off by more.
    ``camera_model``: of the working images.
    ``metres`` [N]: of a length of each depth map, as adjusted, whose error is sought; None: they are sought.

    Raises InputError: a view and view 0 show too little in common.
    """
    of_part = rig.measuring if metres is None else np.ones(len(rig.view), bool)
    bodies = np.unique(rig.body[of_part & (rig.view == 0)])
    chosen = bodies[np.linspace(0, len(bodies) - 1, min(len(bodies), MOMENTS)).round().astype(int)]
    positions = np.flatnonzero(of_part & np.isin(rig.body, chosen))
    seen: dict[tuple[int, int], Features] = {}
    for position, grey, depth in images.read(positions.tolist()):
        features = detect(grey, depth(), FEATURES)
        scaled = features if metres is None else features.scaled(float(metres[position]))
        seen[int(rig.body[position]), int(rig.view[position])] = scaled
    ratios: list[tuple[int, int, float]] = []
    for view in range(1, len(rig.rig)):
        found = 0
        for body in [body for body in chosen.tolist() if (body, 0) in seen and (body, view) in seen]:
            logs = _log_ratios(seen[body, 0], seen[body, view], rig.rig.T_body_view[view], camera_model)
            if min(map(len, logs)) >= MIN_MATCHES:
                found += 1
                ratios += [(body, 0, float(np.median(logs[0]))), (body, view, float(np.median(logs[1])))]
        if found < MIN_MOMENTS:
            names = rig.rig.names
            raise InputError(f"--rig: {names[view]} and {names[0]} show too little in common to measure the scale")
    body_of, view_of, log = np.array(sorted(ratios)).T
    medians = np.array([np.median(log[view_of == view]) for view in range(len(rig.rig))]) * (metres is None)
    parts = np.array_split(log - medians[view_of.astype(int)], min(WINDOWS, len(np.unique(body_of))))
    error = float(np.expm1(max(abs(np.median(part)) for part in parts)))
    return tuple(np.exp(medians).tolist()), max(error, NETWORK_ERROR if metres is None else ADJUSTED_ERROR)


def metres_left(result: ResultFolder, images: Images, rig: RigFrames | None, refinement: Refinement) -> dict[str, Any]:
    """The entry of a rig's metres with the error that a refinement left; none where images show too little."""
    unit = result.run.get(METRIC_SCALE)
    if rig is not None and not rig.rig.is_central and unit:
        with suppress(InputError):
            error = measure_stereo_scale(images, rig, refinement.camera_model, refinement.depth_scale)[1]
            return {METRIC_SCALE: {**unit, "error": error}}
    return {}


def _log_ratios(
    first: Features, second: Features, T_first_second: FloatArray, camera_model: CameraModel
) -> tuple[FloatArray, FloatArray]:
    """Log ratios of triangulated depth to the network's, of matches of two images of one moment, in each of them."""
    m = match(first, second)
    T = invert_pose(T_first_second)
    x, y = (camera_model.unproject(f.uv[m[:, k]].astype(np.float64)) for k, f in enumerate((first, second)))
    z, other = _depths(x @ T[:3, :3].T, y, T[:3, 3])
    with np.errstate(invalid="ignore", divide="ignore"):
        disparity_px = camera_model.focal * float(np.linalg.norm(T[:3, 3])) / z
        projected = camera_model.project((x * z[:, None]) @ T[:3, :3].T + T[:3, 3])
        error_px = np.linalg.norm(projected - second.uv[m[:, 1]], axis=1)
        good = (z > 0) & (other > 0) & (error_px < MAX_REPROJECTION_PX) & (disparity_px > 1 / MAX_ERROR)
    pairs = ((z, first.z[m[:, 0]]), (other, second.z[m[:, 1]]))
    logs = [np.log(stereo[good & (network > 0)] / network[good & (network > 0)]) for stereo, network in pairs]
    return logs[0], logs[1]


def _depths(x: FloatArray, y: FloatArray, t: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Depths [N] along rays x and y [N, 3] where x z + t and y z' are nearest to each other; NaN for parallel rays."""
    xx, xy, yy = (x * x).sum(axis=1), (x * y).sum(axis=1), (y * y).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        determinant = xx * yy - xy * xy
        xt, yt = x @ t, y @ t
        return (xy * yt - yy * xt) / determinant, (xx * yt - xy * xt) / determinant
