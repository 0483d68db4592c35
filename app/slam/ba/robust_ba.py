"""Keyframes, points and lens fitted to the tracks: a robust adjustment whose loss narrows as wrong matches are dropped.

The start is 5 to 25 pixels off, or hundreds where a loop closes, so the first rounds forgive much.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.adjustment import adjust
from stream_recon.app.slam.ba.problem import BAScene, CameraModel, Observations, Priors, Problem, RelativePoses
from stream_recon.app.slam.ba.triangulation import triangulate
from stream_recon.app.slam.frame_data import project_points, unproject
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.tracks import Tracks

FloatArray = NDArray[np.float64]

ROTATION_SIGMA = np.radians(1.0)
TRANSLATION_SIGMA = 0.3
"""A share of the length; both for one step from keyframe to keyframe, growing with the square root of their number."""
MIN_ANGLE_DEG = 1.0
WRONG_TRACK_PX = 10.0
DEPTH_SIGMA, LAST_DEPTH_SIGMA = 1.0, 3.0
"""Depth maps are wrong as wholes and alike in all frames. At first they keep the scene in shape; in the end they only
hold what nothing else holds, or they would bend the focal length to their own errors."""
LOG_FOCAL_SIGMA = 0.2
LAST_LOG_FOCAL_SIGMA, INDEPENDENT = 0.12, 0.02
"""In the end the network's focal length is weighed as what it is, off by some tenths at most, against observations
whose errors are alike from keyframe to keyframe: so small a share of them is independent. Driving straight ahead says
next to nothing of a lens, however many points are seen."""
LEAST_VARIANCE = 0.01
"""Of observations, in pixels squared: nothing is seen more exactly."""
MOST_FOCAL = 0.45
"""By so much the log of the focal length may leave the network's; it was at most .27 off where truth was known."""
K1_SIGMA = 0.001
"""k1 and the focal length take one another's part, so that a lens is straight unless it is plainly bent."""


@dataclass(frozen=True)
class BARound:
    """One adjustment."""

    loss_px: float
    """Scale of the Cauchy loss."""
    drop_px: float | None
    """Observations that miss by more are dropped before it."""
    iterations: int = 12
    free_k1: bool = False
    tolerance: float = 1e-3


FINE = (BARound(2, 6, free_k1=True), BARound(1, 3, 30, free_k1=True))
"""What comes of them is judged, and adjusted again with `LAST`."""
NARROWING = (BARound(20, None), BARound(6, 12), *FINE)
NEAR = (BARound(6, 20),)
"""From where a stream has put the keyframes, before `FINE`. A wider loss would listen to wrong matches again."""
NEARLY = (BARound(20, None), *NEAR)
"""Likewise, where a few loops are still a little open."""
WIDE = (BARound(100, None), BARound(30, None), BARound(10, 60), BARound(3, 15, free_k1=True))
PROBE = (
    BARound(20, None),
    BARound(6, 12, free_k1=True),
    *(BARound(px, 3 * px, 20, free_k1=True, tolerance=1e-4) for px in (2, 1)),
)
LAST = (BARound(2, 6, free_k1=True), BARound(1, 3, 30, free_k1=True, tolerance=1e-4))


@dataclass(frozen=True)
class BAState:
    """Keyframes with what was fitted to them."""

    scene: BAScene
    observations: Observations
    """Those that were kept; ``point`` counts the scene's points."""
    feature: NDArray[np.int64]  # [O], of the observation's keyframe
    errors: FloatArray  # [O], pixels
    depth: FloatArray  # [O], of the point in the camera's axes

    @property
    def views_of_points(self) -> NDArray[np.int64]:
        """How many keyframes see each point [M]."""
        return np.bincount(self.observations.point, minlength=len(self.scene.points))


def start(
    T_world_camera: FloatArray,
    lens: CameraModel,
    features: Sequence[Features],
    tracks: Tracks,
    log_depth_scale: FloatArray | None = None,
) -> BAState:
    """Before any adjustment: each point is the mean of where its keyframes' depth maps have it."""
    scale = np.zeros(len(T_world_camera)) if log_depth_scale is None else log_depth_scale
    uv = np.concatenate([f.uv for f in features]).astype(np.float64)
    depth = np.concatenate([f.z for f in features]).astype(np.float64)
    starts = np.cumsum([0, *(len(f) for f in features)])
    at = starts[tracks.keyframe] + tracks.feature
    observations = Observations(tracks.keyframe, tracks.track, uv[at], depth=np.maximum(depth[at], 0.0))
    scene = BAScene(T_world_camera, np.zeros((len(tracks), 3)), lens, scale)
    scene = replace(scene, points=placed(scene, observations))
    return measured(scene, observations, tracks.feature)


def placed(scene: BAScene, observations: Observations) -> FloatArray:
    """The scene's points [M, 3], each the mean of where its cameras' measured depths have it; unseen ones stay."""
    assert observations.depth is not None and scene.log_depth_scale is not None
    known = observations.depth > 0
    fallback = float(np.median(observations.depth[known])) if known.any() else 1.0
    z = np.where(known, observations.depth, fallback) * np.exp(scene.log_depth_scale[observations.camera])
    T = scene.T_world_camera[observations.camera]
    xyz = np.einsum("nij,nj->ni", T[:, :3, :3], unproject(scene.lens, observations.pixel) * z[:, None]) + T[:, :3, 3]
    weight = np.where(known, 1.0, 1e-3) / z
    count = len(scene.points)
    total = np.bincount(observations.point, weight, count)
    sums = np.stack([np.bincount(observations.point, weight * xyz[:, k], count) for k in range(3)], axis=1)
    with np.errstate(invalid="ignore"):
        return np.where(total[:, None] > 0, sums / total[:, None], scene.points)


def triangulated(fit: BAState) -> BAState:
    """With the points where the rays meet, where these meet at an angle that says so."""
    found = triangulate(fit.scene.T_world_camera, fit.scene.lens, fit.observations, len(fit.scene.points))
    with np.errstate(invalid="ignore"):
        sure = found.in_front & (found.angle_deg > MIN_ANGLE_DEG) & (found.rms_px < WRONG_TRACK_PX)
    points = np.where(sure[:, None], found.points, fit.scene.points)
    return measured(replace(fit.scene, points=points), fit.observations, fit.feature)


def measured(scene: BAScene, observations: Observations, feature: NDArray[np.int64]) -> BAState:
    """With the errors under ``scene``; infinite behind the camera."""
    T = invert_pose(scene.T_world_camera)[observations.camera]
    xyz = np.einsum("nij,nj->ni", T[:, :3, :3], scene.points[observations.point]) + T[:, :3, 3]
    errors = np.linalg.norm(project_points(scene.lens, xyz) - observations.pixel, axis=1)
    return BAState(scene, observations, feature, np.nan_to_num(errors, nan=np.inf), xyz[:, 2])


def dropped(fit: BAState, limit_px: float, least_views: int = 2) -> BAState:
    """Without observations that miss by more than ``limit_px`` and points that too few keyframes still see."""
    keep = fit.errors < limit_px
    seen = np.bincount(fit.observations.point[keep], minlength=len(fit.scene.points))
    keep &= seen[fit.observations.point] >= least_views
    used, point = np.unique(fit.observations.point[keep], return_inverse=True)
    observations = replace(fit.observations.take(keep), point=point)
    scene = replace(fit.scene, points=fit.scene.points[used])
    return BAState(scene, observations, fit.feature[keep], fit.errors[keep], fit.depth[keep])


def first_priors(focal: float, log_depth_scale_sigma: float, known_intrinsics: bool = False) -> Priors:
    """Of the first pass, which starts far off."""
    return Priors(
        log_depth_scale_sigma=log_depth_scale_sigma,
        focal=focal,
        log_focal_sigma=LOG_FOCAL_SIGMA,
        known_intrinsics=known_intrinsics,
        k1_sigma=K1_SIGMA,
        depth_sigma=DEPTH_SIGMA,
    )


def last_priors(priors: Priors, first: BAState) -> Priors:
    """Of the second pass, from those of the first and what came of it."""
    # The median of the sum of two squared normal variables is 2 log 2.
    variance = float(np.median(np.square(first.errors))) / (2 * np.log(2)) if len(first.errors) else 1.0
    focal = LAST_LOG_FOCAL_SIGMA * float(np.sqrt(INDEPENDENT / max(variance, LEAST_VARIANCE)))
    return replace(priors, depth_sigma=LAST_DEPTH_SIGMA, log_focal_sigma=min(focal, LOG_FOCAL_SIGMA))


def network_steps(
    T_world_camera: FloatArray, hops: Sequence[int] = (1,), segment: Sequence[int] | None = None
) -> RelativePoses:
    """The network's relative poses of keyframes ``hops`` apart, as weak priors; none between stretches.

    ``stretch``: [N], where there are several.
    """
    count = len(T_world_camera)
    of = [0] * count if segment is None else segment
    pairs = [(a, a + hop) for hop in hops for a in range(count - hop) if of[a] == of[a + hop]]
    first, second = np.array(pairs, np.intp).reshape(-1, 2).T
    relative = invert_pose(T_world_camera)[first] @ T_world_camera[second]
    spread = np.sqrt(second - first).astype(np.float64)
    return RelativePoses(first, second, relative, ROTATION_SIGMA * spread, TRANSLATION_SIGMA * spread)


def narrow(
    fit: BAState,
    steps: RelativePoses | None,
    rounds: Sequence[BARound] = NARROWING,
    priors: Priors | None = None,
    *,
    free_focal: bool = True,
    fixed: NDArray[np.bool_] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> BAState:
    """Adjust in ``rounds``. With ``should_stop`` it ends early with what it has."""
    priors = priors or Priors(focal=fit.scene.lens.focal)

    def stop(_: int, __: float) -> bool:
        return should_stop is not None and should_stop()

    for each in rounds:
        if should_stop and should_stop():
            break
        if each.drop_px is not None:
            fit = dropped(fit, each.drop_px)
        if not len(fit.observations):
            break
        focal, k1 = free_focal and not priors.known_intrinsics, each.free_k1 and not priors.known_intrinsics
        problem = Problem(fit.scene, fit.observations, steps, fixed, focal, k1, priors=priors)
        result = adjust(
            problem, loss_scale=each.loss_px, iterations=each.iterations, tolerance=each.tolerance, should_stop=stop
        )
        fit = measured(result.scene, fit.observations, fit.feature)
    return fit
